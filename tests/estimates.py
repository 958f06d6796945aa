"""The quick run, a GPU's name, and what a child that simulates answers."""

from __future__ import annotations

from tunecheck.config import find_run, load_run

QUICK, CARD = "quick/smollm2-135m-qlora", "NVIDIA H200"
ANSWER = {
    "loaded_bytes": 10**9,
    "first_step_bytes": 2 * 10**9,
    "steady_bytes": 3 * 10**9,
    "evaluation_bytes": 10**9,
    "remainder_bytes": 0,
    "between_steps": {"other_weights": 10**9},
    "at_peak": {"other_weights": 10**9, "activations": 2 * 10**9},
    "peak_operation": "aten._log_softmax_backward_data.default",
}


def quick(*settings):
    """The quick run with these settings."""
    return load_run(find_run(QUICK), settings)
