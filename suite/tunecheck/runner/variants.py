"""One run in variants: whose memory has a known order, or by another number of processes."""

from collections.abc import Mapping
from typing import Any

from tunecheck.config.schema import Parallel, Run
from tunecheck.core.evidence import MemoryVariant

VARIANTS: dict[MemoryVariant, dict[str, Any]] = {
    MemoryVariant.AS_CONFIGURED: {},
    MemoryVariant.CHECKPOINTING: {"training.gradient_checkpointing": True},
    MemoryVariant.NO_CHECKPOINTING: {"training.gradient_checkpointing": False},
    MemoryVariant.FOUR_ROWS: {"training.micro_batch_size": 4},
    MemoryVariant.LORA: {"strategy": "lora", "quantization": None},
    MemoryVariant.FULL: {"strategy": "full", "quantization": None, "lora": None},
}
"""Name to the settings in which it differs from the run as configured, a QLoRA run of micro_batch_size 1."""


def variant(run: Run, changes: Mapping[str, Any]) -> Run:
    """The run with these settings; the rules between keys are not looked at again."""
    for path, value in changes.items():
        if path == "parallel" and value is not None:
            value = Parallel(**value)
        section, _, key = path.rpartition(".")
        if section:
            value = getattr(run, section).model_copy(update={key: value})
        run = run.model_copy(update={section or key: value})
    return run


def rescaled(run: Run, processes: int) -> dict[str, Any]:
    """Return the settings with which so many processes train the same rows in every step."""
    engine = run.parallel.engine if run.parallel else "ddp"
    return {
        "parallel": {"engine": engine, "processes": processes} if processes > 1 else None,
        "training.gradient_accumulation_steps": run.micro_batches_per_step // processes,
    }
