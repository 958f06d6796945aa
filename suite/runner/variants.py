"""One run in variants whose memory has a known order, for a few steps each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suite.config.schema import Run

VARIANTS: dict[str, dict[str, Any]] = {
    "as asked": {},
    "checkpointing": {"training.gradient_checkpointing": True},
    "no checkpointing": {"training.gradient_checkpointing": False},
    "4 rows": {"training.micro_batch_size": 4},
    "lora": {"strategy": "lora", "quantization": None},
    "full": {"strategy": "full", "quantization": None, "lora": None},
}
"""Name to the settings in which it differs from the run as asked, which is one of qlora with one row a micro-batch."""


def variant(run: Run, changes: Mapping[str, Any]) -> Run:
    """The run with these settings; the rules between keys are not looked at again."""
    for path, value in changes.items():
        section, _, key = path.rpartition(".")
        if section:
            value = getattr(run, section).model_copy(update={key: value})
        run = run.model_copy(update={section or key: value})
    return run
