"""Whether models that are called while another one learns, as teachers, are in train mode or were never loaded."""

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
        """Models that drop, normalise by their batch, or are as they were built, to a sample of their parameters."""
        self._drawn: WeakSet[Any] = WeakSet()
        self._normalising: WeakSet[Any] = WeakSet()

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        if step:
            return
        own, loaded = {id(module) for module in session.model.modules()}, not _is_drawn(session.model)

        def see(module: Any, *_: Any) -> None:
            if id(module) in own:
                return
            if id(module) not in self._inside:
                self._called, self._inside = ref(module), {id(part) for part in module.modules()}
            whole = self._called()
            normalises = isinstance(module, _BatchNorm) and module.training and module.track_running_stats
            drops = isinstance(module, _DropoutNd) and module.training and module.p > 0
            drawn = loaded and whole is module and _is_drawn(module)
            if not drawn and (not (drops or normalises) or whole is None or whole is module):
                return
            if torch.is_grad_enabled() and any(p.requires_grad for p in whole.parameters()):
                return
            self._normalising |= {whole} if normalises else set()
            self._drawn |= {whole} if drawn else set()
            if whole not in self._noisy:
                self._noisy[whole] = _sample(whole)

        self.hooks.before(None, see, with_kwargs=True)

    def end(self, session: Session) -> None:
        for model, before in self._noisy.items():
            if all(torch.equal(one, other) for one, other in zip(before, _sample(model), strict=True)):
                name, drawn = type(model).__name__, model in self._drawn
                self.emit(OtherModelDrops(model=name, normalises=model in self._normalising, drawn=drawn))


def _is_drawn(model: Any) -> bool:
    """Return whether the weights of all of several norms are 1, or all 0, as no training leaves them."""
    norms = [m.weight for m in model.modules() if "norm" in type(m).__name__.lower() and hasattr(m, "weight")]
    learnt = [weight.detach() for weight in norms if isinstance(weight, torch.nn.Parameter)]
    return len(learnt) > 1 and any(all(bool((weight == value).all()) for weight in learnt) for value in (0, 1))


def _sample(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().flatten()[:SAMPLED].clone() for parameter in model.parameters()]
