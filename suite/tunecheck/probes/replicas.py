"""Digests of every rank's model, step by step: replicas that are trained together stay the same, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tunecheck.core.evidence import Replica
from tunecheck.probes.reference.measures import digest
from tunecheck.training.events import Probe
from tunecheck.training.session import Session

NAMED_STEPS = 2
"""First steps after which each tensor's digest is kept, so that the one that differs can be named."""


class ReplicaProbe(Probe):
    """Takes digests where several processes train; the comparison is a check's."""

    emits = (Replica,)

    def start(self, session: Session) -> None:
        """Take everything that the training starts from."""
        self._done = 0
        self._wrapped = isinstance(session.model, torch.nn.parallel.DistributedDataParallel)
        if session.processes > 1:
            self._take(0, [*session.model.named_parameters(), *_buffers(session)], named=True)

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Take what the steps before this one left: replicas may be averaged after a step."""
        if step:
            self._take_trained(session, step, named=step <= NAMED_STEPS)

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Count the steps."""
        self._done = step + 1

    def end(self, session: Session) -> None:
        """Take what all of them left."""
        if self._done:
            self._take_trained(session, self._done, named=True)

    def _take_trained(self, session: Session, steps: int, *, named: bool) -> None:
        """Take what may change: trained tensors and buffers."""
        if session.processes > 1:
            trained = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad]
            self._take(steps, [*trained, *_buffers(session)], named=named)

    def _take(self, steps: int, tensors: Iterable[tuple[str, torch.Tensor]], *, named: bool) -> None:
        each = {name: _hex(repr(digest(tensor))) for name, tensor in tensors}
        seen = Replica(steps=steps, digest=_hex(repr(each)), wrapped=self._wrapped, exchanges=_exchanges())
        self.emit(replace(seen, tensors=each) if named else seen)


def _buffers(session: Session) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the buffers; none of a training that is not ours, whose module may count in them what it has seen."""
    return () if "watched" in session.run.features else session.model.named_buffers()


def _exchanges() -> int | None:
    """Return how often this process has exchanged anything with others, in all of its groups; None if nobody counts."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0
    with suppress(Exception):  # a backend that numbers nothing, or another version's name of the groups
        groups: Iterable[Any] = distributed_c10d._world.pg_map
        return int(sum(group._get_sequence_number_for_group() for group in groups))
    return None


def _hex(text: str) -> str:
    """Return 16 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
