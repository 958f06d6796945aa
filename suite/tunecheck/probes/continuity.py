"""Between two optimizer steps nothing changes: neither what learns, nor what is frozen."""

from collections.abc import Sequence

import torch

from tunecheck.core.evidence import Continuity
from tunecheck.probes.reference.measures import evenly
from tunecheck.training.events import Probe
from tunecheck.training.session import Session

TRAINED_ELEMENTS, FROZEN_ELEMENTS = 512, 64
"""Elements compared of each tensor, evenly spread: a part is not enough to find a flipped bit, which the digests at the
end do, but it shows at every step what changed a tensor as a whole."""

Named = Sequence[tuple[str, torch.Tensor]]


class ContinuityProbe(Probe):
    """Keeps samples of all parameters and compares them at every moment of a step.

    The optimizer's own step lies between the end of the backward pass and the end of the step: all that trained tensors
    change elsewhere is no update, and frozen ones change nowhere. Offloaded parameters are not looked at: gathering
    them in every step would cost more than the step.
    """

    emits = (Continuity,)

    def start(self, session: Session) -> None:
        self._watched = session.run.training.offload != "parameters"
        parameters = list(session.model.named_parameters()) if self._watched else []
        self._trained = _Samples([(name, p) for name, p in parameters if p.requires_grad], TRAINED_ELEMENTS)
        self._frozen = _Samples([(name, p) for name, p in parameters if not p.requires_grad], FROZEN_ELEMENTS)
        self._moments = 0

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Compare with the end of the step before."""
        self._compare(step)

    def backward_end(self, session: Session, step: int) -> None:
        self._compare(step)

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Note what the optimizer made of the trained tensors."""
        self._trained.renew()

    def end(self, session: Session) -> None:
        """Compare once more, after the last evaluation."""
        self._compare(session.run.training.max_steps)
        if self._watched:
            seen = Continuity(
                moments=self._moments,
                trained=self._trained.count,
                frozen=self._frozen.count,
                trained_changed=self._trained.changed(),
                frozen_changed=self._frozen.changed(),
            )
            self.emit(seen)

    def _compare(self, step: int) -> None:
        self._moments += 1
        self._trained.compare(step)
        self._frozen.compare(step)


class _Samples:
    """Samples of tensors, one flat tensor a dtype, and where each first differed: on their device, never waited for."""

    def __init__(self, tensors: Named, elements: int) -> None:
        self.count, self._elements = len(tensors), elements
        by_kind: dict[object, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in tensors:
            by_kind.setdefault((tensor.dtype, tensor.device), []).append((name, tensor))
        kept = [(part, self._taken(part)) for part in by_kind.values()]
        self._parts = [(part, own, torch.full_like(own, -1, dtype=torch.int32)) for part, own in kept]
        """Tensors, their samples, and for each element the step in which it first differed, -1 while it has not."""

    def _taken(self, part: Named) -> torch.Tensor:
        """Return one flat copy of the samples of these tensors."""
        return torch.cat([self._sample(tensor) for _, tensor in part])

    def _sample(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().flatten()[evenly(tensor.numel(), self._elements)]

    def renew(self) -> None:
        """Take what the tensors hold now for right."""
        for part, kept, _ in self._parts:
            kept.copy_(self._taken(part))

    def compare(self, step: int) -> None:
        """Note every element that differs from the kept one for the first time; it is right from then on."""
        for part, kept, first in self._parts:
            now = self._taken(part)
            other = (now != kept) & (now == now)  # NaN differs from itself; `finite` is for it
            first.masked_fill_(other & (first < 0), step)

    def changed(self) -> dict[str, int]:
        """Return names and first steps of the tensors that differed; waits for the device."""
        found = {}
        for part, _, first in self._parts:
            sizes = [len(self._sample(tensor)) for _, tensor in part]
            for (name, _), steps in zip(part, torch.split(first.cpu(), sizes), strict=True):
                if len(seen := steps[steps >= 0]):
                    found[name] = int(seen.min())
        return found
