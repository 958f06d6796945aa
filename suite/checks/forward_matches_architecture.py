"""Does the forward pass compute what the architecture says?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import ForwardReference, LayerCalls, Setup
from suite.finding import Finding
from suite.trace import Trace

EPSILON = {"bf16": 2.0**-7, "fp16": 2.0**-10}
"""A unit in the last place, relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardMatchesArchitecture(NumericCheck):
    """Norms, positions, attention, activation, residuals and head of a forward pass follow the architecture's formulas.

    What lies between the linears is computed again by other code, relation by relation; a layer that is left out or
    called in another's place is one too. So is the attention of a training step's rows, with their lengths and padding.
    """

    meaning: ClassVar[str] = (
        "the weights are right and the function is not: wrong positions or scale in attention, a layer left out or out "
        "of order, another activation or epsilon, a patched or fused kernel that computes something else, or computes "
        "it in too few bits"
    )
    remedy: ClassVar[str] = (
        "look at the relation below: it names the module; compare config.json with the run, and the model with patches "
        "and fused kernels switched off"
    )

    max_error_fp32: float = 1e-4
    """Of one relation, relative: see the detail for the worst; rounding gives 1e-6."""
    max_error_16bit: float = 3e-2
    max_gain_ulps: float = 0.125
    """Error of a norm's gain in 16 bit, in units of the last place: 0.03 to 0.05 where the norm is taken in fp32 (two
    random layers and SmolLM2-135M, bf16 and fp16), 0.28 to 0.32 where it is not."""

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
        passed = worst <= limit and seen.relations > 0
        if seen.gain_error is not None:
            ulps = seen.gain_error / EPSILON[trace.one(Setup).precision]
            passed = passed and ulps <= self.max_gain_ulps
            detail += f"; the gain of {seen.gain_error_at} off by {ulps:.2g} units of the last place"
            detail += "" if ulps <= self.max_gain_ulps else ": it is not taken in fp32"
        return self.found(passed, detail, measured=worst, limit=limit)
