"""The order of calls in a step: every gradient is used once, whole, unscaled and clipped, and the schedule follows."""

import re
from collections.abc import Iterator, Sequence

from tunecheck.core.check import Check, holding, required
from tunecheck.core.evidence import CallOrder, RanksScored, ScheduleTaken
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

DISCARDED = "gradients are cleared before an optimizer uses them"
DISCARDED_CLIPPED = "gradients are cleared before an optimizer uses them, though they were clipped"
PILED_UP = "the optimizer uses gradients again, together with those of a later backward pass"
PILED_UP_THERE = "another optimizer uses gradients again, together with those of a later backward pass"
NO_BACKWARD = "the optimizer steps, but no backward pass has given its tensors a gradient"
TWICE = "the optimizer steps twice with the same gradients"
EARLY = "the optimizer steps before the last backward pass of its window"
CLIPPED_LATE = "clipping changes gradients after the optimizer step"
CLIPPED_EARLY = "gradients are clipped before the last backward pass of their window"
CLIPPED_NOTHING = "clipping finds no gradient, since it runs between zero_grad and backward"
CLIPPED_IN_VAIN = "gradients are clipped after the optimizer step alone, when they are used up"
CLIPPED_SCALED = "gradients are clipped before unscaling"
STEPPED_SCALED = "the optimizer steps with scaled gradients"
SCHEDULE_EARLY = "the schedule is stepped before the optimizer, which skips its first rate"
SCHEDULE_TWICE = "the schedule is stepped twice per optimizer step"
SCHEDULE_AHEAD = "the schedule has one step per optimizer step, but is stepped more often"
SCHEDULE_ELSEWHERE = "the schedule changes the rate of an optimizer that does not step, beside the one that does"
UNPREPARED = "the optimizer steps while accelerate accumulates gradients"
NOT_YET = "the schedule advances after each micro-batch; only the training's end shows if it is made for that"
NOT_RESTORED = "weights are moved between two backward passes, and not moved back before the optimizer steps"
NEVER_ALLOCATED = "AdaLoRA's update_and_allocate is never called, so no rank is pruned"
MEANT = {
    CLIPPED_EARLY: "the accumulated gradient may be clipped on purpose before each micro-batch",
    DISCARDED_CLIPPED: "an optimizer may have kept them, as MARS (arXiv 2411.10438) does of a second batch",
    NO_BACKWARD: "weights may learn without gradients, as by MeZO (arXiv 2305.17333)",
    CLIPPED_NOTHING: "the gradients may be those of another model, which rests in these steps",
    CLIPPED_IN_VAIN: "it may only measure their norm",
    SCHEDULE_ELSEWHERE: "a script may copy the rate into the optimizer that steps",
    NOT_RESTORED: "noise, or an update by hand, may move the weights for good",
}
"""Fault to who does it on purpose."""
CAUSES = {
    PILED_UP: "zero_grad is missing, or runs too seldom.",
    PILED_UP_THERE: "zero_grad is missing for one of several optimizers.",
    DISCARDED: "zero_grad runs between backward and the optimizer step, or between micro-batches.",
    DISCARDED_CLIPPED: "zero_grad runs between micro-batches.",
    NO_BACKWARD: "A condition skips loss.backward(). Or the optimizer holds another model's tensors.",
    TWICE: "The loop or a callback steps the optimizer a second time.",
    SCHEDULE_TWICE: "The loop or a callback steps the schedule a second time.",
    EARLY: "The optimizer steps within an accumulation.",
    UNPREPARED: "The optimizer was not passed to accelerator.prepare, so it steps while gradients accumulate.",
    SCHEDULE_EARLY: "scheduler.step runs before optimizer.step.",
    SCHEDULE_AHEAD: "The schedule is stepped once per micro-batch.",
    SCHEDULE_ELSEWHERE: "The schedule is made of a second optimizer, so the rate never changes.",
    CLIPPED_EARLY: "Clipping runs after each micro-batch.",
    CLIPPED_NOTHING: "Clipping runs before the backward pass.",
    CLIPPED_LATE: "Clipping runs after the step.",
    CLIPPED_IN_VAIN: "Clipping runs after the step.",
    CLIPPED_SCALED: "Clipping runs before unscale_.",
    STEPPED_SCALED: "The optimizer steps without scaler.step and without unscale_.",
    NOT_RESTORED: "A sharpness-aware step (SAM) does not subtract its perturbation.",
    NEVER_ALLOCATED: "Nothing calls AdaLoRA's update_and_allocate.",
}
HABITS = frozenset({DISCARDED, DISCARDED_CLIPPED, PILED_UP, PILED_UP_THERE, CLIPPED_NOTHING, NOT_RESTORED})
HABITS |= {NO_BACKWARD, SCHEDULE_EARLY, SCHEDULE_TWICE, SCHEDULE_ELSEWHERE, CLIPPED_IN_VAIN}
"""What a training may do now and then: skip a bad batch, catch up with a schedule. Wrong only as a habit."""

ELSEWHERE = "step of another optimizer"
"""What ends the name of a call that steps one of other tensors."""
MOST_CALLS = 16
"""Calls of a step in a sentence; of more of them the middle ones are left out."""
FEWEST = 4
"""Steps of an optimizer below which it is no wonder that a schedule is made for just as many."""


