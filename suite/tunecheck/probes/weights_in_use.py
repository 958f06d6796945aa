"""Does a forward pass use the trained tensors as they are, or what somebody remembered of them?

A copy in another dtype, a fused or merged matrix, a table made once: each must follow every update. All checks that run
the model are blind to one that does not, since they are given the same memory. So the trained tensors themselves change
here, all of them by one half, which binary numbers take without rounding, and each module's product must follow.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tunecheck.core.evidence import CurrentWeights
from tunecheck.probes.reference.architecture import has_formulas, normalised, recorded_calls
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.measures import relative_error, worst
from tunecheck.training.events import Probe
from tunecheck.training.session import Session
from tunecheck.training.tensors import own_parameters, whole


class WeightsInUseProbe(Probe):
    """Looks once, after training, in train mode. Adapters are touched by another probe, before training."""

    emits = (CurrentWeights,)

    def end(self, session: Session) -> None:
        """Two forwards: what is remembered of the first must not serve the second."""
        if not session.run.trains_base:
            return
        # others may scale embeddings, or norms by 1 + weight
        known = has_formulas(session.run.model.architecture, session.model)
        modules = {
            name: module
            for name, module in session.model.named_modules()
            if any(p.requires_grad for p in own_parameters(module))
            and (type(module) is torch.nn.Linear or known)
            and hasattr(module, "weight")  # a list of tensors, as IA3's, has none
            and module.weight.is_floating_point()
        }
        before = _logits(session)
        trained = [p for p in session.model.parameters() if p.requires_grad]
        with _halved(trained), recorded_calls(modules, _last_two) as calls:
            _logits(session)
            errors = {
                name: relative_error(calls[name][1], _product(module, calls[name][0], session))
                for name, module in modules.items()
                if name in calls and _is_product(module, *calls[name])
            }
        for name, module in modules.items():
            if name not in errors:  # others read its tensors, as Mamba's kernel does: then the logits follow them
                with _halved([p for p in own_parameters(module) if p.requires_grad]):
                    errors[name] = math.inf if torch.equal(_logits(session), before) else 0.0
        at, error = worst(errors)
        self.emit(CurrentWeights(modules=len(errors), error=error, worst=at))


def _logits(session: Session) -> torch.Tensor:
    return logits_of(session.model, first_tokens(session), training=True)


@contextmanager
def _halved(parameters: list[Any]) -> Iterator[None]:
    """These tensors at half their size; bit for bit what they were afterwards."""
    # halved, numbers near a dtype's smallest lose a bit: in fp16 those below 1e-4, else below 1e-37, which no weight is
    kept = {at: whole(p).detach().clone() for at, p in enumerate(parameters) if p.dtype == torch.float16}
    try:
        with torch.no_grad():
            for parameter in parameters:
                whole(parameter).mul_(0.5)
        yield
    finally:
        with torch.no_grad():
            for at, parameter in enumerate(parameters):
                whole(parameter).copy_(kept[at]) if at in kept else whole(parameter).mul_(2)


def _last_two(given: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a module is given and returns at the last two positions."""
    given = given.flatten(0, -2)[-2:].float() if given.is_floating_point() else given.flatten()[-2:]
    # copies: Llama 4 adds its experts to the shared one's output in place
    return given.clone(), out.flatten(0, -2)[-2:].float().clone()


def _is_product(module: Any, given: torch.Tensor, out: torch.Tensor) -> bool:
    """Return whether the shapes are those of a norm, a linear or a table, and not of a rotation, say, as OFT's.

    A class of the script's own may compute otherwise, as may what makes the weight of other tensors for each pass.
    """
    if "weight" not in module._parameters or not type(module).__module__.startswith(("torch.", "transformers.")):
        return False
    height, width = module.weight.shape[0], module.weight.shape[-1]
    if not given.is_floating_point():
        return bool(width == out.shape[-1])
    return bool(width == given.shape[-1] and height == out.shape[-1])


def _product(module: Any, given: torch.Tensor, session: Session) -> torch.Tensor:
    """What the module's tensors, as they are, make of this."""
    weight = whole(module.weight).detach().to(given.device)
    if not given.is_floating_point():
        return weight[given].float()
    if weight.dim() == 1:
        return normalised(given, weight.float(), session.run.model.architecture)
    product = given @ weight.float().T
    return product if module.bias is None else product + whole(module.bias).detach().to(given.device).float()
