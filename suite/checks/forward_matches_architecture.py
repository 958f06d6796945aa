"""Does the forward pass compute what the architecture says?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import ForwardReference, LayerCalls
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardMatchesArchitecture(NumericCheck):
    """Norms, positions, attention, activation, residuals and head of a forward pass follow the architecture's formulas.

    What lies between the linears is computed again by other code, relation by relation; a layer that is left out or
    called in another's place is one too. So is the attention of a training step's rows, with their lengths and padding.
    """

    meaning: ClassVar[str] = (
        "the weights are right and the function is not: wrong positions or scale in attention, a layer left out or out "
        "of order, another activation or epsilon, a patched or fused kernel that computes something else"
    )
    remedy: ClassVar[str] = (
        "look at the relation below: it names the module; compare config.json with the run, and the model with patches "
        "and fused kernels switched off"
    )

    max_error_fp32: float = 1e-4
    """Of one relation, relative: see the detail for the worst; rounding gives 1e-6."""
    max_error_16bit: float = 3e-2
    max_norm_scale_error: float = 1.5e-3
    """Of a norm's mean square and root, which are taken in fp32 whatever the weights are. Rounding the output to bf16
    moves it by up to 9e-4 (25 draws, 64 to 4096 wide); themselves in bf16 they are off by 2.2e-3 and more.
    """

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(ForwardReference), self.limit(trace)
        if not seen.has_formulas:
            kind = trace.run["model"]["architecture"]["model_type"]
            return self.unjudged(f"no formulas are known here for {kind} with this rotary scaling", expected=True)
        calls = trace.one(LayerCalls)
        detail = f"worst of {seen.relations} relations: {seen.worst}, off by {seen.error:.3g}"
        detail += f"; attention of the {calls.attention_rows} rows of a training step by {calls.attention_error:.3g}"
        errors = (seen.error, calls.attention_error) if calls.attention_rows else (seen.error,)
        worst = max(errors, key=lambda error: math.inf if math.isnan(error) else error)
        scaled = seen.norm_scale_error is None or seen.norm_scale_error <= self.max_norm_scale_error
        if not scaled:
            detail += f"; a norm scales a token by {seen.norm_scale_error:.2g} more or less: not taken in fp32"
        return self.found(worst <= limit and seen.relations > 0 and scaled, detail, measured=worst, limit=limit)
