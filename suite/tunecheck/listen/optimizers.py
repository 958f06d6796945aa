"""What the optimizers of a training declare: groups, rates, schedules, and the tensors that they hold."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LRScheduler, OneCycleLR, StepLR

from tunecheck.core.evidence import OtherOptimizer, ScheduleTaken
from tunecheck.listen.options import rank_and_processes
from tunecheck.probes.reference.measures import living
from tunecheck.probes.round_trip import steps_taken
from tunecheck.training.hooks import nothing, rate_of, same_optimizer, tensors_of


def without_rate(*optimizers: Any) -> bool:
    """Return whether every group has a rate of 0, by which a step changes nothing. None is an optimizer's own."""
    return all(rate_of(group) == 0 for optimizer in optimizers for group in optimizer.param_groups)


def highest_rate(*optimizers: Any) -> float:
    """Return the highest rate of all groups; 1.0 where the optimizer sets its own (None)."""
    return max((rate_of(group) for optimizer in optimizers for group in optimizer.param_groups), default=1.0)


def adamw_settings(optimizer: Any, *, own: bool = False) -> tuple[dict[str, Any], str]:
    """Return an AdamW's settings as fields of a run's training, or nothing and why; `own` rates may differ by group."""
    from tunecheck.runner.setup import optimizer_kind

    first, parts = optimizer.param_groups[0], getattr(optimizer, "parts", [optimizer])
    keys = ("betas", "eps") if own else ("lr", "weight_decay", "betas", "eps", "initial_lr")
    if any(group.get(key) != first.get(key) for group in optimizer.param_groups for key in keys):
        return {}, "the optimizer's parameter groups have different settings"
    switches = [name for name in ("amsgrad", "maximize") if any(group.get(name) for group in optimizer.param_groups)]
    kinds = " and ".join(sorted({optimizer_kind(part) for part in parts}))
    if switches or kinds != "AdamW":
        return {}, f"tunecheck does not know the closed form of {' with '.join([kinds, *switches])}"
    return {
        "learning_rate": float(first.get("initial_lr") or first["lr"] or 1.0),  # of a tensor, too
        "weight_decay": float(first["weight_decay"]),
        "adam_beta1": float(first["betas"][0]),
        "adam_beta2": float(first["betas"][1]),
        "adam_epsilon": float(first["eps"]),
    }, ""


def optimizers_of(model: Any) -> list[Any]:
    """Return the fewest optimizers that hold what the model learns, the one with most of it first; [] without any."""
    learns = {id(p) for p in model.parameters() if p.requires_grad}
    # an old one that is not yet collected holds the same tensors
    return fewest_with(learns, [(optimizer, held_by(optimizer)) for optimizer in _all_optimizers()])


def fewest_with(missing: set[int], holders: Sequence[tuple[Any, set[int]]]) -> list[Any]:
    """Return the fewest of these things that hold what they can of what is missing, the one with most of it first."""
    found = []
    while holders:
        thing, held = max(holders, key=lambda pair: len(pair[1] & missing))
        if not held & missing:
            break
        found.append(thing)
        missing = missing - held
    return found


HEARD: WeakSet[Any] = WeakSet()
"""Optimizers of trainings that were listened to, which may go on beside another that they are no part of."""


def _all_optimizers() -> list[Any]:
    """Return the optimizers of this process, without those around another, as accelerate's."""
    found = living(torch.optim.Optimizer)
    inner = [each for each in found if hasattr(each, "param_groups") and not hasattr(each, "optimizer")]
    return [each for each in inner if not any(same_optimizer(each, own) for own in HEARD)]


def held_by(*optimizers: Any) -> set[int]:
    """Return the identities of the tensors that these optimizers hold."""
    return {id(p) for optimizer in optimizers for p in tensors_of(optimizer)}


