"""Does the optimizer do what AdamW does?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, trains_16bit_weights
from suite.evidence import Setup, Update
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesMatchAdamw(NumericCheck):
    """Each early step changes every tensor as closed-form AdamW would, with the schedule's rate, clipping and decay."""

    meaning: ClassVar[str] = (
        "wrong or zero learning rate, skipped steps, clipping at the wrong time, stale moments, an optimizer "
        "of other tensors, or updates lost in 16-bit weights"
    )
    remedy: ClassVar[str] = (
        "compare the rate and the moments below; a moment error alone points to clipping or scaling, an "
        "update error alone to rate, decay or dtype"
    )

    max_error_fp32: float = 5e-3
    """2e-5 measured at the last steps, where updates are smallest beside the weights' own rounding."""
    max_moment_error_fp32: float = 5e-4
    """Of the averages, which are sums without cancellation: 3e-7 measured; moments kept in bf16 are off by 1e-3."""
    max_error_16bit: float = 5e-2
    """The adapters are fp32 under 16-bit arithmetic too, unless adapter_dtype says model."""
    max_error_16bit_weights: float = 0.3
    """With adapter_dtype: model in 16 bit, where updates are of the size of rounding: 0.08 measured."""

    def judge(self, trace: Trace) -> Finding:
        updates = trace.all(Update)
        limit = self.max_error_16bit_weights if trains_16bit_weights(trace) else self.limit(trace)
        worst = max(updates, key=lambda u: math.inf if math.isnan(u.update_error) else u.update_error)
        moments = max(updates, key=lambda u: math.inf if math.isnan(u.moment_error) else u.moment_error)
        measured = max(worst.update_error, moments.moment_error, key=lambda x: math.inf if math.isnan(x) else x)
        exact = trace.one(Setup).precision == "fp32"
        passed = worst.update_error <= limit
        passed = passed and moments.moment_error <= (self.max_moment_error_fp32 if exact else limit)
        detail = f"step {worst.step}: {worst.worst_update} off by {worst.update_error:.3g} of its update at rate "
        detail += (
            f"{worst.expected_learning_rate:.3g}; moments off by {moments.moment_error:.3g} at step {moments.step}"
        )
        return self.found(passed, detail, measured=measured, limit=limit)
