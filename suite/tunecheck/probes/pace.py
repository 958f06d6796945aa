"""How fast each rank computes: the time of its layers' forward passes, which hold no exchange with other ranks.

The steps of all ranks take equally long, since each waits for the slowest: what lies between two exchanges differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from tunecheck.core.evidence import Joined, Pace
from tunecheck.models.layer_names import stacked_layers
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe, probing
from tunecheck.training.session import Session


class PaceProbe(Probe):
    """Times the layers where several processes train; checkpointed ones are timed again when they are recomputed."""

    emits = (Joined, Pace)

    def start(self, session: Session) -> None:
        """Begin to listen. FSDP2 gathers a layer before hooks that were added after its own."""
        self._cuda = session.device.type == "cuda"
        self._begun: list[Any] = []
        self._ended: list[Any] = []
        self._several = session.processes > 1
        if not self._several:
            return
        self.emit(Joined(waited_seconds=session.exchange.waited_seconds))
        for layer in stacked_layers(session.model):
            self.hooks.before(layer, lambda *_: self._note(self._begun))
            self.hooks.after(layer, lambda *_: self._note(self._ended))

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Forget what passed between two steps."""
        self._begun.clear()
        self._ended.clear()
        self._window = window

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Record this step's time; on a GPU its forward passes are long over."""
        tokens = sum(batch.input_ids.numel() for batch in session.exchange.share(self._window))
        if self._several and tokens and len(self._begun) == len(self._ended):
            self.emit(Pace(step=step, seconds=self._seconds(), tokens=tokens))

    def end(self, session: Session) -> None:
        """Listen no more."""
        self.hooks.remove()

    def _note(self, marks: list[Any]) -> None:
        if probing() or not torch.is_grad_enabled():
            return
        if not self._cuda:
            marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        marks.append(event)

    def _seconds(self) -> float:
        pairs = list(zip(self._begun, self._ended, strict=True))
        if not self._cuda:
            return float(sum(end - begin for begin, end in pairs))
        if pairs:
            pairs[-1][1].synchronize()
        return sum(float(begin.elapsed_time(end)) for begin, end in pairs) / 1000