class _Together:
    """Several optimizers that step one after the other, as one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.parts = optimizers

    @property
    def state(self) -> dict[Any, Any]:
        return {tensor: state for optimizer in self.parts for tensor, state in optimizer.state.items()}


def together(optimizers: Sequence[Any]) -> Any:
    """Return these optimizers as one, by the name of their classes: that of AdamW, where all are."""
    if len(optimizers) == 1:
        return optimizers[0]
    kinds = sorted({type(optimizer).__name__ for optimizer in optimizers})
    return type(" and ".join(kinds), (_Together,), {})(optimizers)


class OtherOptimizers:
    """The optimizers of other tensors than the model's, and what its own hold beside: do they step, with gradients?"""

    def __init__(self, own: Sequence[Any], model: Any) -> None:
        held, inside = held_by(*own), {id(p) for p in model.parameters()}
        self._beside = [p for optimizer in own for p in tensors_of(optimizer) if id(p) not in inside]
        self._own, self._idle = type(own[0]).__name__, 0
        others = [optimizer for optimizer in _all_optimizers() if held.isdisjoint(held_by(optimizer))]
        self._held, self._there = held, WeakSet(each for each in _all_optimizers() if each not in own)
        twins = any(held == held_by(each) for each in self._there)
        self._learnt = {id(p) for p in (living(torch.nn.Parameter) if twins else ()) if p.grad is not None}
        self._seen: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary((other, Counter()) for other in others)
        # gradients that are there may be those of an earlier training in this process
        self._waiting = {id(other): _waiting_of(other) for other in others}
        self._model_steps = 0

    def before_step(self, optimizer: Any) -> None:
        """This one is about to step."""
        if optimizer in self._seen:
            self._seen[optimizer]["steps"] += 1
            self._seen[optimizer]["without_gradient"] += all(p.grad is None for p in tensors_of(optimizer))

    def before_model_step(self) -> None:
        """The gradients of the model are complete: those of others that wait for their step are there, too."""
        self._model_steps += 1
        self._idle += all(p.grad is None for p in self._beside)
        for optimizer, seen in self._seen.items():
            (before, count), now = self._waiting[id(optimizer)], _waiting_of(optimizer)
            seen["waiting"] += now[0]() is not None and (now[0]() is not before() or now[1] != count)
            self._waiting[id(optimizer)] = now

    def takes_over(self, optimizer: Any, step: int) -> list[OtherOptimizer]:
        """Return what one of the model's tensors leaves to none, or that it is new; nothing of others."""
        held, anew = held_by(*_all_optimizers()) | self._learnt, not step or optimizer not in self._there
        waiting = [] if anew or held_by(optimizer) != self._held else living(torch.nn.Parameter)
        unheld = sum(p.grad is not None and id(p) not in held for p in waiting)
        name, size = type(optimizer).__name__, len(tensors_of(optimizer))
        found = OtherOptimizer(name=name, tensors=size, model_steps=step, anew=anew, unheld=unheld)
        return [found] if anew or unheld else []

    def records(self) -> list[OtherOptimizer]:
        """Return what each of them did, once."""
        steps = self._model_steps
        found = [(type(other).__name__, tensors_of(other), seen) for other, seen in self._seen.items()]
        if self._beside:
            found.append((f"part of the {self._own}", self._beside, Counter(steps=steps, without_gradient=self._idle)))
        self._seen.clear()
        self._beside = []
        counts: list[dict[str, Any]] = [{**seen, "name": name, "tensors": len(held)} for name, held, seen in found]
        return [OtherOptimizer(model_steps=steps, **each) for each in counts]


def _waiting_of(optimizer: Any) -> tuple[Callable[[], Any], int]:
    """Return what tells the first gradient other than zero that its tensors hold, and how often it was written to."""
    gradients = (p.grad for p in tensors_of(optimizer) if p.grad is not None)
    found = next((gradient for gradient in gradients if bool(gradient.any())), None)
    return (nothing, 0) if found is None else (ref(found), found._version)


STILL_RISING = 0.8
"""Of the rate that a warm-up would have at a training's end, what is less has fallen since."""
MOST_RATE = 0.5
"""A larger one is a stand-in for a rate that the loop writes."""


def _rate(optimizer: Any) -> float:
    """Return the rate of an optimizer's first group; 0 for none, and for a tensor, which may lie on a GPU."""
    groups = [*optimizer.param_groups, {}]
    return float(rate) if isinstance(rate := groups[0].get("lr"), float | int) else 0.0


def _made_with(optimizer: Any) -> float:
    """Return the rate with which an optimizer is made; 0 for none that is meant."""
    rate = getattr(optimizer, "defaults", {}).get("lr")
    return float(rate) if isinstance(rate, float | int) and rate < MOST_RATE else 0.0


