"""What of a model learns at a moment, so that a script that switches it is noticed: layers thawed or trained in turn.

Where no object declares what is to learn, such a switch may be meant: what was heard before it can be judged alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tunecheck.core.check import some
from tunecheck.probes.reference.adapted import adapted_layers
from tunecheck.training.restore import kept_trainable


class Learning:
    """What of a model learns at a moment: which tensors, and which adapters are active."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = self._now()
        self._active = {name: list(layer.active_adapters) for name, layer in adapted_layers(model).items()}

    def _now(self) -> set[str]:
        return {name for name, parameter in self._model.named_parameters() if parameter.requires_grad}

    def changed(self) -> str:
        """Return in words what learns now that did not then, and the other way round; "" where it is the same."""
        now = self._now()
        more, fewer = sorted(now - self._names), sorted(self._names - now)
        told = [f"{len(more)} tensors start to train ({some(more, 1)})"] if more else []
        told += [f"{len(fewer)} stop training ({some(fewer, 1)})"] if fewer else []
        return " and ".join(told)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have the same learn as then in the block."""
        layers = adapted_layers(self._model)
        active = {name: list(layer.active_adapters) for name, layer in layers.items()}
        with kept_trainable(self._model):
            try:
                _activate(layers, self._active)
                for name, parameter in self._model.named_parameters():
                    parameter.requires_grad_(name in self._names)
                yield
            finally:
                _activate(layers, active)


def _activate(layers: Mapping[str, Any], active: Mapping[str, list[str]]) -> None:
    for name, layer in layers.items():
        if name in active:
            layer.set_adapter(active[name])
