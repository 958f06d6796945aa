"""How far a loop steps its schedule, of the steps that this was made for: known when the loop has ended.

A schedule may as well count micro-batches; one that is made for the optimizer's steps may not. Imports torch.
"""

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
            (schedule, lasts, int(schedule.last_epoch), steps_taken(schedule.optimizer))
            for schedule in made
            if any(lasts := made_for(schedule)) and any(same_optimizer(schedule.optimizer, each) for each in own)
        ]

    def taken(self) -> list[ScheduleTaken]:
        """Return how far each was stepped since then, of those whose optimizer counts its own steps, as Adam's do."""
        return [
            ScheduleTaken(
                made_for=max(0, steps - first),  # a resumed one has steps behind it
                warmup=max(0, warmup - first),
                taken=int(schedule.last_epoch) - first,
                optimizer_steps=count,
            )
            for schedule, (steps, warmup), first, before in self._begun
            if (count := steps_taken(schedule.optimizer) - before) > 0
        ]


def made_for(schedule: Any) -> tuple[int, int]:
    """Return the steps to a schedule's end, and those of its warm-up; 0 where it has none, or does not say."""
    if isinstance(schedule, LambdaLR):  # transformers' are such ones
        own = [getattr(factor, "keywords", {}) for factor in schedule.lr_lambdas]
        steps, warmup = ({given.get(f"num_{kind}_steps", 0) for given in own} for kind in ("training", "warmup"))
        return int(steps.pop()) if len(steps) == 1 else 0, int(warmup.pop()) if len(warmup) == 1 else 0
    if isinstance(schedule, OneCycleLR):
        return int(schedule.total_steps), 0
    return int(schedule.T_max) if isinstance(schedule, CosineAnnealingLR) else 0, 0
