"""How far a loop steps its schedule, of the steps that this was made for: known when the loop has ended.

A schedule may as well count micro-batches; one that is made for the optimizer's steps may not. Imports torch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from tunecheck.core.evidence import ScheduleTaken
from tunecheck.listen.ranks import rank_and_processes
from tunecheck.probes.resumed import steps_taken
from tunecheck.training.hooks import same_optimizer


class Schedules:
    """The schedules of these optimizers that say for how many steps they are made, held from now on."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
        own = list(optimizers)
        alone = rank_and_processes()[1] == 1  # accelerate steps a schedule once for each process
        made = (thing for thing in gc.get_objects() if issubclass(type(thing), LRScheduler)) if alone else ()
        self._begun = [
            (schedule, steps, int(schedule.last_epoch), steps_taken(schedule.optimizer))
            for schedule in made
            if (steps := _made_for(schedule)) and any(same_optimizer(schedule.optimizer, each) for each in own)
        ]

    def taken(self) -> list[ScheduleTaken]:
        """Return how far each was stepped since then, of those whose optimizer counts its own steps, as Adam's do."""
        return [
            ScheduleTaken(made_for=steps, taken=int(schedule.last_epoch) - first, optimizer_steps=count)
            for schedule, steps, first, before in self._begun
            if (count := steps_taken(schedule.optimizer) - before) > 0
        ]


def _made_for(schedule: Any) -> int:
    """Return the steps to a schedule's end; 0 where it has none, or does not say."""
    if isinstance(schedule, LambdaLR):  # transformers' are such ones
        own = [getattr(factor, "keywords", {}).get("num_training_steps", 0) for factor in schedule.lr_lambdas]
        return int(own[0]) if len(set(own)) == 1 else 0
    if isinstance(schedule, OneCycleLR):
        return int(schedule.total_steps)
    return int(schedule.T_max) if isinstance(schedule, CosineAnnealingLR) else 0
