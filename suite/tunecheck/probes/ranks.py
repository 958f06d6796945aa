"""Where several ranks train one model: whether it stays the same in all, is dealt out evenly, and keeps one pace."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch.distributed import distributed_c10d

from tunecheck.core.evidence import Joined, Pace, Replica, Shard
from tunecheck.core.premises import Premise
from tunecheck.models.layer_names import stacked_layers
from tunecheck.probes.reference.measures import digest, hex_digest
from tunecheck.training.events import Probe
from tunecheck.training.session import Session
from tunecheck.training.tensors import moment, seconds_between

NAMED_STEPS = 2
"""First steps after which each tensor's digest is kept, so that the one that differs can be named."""


class ReplicaProbe(Probe[Replica]):
    """Takes digests where several processes train; the comparison is a check's."""

    def start(self, session: Session) -> None:
        self._done = 0
        self._take(session, 0, named=True)

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Take what the steps before this one left: replicas may be averaged after a step."""
        if step:
            self._take(session, step, named=step <= NAMED_STEPS)

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        self._done = step + 1

    def end(self, session: Session) -> None:
        if self._done:
            self._take(session, self._done, named=True)

    def _take(self, session: Session, steps: int, *, named: bool) -> None:
        """Take all tensors, or after a step those that may change. A module of another's may count what it has seen."""
        if session.processes == 1:
            return
        parameters = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad or not steps]
        buffers = session.model.named_buffers() if session.run.holds(Premise.STATE_DECLARED) else ()
        each = {name: hex_digest(digest(tensor)) for name, tensor in (*parameters, *buffers)}
        wrapped = isinstance(session.model, torch.nn.parallel.DistributedDataParallel)
        seen = Replica(steps=steps, digest=hex_digest(each), wrapped=wrapped, exchanges=_exchanges())
        self.emit(replace(seen, tensors=each) if named else seen)


def _exchanges() -> int | None:
    """Return how often this process has exchanged anything with others, in all of its groups; None if nobody counts."""
    with suppress(Exception):  # a backend that numbers nothing, or another version's name of the groups
        groups: Iterable[Any] = distributed_c10d._world.pg_map
        return int(sum(group._get_sequence_number_for_group() for group in groups))
    return None


class ShardProbe(Probe[Shard]):
    """Adds up bytes when gradients and, after the first step, the optimizer's state are there."""

    def backward_end(self, session: Session, step: int) -> None:
        if session.whole is None:
            return
        held, even, larger = Counter[str](), Counter[str](), []
        for kind, name, tensor in session.whole.parts():
            part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            here, rows = part.numel() * tensor.element_size(), len(tensor)
            # of the largest part when its rows are dealt out evenly, as FSDP2 does
            share = ceil(rows / session.exchange.count) * (tensor.nbytes // rows) if rows else 0
            held[kind] += here
            even[kind] += share
            if here > share:
                larger.append(f"{kind} of {name}")
        self.emit(Shard(step=step, held=dict(held), even=dict(even), larger=tuple(larger)))


class PaceProbe(Probe[Joined | Pace]):
    """Times the layers of each rank, recomputed ones again: steps take equally long, as all wait for the slowest."""

    def start(self, session: Session) -> None:
        """Begin to listen. FSDP2 gathers a layer before hooks that were added after its own."""
        self._device = session.device
        self._begun: list[Any] = []
        self._ended: list[Any] = []
        if session.processes == 1:
            return
        self.emit(Joined(waited_seconds=session.exchange.waited_seconds))
        for layer in stacked_layers(session.model):
            self.hooks.before(layer, lambda *_: self._note(self._begun))
            self.hooks.after(layer, lambda *_: self._note(self._ended))

    def step_begin(self, session: Session, step: int, window: object) -> None:
        self._begun.clear()
        self._ended.clear()

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Record this step's time; on a GPU its forward passes are long over."""
        tokens = sum(batch.input_ids.numel() for batch in session.exchange.share(session.window))
        if session.processes > 1 and tokens and len(self._begun) == len(self._ended):
            self.emit(Pace(step=step, seconds=sum(map(seconds_between, self._begun, self._ended)), tokens=tokens))

    def _note(self, marks: list[Any]) -> None:
        if torch.is_grad_enabled():
            marks.append(moment(self._device))
