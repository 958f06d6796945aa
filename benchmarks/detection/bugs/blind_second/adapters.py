"""The second blind set's faults of adapters and checkpointing. Imports torch; child process only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.detection.bugs.parts import adapted_modules

if TYPE_CHECKING:
    from suite.training.session import Session


def another_alpha_by_pattern(session: Session) -> None:
    """A pattern meant for another model gives every v_proj twice the alpha."""
    for name, module in session.model.named_modules():
        if name.endswith("v_proj") and isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] *= 2


def dropout_never_applied(session: Session) -> None:
    """The adapters' dropout is in the configuration, and no layer was handed it."""
    for module in adapted_modules(session):
        module.lora_dropout["default"] = torch.nn.Identity()


def dropout_on_the_sum(session: Session) -> None:
    """Dropout falls on the layer's output, base and adapter together, not on the adapter's input."""
    rate = session.run.lora.dropout  # type: ignore[union-attr]
    for module in adapted_modules(session):
        module.lora_dropout["default"] = torch.nn.Identity()
        module.register_forward_hook(lambda layer, _args, out: F.dropout(out, rate, layer.training))


def magnitudes_of_other_weights(session: Session) -> None:
    """DoRA's magnitudes are the row norms of a freshly drawn layer: they were taken before the weights were loaded."""
    for module in adapted_modules(session):
        fresh = torch.empty(module.out_features, module.in_features)
        torch.nn.init.kaiming_uniform_(fresh, a=math.sqrt(5), generator=torch.Generator().manual_seed(0))
        for magnitude in module.lora_magnitude_vector.values():
            magnitude.weight.data.copy_(torch.linalg.norm(fresh, dim=1))


def norms_without_scaling(session: Session) -> None:
    """DoRA divides by the norm of W + B A, without alpha / r: right at the start, and wrong once B has moved."""
    for module in adapted_modules(session):
        for magnitude in module.lora_magnitude_vector.values():
            magnitude.get_weight_norm = _unscaled(magnitude.get_weight_norm)


def _unscaled(norms: Any) -> Any:
    """The same norms with the product taken once."""
    return lambda weight, lora_weight, scaling, adapter_name=None: norms(weight, lora_weight, 1.0, adapter_name)


def checkpointed_twice(session: Session) -> None:
    """Each layer is checkpointed by two libraries, one inside the other: it is computed again twice."""
    for module in session.model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = _around(module._gradient_checkpointing_func)


def _around(inner: Any) -> Any:
    """This checkpointing inside a reentrant one, whose input must need a gradient lest it cuts that of the adapters."""

    def both(function: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
        return checkpoint(lambda h: inner(function, h, *args, **kwargs), given, use_reentrant=True)

    return both
