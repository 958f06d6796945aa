"""Simulated memory of the quick run on a tiny model, each variant simulated once per test process."""

from __future__ import annotations

from functools import lru_cache

import tiny

from tunecheck.config import find_run, load_run
from tunecheck.memory import simulate as simulation
from tunecheck.memory.live import CUDA_ROUNDING_BYTES

FULL = ["strategy=full", "quantization=null", "lora=null"]
CHECKPOINTING = "training.gradient_checkpointing=true"


@lru_cache
def simulated(*settings, rounding_bytes=CUDA_ROUNDING_BYTES):
    """Simulated once for all tests that look at it."""
    return simulation.simulate(run_with(*settings), rounding_bytes=rounding_bytes)


def run_with(*settings):
    """The quick run on a tiny model, in fp32 unless said otherwise."""
    common = [*tiny.SETTINGS, "data.max_length=64", "training.precision=fp32"]
    return load_run(find_run("quick/smollm2-135m-qlora"), [*common, *settings])


def rotary_frequencies(architecture) -> int:
    """One for every two numbers of a head."""
    return architecture.hidden_size // architecture.num_attention_heads // 2
