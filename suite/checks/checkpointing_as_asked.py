"""Is gradient checkpointing on or off as asked?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import LayerCalls
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingAsAsked(Check):
    """Each decoder layer runs once a micro-batch, twice with gradient checkpointing."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"several_steps"})
    meaning: ClassVar[str] = (
        "gradient checkpointing is silently off (peak memory of a run without it) or on (a third slower)"
    )
    remedy: ClassVar[str] = "check that the flag reaches every layer and that the model is in train mode while training"

    def judge(self, trace: Trace) -> Finding:
        calls = trace.one(LayerCalls)
        times = 2 if trace.run["training"]["gradient_checkpointing"] else 1
        wanted = calls.layers * calls.micro_batches * times
        detail = f"{calls.calls} layer forwards in a step of {calls.micro_batches} micro-batches, {calls.layers} layers"
        return self.found(calls.calls == wanted and wanted > 0, detail, measured=calls.calls, limit=wanted)