class CallsInOrder(Check):
    """Backward, unscaling, clipping, optimizer, schedule and clearing are called in an order that uses each gradient
    once.

    AdaLoRA's allocator is called in each step. Weights that are moved between passes are moved back. A schedule made
    for the optimizer's steps advances once per optimizer step.
    """

    needs = frozenset({Premise.GRADIENT_WHOLE})
    meaning = " ".join(dict.fromkeys(CAUSES.values()))
    remedy = """Order each step: backward of every micro-batch, scaler.unscale_, clip_grad_norm_, optimizer.step
    (through scaler.step), scheduler.step, zero_grad. Call AdaLoRA's update_and_allocate before zero_grad; in a Trainer,
    use a callback's on_optimizer_step."""

    habit_share: float = 0.5
    """Share of the steps. A training may skip a batch or catch up with a schedule in fewer."""
    min_steps: int = 2
    """Steps that must show the same order before it counts."""
    max_schedule_share: float = 1.5
    """Steps of a schedule over optimizer steps, for a schedule made for just as many. The ratio is 1 if both advance
    together, and the number of micro-batches if the schedule advances after each of them."""

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(CallOrder)
        whole = trace.run.training.gradient_accumulation_steps == 1 and trace.holds(Premise.STEP_DECLARED)
        by_fault: dict[str, list[CallOrder]] = {}
        used = False
        for window in windows:
            for fault in dict.fromkeys(_faults(window.calls, used, one_pass=whole)):
                by_fault.setdefault(fault, []).append(window)
            # whether the step ends with gradients that the optimizer has used
            last = [call for call in window.calls if call in ("step", "backward", "clear", "keep", "edit")]
            used = last[-1:] == ["step"]
        now_and_then = max(self.min_steps - 1, self.habit_share * len(windows))
        wrong = {fault: seen for fault, seen in by_fault.items() if fault not in HABITS or len(seen) > now_and_then}
        shown = next(iter(wrong.values()), windows)[0]
        calls, half = shown.calls, MOST_CALLS // 2
        order = ", ".join(calls if len(calls) <= MOST_CALLS else (*calls[:half], "...", *calls[-half:]))
        told = {f"{fault} (in {len(seen)} of {len(windows)} steps)": fault for fault, seen in wrong.items()}
        for made in trace.records(ScheduleTaken):
            for_these = made.optimizer_steps >= FEWEST and abs(made.made_for - made.optimizer_steps) <= 1
            if for_these and made.taken > self.max_schedule_share * made.optimizer_steps:
                told[f"{SCHEDULE_AHEAD}: {made.taken} times in {made.optimizer_steps} steps"] = SCHEDULE_AHEAD
        for ranks in trace.records(RanksScored):
            if ranks.steps > ranks.begins + 1 and not ranks.scored:
                words = f"{NEVER_ALLOCATED}: {ranks.steps} steps, pruning declared from step {ranks.begins}"
                told[words] = NEVER_ALLOCATED
        within = sum(bool(re.search("backward.* schedule .*backward", " ".join(w.calls))) for w in windows)
        required(told or trace.records(ScheduleTaken) or 2 * within <= len(windows), NOT_YET)
        where = f"step {shown.step}: {order}" if told else f"{len(windows)} steps, the first: {order}"
        meant = MEANT.get(next(iter(told.values())), "") if len(told) == 1 else ""
        causes = [CAUSES[fault] for fault in told.values()]
        return self.at_most(len(told), 0, "; ".join([*told, where]), meant=meant, causes=causes)


def _faults(calls: Sequence[str], used: bool, *, one_pass: bool) -> Iterator[str]:
    """Yield what is wrong with the order of a step.

    `used`: it begins with gradients that the optimizer has used. `one_pass`: one backward pass is declared for it.
    """
    passes, steps, schedules = calls.count("backward"), 0, 0
    fresh = scaled = discarded = kept = clipped = piled = False
    by_hand = "edit" in calls or "move" in calls or any(call.endswith(ELSEWHERE) for call in calls)
    for number, call in enumerate(calls):
        match call:
            case "backward":
                piled = piled or used  # no fault yet: another model's loss may give them, and they may be cleared
                if clipped:
                    yield CLIPPED_EARLY
                fresh, used = True, False
                schedules = 0
            case "scale" | "unscale":
                scaled = call == "scale"
            case "accumulate":
                yield UNPREPARED
            case "clip nothing" if passes:
                yield CLIPPED_NOTHING
            case "clip" if scaled:
                yield CLIPPED_SCALED
            case "clip" if used:
                yield CLIPPED_LATE
            case "clip in vain" if used and "clip" not in calls and "edit" not in calls:
                yield CLIPPED_IN_VAIN
            case "clip":
                clipped = True
            case "clear":
                # a further pass may have been one to look at gradients, where one alone is declared
                again = "backward" in calls[number:]
                kept = kept or (fresh and clipped and again)
                discarded = discarded or (fresh and not (again and (one_pass or clipped)))
                fresh = used = clipped = piled = False
            case "step" | "idle step" | "skip":
                if call == "idle step" and not passes:
                    yield NO_BACKWARD
                if stepped := call == "step":
                    yield from holding({STEPPED_SCALED: scaled, TWICE: used, PILED_UP: piled, EARLY: fresh and steps})
                    steps += 1
                fresh, used, scaled, clipped, piled = False, stepped, False, False, False
            case "schedule":
                schedules += 1
                early = fresh and passes == 1 and "step" in calls[number:]
                yield from holding({SCHEDULE_TWICE: schedules > 1, SCHEDULE_EARLY: early})
            case "schedule of an optimizer that does not step":
                yield SCHEDULE_ELSEWHERE
            case "keep":
                fresh = used = clipped = piled = False
            case "edit":
                used = False
            case "unrestored move":
                yield NOT_RESTORED
            case "used step of another optimizer":
                yield PILED_UP_THERE
    if (discarded or kept) and not by_hand:
        yield DISCARDED if discarded else DISCARDED_CLIPPED
