"""Digests of every rank's model, step by step: replicas that are trained together stay the same, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from suite.core.evidence import Replica
from suite.probes.reference.measures import digest
from suite.training.events import Probe
from suite.training.session import Session

NAMED_STEPS = 2
"""First steps after which each tensor's digest is kept, so that the one that differs can be named."""


class ReplicaProbe(Probe):
    """Takes digests where several processes train; the comparison is a check's."""

    emits = (Replica,)

    def start(self, session: Session) -> None:
        """Take everything that the training starts from."""
        if session.processes > 1:
            self._take(0, [*session.model.named_parameters(), *_buffers(session)], named=True)

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Take what may change: trained tensors and buffers."""
        if session.processes > 1:
            trained = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad]
            last = step + 1 == session.run.training.max_steps
            named = step < NAMED_STEPS or last
            self._take(step + 1, [*trained, *_buffers(session)], named=named)

    def _take(self, steps: int, tensors: Iterable[tuple[str, torch.Tensor]], *, named: bool) -> None:
        each = {name: _hex(repr(digest(tensor))) for name, tensor in tensors}
        self.emit(Replica(steps=steps, digest=_hex(repr(each)), tensors=each if named else {}))


def _buffers(session: Session) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the buffers; none of a training that is not ours, whose module may count in them what it has seen."""
    return () if "watched" in session.run.features else session.model.named_buffers()


def _hex(text: str) -> str:
    """Return 16 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
