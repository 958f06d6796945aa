"""By hand: what it would take to catch each fault that survives, and what was done about limits that are near.

Tests hold both lists equal to the results.
"""

from __future__ import annotations

WHAT_IT_WOULD_TAKE: dict[str, str] = {
    "U01": "an oracle at the last step of a run that accumulates (`probes.oracle_steps` names it), which costs about "
    "one more step; quick has one oracle, at its third step",
    "U21": "a slope of the loss along the gradient with dropout, the random state set to the same for every forward; "
    "and a tier that trains with dropout and checkpointing together",
    "U23": "trained weights: a random model's logits are so small that rounding them to bf16 changes the loss by "
    "3e-6, below the limit of 1e-4",
}
"""Id to a sentence."""

NEAR_LIMITS: dict[str, str] = {
    "memory_flat": "kept: a slope above it fails only together with a rise of 64 KiB and a trend of p < 0.001, and "
    "healthy slopes were 0 or fell",
}
"""Check with a limit near a healthy run to what was done about it."""
