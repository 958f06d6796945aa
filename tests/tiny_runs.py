"""The quick run on a tiny model, on whatever device there is."""

from __future__ import annotations

import tiny

from tunecheck.config import find_run, load_run
from tunecheck.config.schema import Run

STEPS = 3


def run_with(*settings: str) -> Run:
    """The quick run on a tiny model, on whatever device there is and in its precision."""
    tiny_run = [setting for setting in tiny.SETTINGS if setting not in ("device=cpu", "training.precision=fp32")]
    return load_run(find_run("quick/smollm2-135m-qlora"), [*tiny_run, f"training.max_steps={STEPS}", *settings])