class Schedules:
    """The schedules of these optimizers that say for how many steps they are made, held from now on."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        alone = rank_and_processes()[1] == 1  # accelerate steps a schedule once for each process
        made = [one for one in living(LRScheduler) if alone and hasattr(one, "last_epoch")]  # a chain has none
        held = [one for one in made if any(same_optimizer(one.optimizer, each) for each in optimizers)]
        self._all = [(schedule, int(schedule.last_epoch)) for schedule in held]
        self._begun = [
            (schedule, lasts, first, steps_taken(schedule.optimizer))
            for schedule, first in self._all
            if any(lasts := made_for(schedule)) or halves(schedule) or isinstance(schedule, LambdaLR)
        ]
        self._halved: list[ScheduleTaken] = []
        self._calls = self._counted()
        bare = optimizers if alone and not self._all else ()
        self._by_hand = [
            (weakref.ref(one), _rate(one), steps_taken(one)) for one in bare if _rate(one) < _made_with(one)
        ]
        """Those without a schedule that begin below the rate that they are made with, which a loop may write."""
        self._rising: list[tuple[Any, float, float, int]] = []
        """Of these: a first rate, and by how much it rises in each step."""

    def _counted(self) -> list[int]:
        """Return how often each was called: one that is told the epoch may stay where it is."""
        return [getattr(schedule, "_step_count", 0) for schedule, _ in self._all]

    def listened(self, steps: int) -> None:
        """Note how far those without an end were stepped in these optimizer steps, all that are listened to."""
        for held, first, before in self._by_hand if steps > 1 and not self._rising else ():
            if (one := held()) is not None and _rate(one) > first:
                self._rising.append((held, first, (_rate(one) - first) / (steps - 1), before))
        endless = [(halves(one), int(one.last_epoch) - first) for one, _, first, _ in self._begun if halves(one)]
        found = [ScheduleTaken(made_for=0, taken=taken, optimizer_steps=steps, halves=half) for half, taken in endless]
        self._halved = self._halved or found

    def taken(self) -> list[ScheduleTaken]:
        """Return how far each was stepped since then, of those whose optimizer counts its own steps, as Adam's do."""
        for held, first, slope, before in self._rising:
            if (one := held()) is None or (taken := steps_taken(one) - before) < 1:
                continue
            warmup = math.ceil((_made_with(one) - first) / slope)
            if STILL_RISING * (first + slope * taken) < _rate(one) < _made_with(one) and warmup >= taken:
                return [ScheduleTaken(made_for=0, warmup=warmup, taken=taken, optimizer_steps=taken)]
        if all(int(schedule.last_epoch) == first for schedule, first in self._all) and self._calls == self._counted():
            counts = [steps_taken(schedule.optimizer) - before for schedule, _, _, before in self._begun]
            return [ScheduleTaken(made_for=0, taken=0, optimizer_steps=max(0, *counts), never=True)] if counts else []
        return self._halved + [
            ScheduleTaken(
                made_for=max(0, (steps or lowest_at(schedule)) - first),  # a resumed one has steps behind it
                warmup=max(0, warmup - first),
                taken=int(schedule.last_epoch) - first,
                optimizer_steps=count,
            )
            for schedule, (steps, warmup), first, before in self._begun
            if (steps or warmup or lowest_at(schedule)) and (count := steps_taken(schedule.optimizer) - before) > 0
        ]


def halves(schedule: Any) -> float:
    """Return the steps in which a schedule without an end halves its rate; 0 where it does not."""
    if not isinstance(schedule, StepLR | ExponentialLR) or not 0 < schedule.gamma < 1:
        return 0.0
    return getattr(schedule, "step_size", 1) * math.log(0.5) / math.log(schedule.gamma)


def lowest_at(schedule: Any) -> int:
    """Return the step at which a rate that a function gives was lowest first, if it falls in most steps; else 0.

    One that stays at a share of the highest rate, and falls to it in half of the steps or more, goes on by plan.
    """
    if not isinstance(schedule, LambdaLR) or (taken := int(schedule.last_epoch)) < 1:
        return 0
    every = -(-taken // 1000)  # its function is asked for so many steps once more
    rates = [max(factor(step) for factor in schedule.lr_lambdas) for step in range(0, taken + 1, every)]
    highest = rates.index(max(rates))
    lowest = rates.index(min(rates[highest:]), highest)
    falls = 2 * len({*rates[highest : lowest + 1]}) > lowest - highest and 2 * rates[lowest] < rates[highest]
    # with a hundredth of its highest rate it hardly learns
    stays = max(rates[lowest:]) == rates[lowest] > 0.01 * rates[highest] and 2 * lowest >= len(rates)
    return lowest * every if falls and not stays else 0


def made_for(schedule: Any) -> tuple[int, int]:
    """Return the steps to a schedule's end, and those of its warm-up; 0 where it has none, or does not say."""
    if isinstance(schedule, LambdaLR):  # transformers' are such ones
        own = [getattr(factor, "keywords", {}) for factor in schedule.lr_lambdas]
        steps, warmup = ({given.get(f"num_{kind}_steps", 0) for given in own} for kind in ("training", "warmup"))
        length, rising = (int(given.pop()) if len(given) == 1 else 0 for given in (steps, warmup))
        return max(length, rising) if length else 0, rising  # it rises to its warm-up's end, however short it is
    if isinstance(schedule, OneCycleLR):
        return int(schedule.total_steps), 0
    return int(schedule.T_max) if isinstance(schedule, CosineAnnealingLR) else 0, 0
