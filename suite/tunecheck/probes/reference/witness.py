"""A small tensor that tells what was done to gradients."""

from typing import Any
from weakref import ref

import torch

from tunecheck.training.tensors import whole


class Witness:
    """A small trained tensor: what its gradient was when it was last looked at."""

    def __init__(self, parameter: Any, optimizer: Any) -> None:
        gradient = parameter.grad
        self.parameter, self._optimizer = parameter, ref(optimizer)
        self.held = gradient is not None and bool(whole(gradient).any())
        """Whether it holds a gradient that is not cleared."""
        self._seen: Any = None if gradient is None else ref(gradient)
        self._version = _version(gradient)
        self._gradient: Any = None
        self._weights = parameter.detach().clone()
        self.begin()

    def copies(self) -> list[torch.Tensor]:
        return [held for held in (self._weights, self._start, self._gradient) if held is not None]

    def touched(self) -> bool:
        """Return whether the gradient was written to, replaced or removed; does not wait for a GPU."""
        if (gradient := self.parameter.grad) is None:
            return self.held
        return self._seen is None or gradient is not self._seen() or _version(gradient) != self._version

    def look(self) -> str:
        """Return what was done to the gradient since it was last looked at: clear, keep, edit or nothing."""
        if not self.touched():
            return ""
        gradient, held, before = self.parameter.grad, self.held, self._gradient
        self.remember()
        if gradient is not None and bool(whole(gradient).any()):
            return "edit"
        self.held = False
        if not held or before is None or not bool(before.any()):
            return "clear" if held else ""
        states = getattr(self._optimizer(), "state", {}).get(self.parameter, {}).values()
        kind = before.shape, before.dtype, before.device
        tensors = (one for one in states if isinstance(one, torch.Tensor) and one.layout is torch.strided)
        kept = (one for one in tensors if (one.shape, one.dtype, one.device) == kind)
        return "keep" if any(torch.equal(one, before) for one in kept) else "clear"

    def remember(self) -> None:
        """Take the gradient as it is for what is to be expected."""
        if self.touched():
            gradient = self.parameter.grad
            self.held = gradient is not None
            self._seen = None if gradient is None else ref(gradient)
            self._version = _version(gradient)
            # a shard is gathered by all processes together, which is not worth it here
            plain = gradient is not None and gradient.layout is torch.strided and not hasattr(gradient, "to_local")
            self._gradient = gradient.detach().clone() if plain else None

    def remember_weights(self) -> None:
        """Keep the values, by which an update that is no optimizer's step is seen."""
        with torch.no_grad():
            self._weights.copy_(self.parameter)

    def begin(self) -> None:
        self._start = self.parameter.detach().clone()

    def away(self) -> float:
        """Return how far the values are from those that the step began with."""
        return float((self.parameter.detach() - self._start).abs().max())

    def moved(self) -> bool:
        return not torch.equal(self._weights, self.parameter)


def _version(gradient: Any) -> int:
    """Return how often the gradient was written to: of a DTensor its part on this device, which alone counts that."""
    return 0 if gradient is None else int(getattr(gradient, "_local_tensor", gradient)._version)
