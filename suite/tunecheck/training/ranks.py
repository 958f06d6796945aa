"""The processes, or ranks, of one training: which one this is, and what they exchange. Child process only."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as distributed

from tunecheck.config.schema import Run
from tunecheck.training.data import Batch
from tunecheck.training.tensors import shard

T = TypeVar("T")
N = TypeVar("N", int, torch.Tensor)

BACKEND = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}
"""Process groups by the device that computes: gradient clipping also reduces over what lies on the CPU."""
_waited_seconds = 0.0


def join(run: Run, device: str) -> None:
    """Join this run's process group. A collective waits as long as the attempt may take: a slow rank must not fail."""
    global _waited_seconds
    begun = time.perf_counter()
    distributed.init_process_group(BACKEND[device], timeout=timedelta(seconds=run.deadline))
    _waited_seconds = time.perf_counter() - begun


@dataclass(slots=True, kw_only=True)
class Group:
    """The processes of a training, of which this is one."""

    rank: int = 0
    count: int = 1
    _group: Any = None
    """torch's, where it is another than the training's own."""

    def share(self, items: Sequence[T]) -> list[T]:
        """Return this rank's part of what is done once by all: every so many, from its own number on."""
        return list(items[self.rank :: self.count])

    def gathered(self, mine: T) -> list[T]:
        """Return what each rank gives, in their order."""
        if self.count == 1:
            return [mine]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, mine, group=self._group)
        return found


@dataclass(slots=True, kw_only=True)
class Ranks(Group):
    """What the training loop needs of the other ranks. Of a training in one process every method does nothing."""

    _replica: Any = None
    sharded: Any = None
    """The model, where FSDP2 has sharded it over the ranks."""

    @classmethod
    def of(cls, run: Run) -> "Ranks":
        """Return the ranks of this run, whose process group has been joined."""
        return cls() if run.parallel is None else cls(rank=distributed.get_rank(), count=distributed.get_world_size())

    def distribute(self, model: Any, run: Run) -> None:
        """Have the ranks train this model together: all begin with rank 0's weights, and gradients are averaged."""
        if run.parallel is not None and run.parallel.engine == "fsdp":
            shard(model, next(model.parameters()).device.type)
            self.sharded = model
        elif self.count > 1:
            self._replica = torch.nn.parallel.DistributedDataParallel(model)

    def seed(self, seed: int) -> None:
        """Seed this rank's dropout: the ranks' masks must differ, as those of the micro-batches of one process do."""
        if self.count > 1:
            torch.manual_seed(seed + self.rank)

    def in_training(self, model: Any) -> Any:
        """Return what a forward pass calls: with gradients DDP's wrapper, whose backward pass averages them."""
        return self._replica if self._replica is not None and torch.is_grad_enabled() else model

    def summing(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch's passes: the ranks exchange gradients in the window's last one alone."""
        if self.sharded is not None:
            self.sharded.set_requires_gradient_sync(last)
        return nullcontext() if last or self._replica is None else self._replica.no_sync()

    def total(self, value: N) -> N:
        """Return the sum of this number over all ranks."""
        if self.count == 1:
            return value
        summed = torch.as_tensor(value).clone()
        distributed.all_reduce(summed)
        return int(summed) if isinstance(value, int) else summed

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.count > 1:
            distributed.barrier()


@dataclass(slots=True, kw_only=True)
class Exchange(Group):
    """What probes exchange: a group of their own, so that no probe's collective can meet one of the training's."""

    waited_seconds: float = 0.0
    """Time until all had joined the training's group."""

    @classmethod
    def of(cls, run: Run) -> "Exchange":
        """Make the group; every rank must. It waits as long as the training's own."""
        if run.parallel is None:
            return cls()
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=run.deadline))
        rank, count = distributed.get_rank(), distributed.get_world_size()
        return cls(rank=rank, count=count, waited_seconds=_waited_seconds, _group=group)

    def window(self, mine: Sequence[Batch]) -> Sequence[Batch]:
        """Return the micro-batches of all ranks for one step, in turn: one of each rank, then the next of each."""
        if self.count == 1:
            return mine
        return [batch for turn in zip_longest(*self.gathered(list(mine))) for batch in turn if batch is not None]
