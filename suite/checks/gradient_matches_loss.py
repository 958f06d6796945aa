"""Is the gradient the loss's own?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import LayerGradients, Oracle, Setup
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMatchesLoss(Check):
    """Along the gradient the loss changes as fast as the gradient says, and so does every decoder layer alone.

    Two forward passes know nothing of autograd: what is wrong in a backward pass is wrong for every other check too.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"directional", "oracle"})
    meaning: ClassVar[str] = (
        "a backward pass that is not its forward's: a fused kernel, a custom autograd function or a hook scales, drops "
        "or doubles a part of the gradient"
    )
    remedy: ClassVar[str] = "switch fused kernels and hooks off one by one; run torch.autograd.gradcheck on them"

    max_error: float = 2e-3
    """Of the slope: 5e-5 to 2e-4 in three healthy runs of a tiny model; one of its tensors doubled gives 1e-2."""
    max_layer_error: float = 5e-3
    """Of a layer's slope: up to 1e-5 in the 30 layers of SmolLM2-135M; a norm that loses half of its gradient gives
    0.8, while the whole model's slope hardly notices."""

    def judge(self, trace: Trace) -> Finding:
        if trace.one(Setup).precision != "fp32":
            return self.unjudged("losses in 16 bit are too coarse for a difference of two", expected=True)
        errors = {o.step: o.directional_error for o in trace.all(Oracle) if o.directional_error is not None}
        if not errors:
            raise MissingEvidence("the slope of the loss was not measured")
        step, error = max(errors.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])
        layers = trace.one(LayerGradients)
        detail = f"step {step}: the loss's slope is {error:.3g} off what the gradient promises"
        detail += f"; that of layer {layers.worst} alone {layers.error:.3g}"
        if (trace.run["lora"] or {}).get("use_dora"):  # section 4.3 of its paper: the layers' slopes do not know of it
            detail += "; DoRA holds its norms constant in the gradient, so that the layers alone are judged"
            limit = self.max_layer_error
            return self.found(layers.error <= limit, detail, measured=layers.error, limit=limit)
        passed = error <= self.max_error and layers.error <= self.max_layer_error
        return self.found(passed, detail, measured=error, limit=self.max_error)
