"""Is what saves memory on or off as asked: gradient checkpointing, and a loss in chunks?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import LayerCalls
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingAsAsked(Check):
    """Each decoder layer runs once a micro-batch, twice with gradient checkpointing; the head takes what it may."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"several_steps"})
    meaning: ClassVar[str] = (
        "gradient checkpointing or the loss in chunks is silently off (peak memory of a run without it), or the "
        "checkpointing is on (a third slower)"
    )
    remedy: ClassVar[str] = "check that the flag reaches every layer and that the model is in train mode while training"

    def judge(self, trace: Trace) -> Finding:
        calls = trace.one(LayerCalls)
        times = 2 if trace.run["training"]["gradient_checkpointing"] else 1
        wanted = calls.layers * calls.micro_batches * times
        detail = f"{calls.calls} layer forwards in a step of {calls.micro_batches} micro-batches, {calls.layers} layers"
        at_once = _most_logits(trace)
        if too_many := at_once is not None and calls.head_tokens > at_once:
            detail += f"; logits of {calls.head_tokens} tokens at a time, {at_once} are asked for"
        return self.found(calls.calls == wanted > 0 and not too_many, detail, measured=calls.calls, limit=wanted)


def _most_logits(trace: Trace) -> int | None:
    """Tokens that a part of the loss may take; None for a loss in one piece.

    A part has a position of every row more than it scores, and one position at least.
    """
    chunk, rows = trace.run["training"]["loss_chunk_tokens"], trace.run["training"]["micro_batch_size"]
    return None if chunk is None else max(chunk, rows) + rows
