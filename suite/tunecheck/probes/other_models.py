"""Models that learn nothing and are called while another one trains, as teachers and references: in train mode?"""

from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from tunecheck.core.evidence import OtherModelDrops
from tunecheck.training.events import Probe
from tunecheck.training.session import Session

SAMPLED = 64
"""Numbers of each parameter by which a model that learns elsewhere, or is an average, is told from one that rests."""


class OtherModelsProbe(Probe):
    """Looks from the first step's backward pass to the second one's: a teacher may be called before the student is."""

    emits = (OtherModelDrops,)

    def start(self, session: Session) -> None:
        self._called: Any = lambda: None
        """The model that was called last, weakly."""
        self._inside = set[int]()
        self._noisy: WeakKeyDictionary[Any, list[torch.Tensor]] = WeakKeyDictionary()
        """Models that drop, or normalise by their batch, to a sample of their parameters."""
        self._normalising: WeakSet[Any] = WeakSet()

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        if step:
            return
        own = {id(module) for module in session.model.modules()}

        def see(module: Any, *_: Any) -> None:
            if id(module) in own:
                return
            if id(module) not in self._inside:
                self._called, self._inside = ref(module), {id(part) for part in module.modules()}
            whole = self._called()
            normalises = isinstance(module, _BatchNorm) and module.training and module.track_running_stats
            drops = isinstance(module, _DropoutNd) and module.training and module.p > 0
            if not (drops or normalises) or whole is None or whole is module:
                return
            if torch.is_grad_enabled() and any(p.requires_grad for p in whole.parameters()):
                return
            self._normalising |= {whole} if normalises else set()
            if whole not in self._noisy:
                self._noisy[whole] = _sample(whole)

        self.hooks.first_modules(see)

    def end(self, session: Session) -> None:
        """Tell which models are in train mode that nobody trains."""
        for model, before in self._noisy.items():
            if all(torch.equal(one, other) for one, other in zip(before, _sample(model), strict=True)):
                self.emit(OtherModelDrops(model=type(model).__name__, normalises=model in self._normalising))


def _sample(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().flatten()[:SAMPLED].clone() for parameter in model.parameters()]
