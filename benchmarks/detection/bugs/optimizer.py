"""Optimizers and schedules that do something else than AdamW at the configured learning rate."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import (
    after_evaluation_in_the_middle,
    after_step,
    before_step,
    change_window,
    counted_steps,
    lora_parameters,
)

if TYPE_CHECKING:
    from tunecheck.training.session import Session


@bug(
    "B61",
    "The scheduler steps once a micro-batch",
    caught_by="learning_rate_trace",
    source="huggingface/accelerate#963, huggingface/transformers#24088",
)
def scheduler_per_micro_batch(session: Session) -> None:
    """Step the scheduler once per micro-batch."""
    step = session.scheduler.step

    def often() -> None:
        for _ in range(session.run.training.gradient_accumulation_steps):
            step()

    session.scheduler.step = often


@bug(
    "B63", "A learning rate of almost nothing", caught_by="learning_rate_trace", source="huggingface/transformers#34754"
)
def learning_rate_nothing(session: Session) -> None:
    """Multiply the base learning rate by 1e-9."""
    session.scheduler.base_lrs = [rate * 1e-9 for rate in session.scheduler.base_lrs]


@bug(
    "B64",
    "Skipped steps, the schedule goes on",
    caught_by="updates_match_adamw",
    source="Lightning#18828, huggingface/transformers#11106, huggingface/accelerate#139",
)
def every_second_step_skipped(session: Session) -> None:
    """Skip every second optimizer step while the schedule goes on."""
    step, count = session.optimizer.step, itertools.count()
    session.optimizer.step = lambda *args, **kwargs: step(*args, **kwargs) if next(count) % 2 == 0 else None


@bug(
    "B65",
    "All steps skipped",
    caught_by=("updates_match_adamw", "trainable_moved", "steps_applied", "adapters_applied"),
    source="unslothai/unsloth-zoo#866, huggingface/accelerate#139",
)
def never_steps(session: Session) -> None:
    """Turn the optimizer's step into a no-op while everything else goes on."""
    session.optimizer.step = lambda *args, **kwargs: None


@bug(
    "B72",
    "The optimizer holds stale tensors",
    caught_by="optimizer_coverage",
    source="huggingface/accelerate#3256, #2665, pytorch/pytorch#149205",
)
def holds_stale_tensors(session: Session) -> None:
    """Replace half of the B matrices after the optimizer was built."""
    import torch

    for name, parameter in lora_parameters(session, "lora_B")[::2]:
        owner, _, attribute = name.rpartition(".")
        setattr(session.model.get_submodule(owner), attribute, torch.nn.Parameter(parameter.detach().clone()))


@bug("X46", "Another schedule", caught_by="learning_rate_trace")
def another_schedule(session: Session) -> None:
    """Use a linear schedule where the run configures cosine."""
    from transformers import get_scheduler

    steps = session.run.training.max_steps
    session.scheduler = get_scheduler("linear", session.optimizer, num_warmup_steps=1, num_training_steps=steps)


@bug("X48", "A group with another rate", caught_by="updates_match_adamw")
def second_group_slower(session: Session) -> None:
    """Put the A matrices in a parameter group of their own with a tenth of the learning rate."""
    a = [p for _, p in lora_parameters(session, "lora_A")]
    first = session.optimizer.param_groups[0]
    first["params"] = [p for _, p in lora_parameters(session, "lora_B")]
    rate = session.run.training.learning_rate / 10
    session.optimizer.add_param_group({"params": a, "lr": 0.0, "initial_lr": rate})
    session.scheduler.base_lrs.append(rate)
    session.scheduler.lr_lambdas.append(session.scheduler.lr_lambdas[0])


@bug("X49", "Every step taken twice", caught_by="updates_match_adamw")
def steps_twice(session: Session) -> None:
    """Take every step twice with the same gradients."""
    step = session.optimizer.step

    def twice(*args: Any, **kwargs: Any) -> Any:
        step(*args, **kwargs)
        return step(*args, **kwargs)

    session.optimizer.step = twice


def _settings(session: Session, **settings: Any) -> None:
    """Update these settings in every parameter group."""
    for group in session.optimizer.param_groups:
        group.update(settings)


@bug("X55", "Weight decay though 0", caught_by="optimizer_coverage")
def decay_though_zero(session: Session) -> None:
    """Apply AdamW's default weight decay although the run configures 0."""
    _settings(session, weight_decay=session.run.training.weight_decay + 0.01)


@bug("X56", "No weight decay", caught_by="updates_match_adamw", settings=("training.weight_decay=0.1",))
def no_decay(session: Session) -> None:
    """Step without weight decay although the run configures it and the optimizer's settings look right."""
    step, groups = session.optimizer.step, session.optimizer.param_groups

    def without(*args: Any, **kwargs: Any) -> Any:
        decays = [group["weight_decay"] for group in groups]
        _settings(session, weight_decay=0.0)
        result = step(*args, **kwargs)
        for group, decay in zip(groups, decays, strict=True):
            group["weight_decay"] = decay
        return result

    session.optimizer.step = without


@bug("X57", "Weight decay in the gradient", caught_by="updates_match_adamw", settings=("training.weight_decay=0.1",))
def decay_in_the_gradient(session: Session) -> None:
    """Add the weight decay to the gradient, as Adam does, not to the weight, as AdamW does."""
    decay = session.run.training.weight_decay
    no_decay(session)

    def add() -> None:
        for group in session.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(parameter.detach(), alpha=decay)

    before_step(session, add)


@bug("X58", "Betas exchanged", caught_by=("optimizer_coverage", "updates_match_adamw"))
def betas_exchanged(session: Session) -> None:
    """Exchange beta1 and beta2."""
    training = session.run.training
    _settings(session, betas=(training.adam_beta2, training.adam_beta1))


@bug("X59", "Another epsilon in the optimizer", caught_by="optimizer_coverage")
def epsilon_of_another_library(session: Session) -> None:
    """Set epsilon to 1e-6 where the run configures 1e-8."""
    _settings(session, eps=1e-6)


@bug("X60", "No bias correction", caught_by="updates_match_adamw")
def no_bias_correction(session: Session) -> None:
    """Leave out the bias correction, as after many thousand steps."""

    def pretend() -> None:
        for state in session.optimizer.state.values():
            state["step"] += 1e5

    def take_back() -> None:
        for state in session.optimizer.state.values():
            state["step"] %= 1e5

    before_step(session, pretend)
    after_step(session, take_back)


@bug("X61", "Moments rounded to bf16", caught_by="updates_match_adamw")
def moments_in_bf16(session: Session) -> None:
    """Round both moments to bf16 after each step."""

    def round_all() -> None:
        for state in session.optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                state[key].copy_(state[key].bfloat16())

    after_step(session, round_all)


@bug("X62", "Moments lost at every step", caught_by="updates_match_adamw")
def state_lost_every_step(session: Session) -> None:
    """Clear the optimizer's state after each step."""
    after_step(session, lambda: session.optimizer.state.clear())


@bug("X63", "SGD instead of AdamW", caught_by="updates_match_adamw")
def plain_gradient_descent(session: Session) -> None:
    """Replace AdamW with SGD."""
    import torch

    training = session.run.training
    optimizer = torch.optim.SGD(session.optimizer.param_groups[0]["params"], lr=training.learning_rate)
    session.scheduler.optimizer = optimizer
    optimizer.param_groups[0]["initial_lr"] = training.learning_rate
    session.optimizer = optimizer


@bug("X64", "The step goes uphill", caught_by="updates_match_adamw")
def goes_uphill(session: Session) -> None:
    """Step along the gradient instead of against it."""
    _settings(session, maximize=True)


@bug(
    "U13",
    "The last step is never taken",
    caught_by=("updates_match_adamw", "steps_applied"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def last_step_left_out(session: Session) -> None:
    """End the loop one optimizer step early, and log the step all the same."""
    step, calls, last = session.optimizer.step, [0], session.run.training.max_steps

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return step(*args, **kwargs) if calls[0] < last else None

    session.optimizer.step = counted


@bug(
    "U14",
    "Steps with an unusual loss are left out",
    caught_by=("updates_match_adamw", "steps_applied"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def unusual_steps_left_out(session: Session) -> None:
    """Skip each step whose gradient norm exceeds all before it, as a guard against spikes."""
    step, largest = session.optimizer.step, [float("inf")]

    def guarded(*args: Any, **kwargs: Any) -> Any:
        norm = sum(float(p.grad.norm()) for _, p in lora_parameters(session) if p.grad is not None)
        spike, largest[0] = norm > largest[0], norm if largest[0] == float("inf") else max(largest[0], norm)
        return None if spike else step(*args, **kwargs)

    session.optimizer.step = guarded


def _windows(session: Session) -> int:
    """Return the micro-batches per optimizer step."""
    return session.run.training.gradient_accumulation_steps


@bug(
    "U16",
    "The schedule counts micro-batches as its length",
    caught_by="learning_rate_trace",
    source="thought up, not from a thread",
    cohort="unseen",
)
def schedule_too_long(session: Session) -> None:
    """Count the schedule's length in micro-batches: the learning rate never decays to zero."""
    from transformers import get_scheduler

    training = session.run.training
    steps = training.max_steps * _windows(session)
    session.scheduler = get_scheduler("cosine", session.optimizer, num_warmup_steps=1, num_training_steps=steps)


@bug(
    "V19",
    "Adam without bias correction",
    caught_by="updates_match_adamw",
    source="Oneflow-Inc/oneflow#5960",
    cohort="blind",
    must_say="Updates are not AdamW's: they are too large by the missing bias correction, or its step count is wrong.",
)
def bias_correction_disabled(session: Session) -> None:
    """Use Adam's moments without bias correction, by a huge step counter."""

    def count_many() -> None:
        for state in session.optimizer.state.values():
            state["step"].fill_(1e6)

    before_step(session, count_many)


@bug(
    "V20",
    "Adam's second moment is kept in bf16",
    caught_by="updates_match_adamw",
    cohort="blind",
    must_say="Updates are not AdamW's of the gradients seen, or the second moment is not the gradients' mean square.",
)
def second_moment_in_bf16(session: Session) -> None:
    """Store Adam's second moment in bf16, which rounds away changes of a thousandth."""

    def rounded() -> None:
        for state in session.optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())

    after_step(session, rounded)


@bug(
    "V22",
    "The schedule is planned over micro-batches",
    caught_by="learning_rate_trace",
    cohort="blind",
    must_say="The learning rate of a step is not the schedule's: too slow a warm-up, and it does not end at zero.",
)
def schedule_over_micro_batches(session: Session) -> None:
    """Plan the schedule for micro-batches but advance it once per step: too long a warm-up, an end never reached."""
    from tunecheck.training import native

    training = session.run.training
    planned = training.model_copy(update={"max_steps": training.max_steps * training.gradient_accumulation_steps})
    session.scheduler = native.make_scheduler(session.optimizer, planned)


@bug(
    "V24",
    "Trained weights are rounded to bf16 after every step",
    caught_by=("updates_match_adamw", "dtypes_as_configured"),
    cohort="blind",
    must_say="Updates are not AdamW's: after a step the weights are values of bf16, and small updates are lost.",
)
def weights_rounded_to_bf16(session: Session) -> None:
    """Round the trained weights to bf16 after every step, without a master copy."""
    trained = [parameter for parameter in session.model.parameters() if parameter.requires_grad]

    def rounded() -> None:
        for parameter in trained:
            parameter.data.copy_(parameter.data.bfloat16())

    after_step(session, rounded)


@bug(
    "V57",
    "Half of the adapters' tensors are spared the weight decay",
    caught_by=("optimizer_coverage", "updates_match_adamw"),
    source="ArrowLuo/CLIP4Clip#11, huggingface/transformers#26152",
    cohort="blind-second",
    must_say="Not every tensor decays as asked: some are in a group without weight decay, or updates are not AdamW's.",
)
def decay_spares_half(session: Session) -> None:
    """Put every lora_B into a parameter group without weight decay, by a filter on names."""
    from tunecheck.training import native

    spared = {id(parameter) for _, parameter in lora_parameters(session, "lora_B")}
    group = session.optimizer.param_groups[0]
    held = group["params"]
    group["params"] = [parameter for parameter in held if id(parameter) not in spared]
    kept = {key: group[key] for key in ("betas", "eps")} | {"lr": session.run.training.learning_rate}
    moved = [parameter for parameter in held if id(parameter) in spared]
    session.optimizer.add_param_group({"params": moved, "weight_decay": 0.0, **kept})
    group["lr"] = group["initial_lr"] = session.run.training.learning_rate
    session.scheduler = native.make_scheduler(session.optimizer, session.run.training)


@bug(
    "V60",
    "The schedule ends in the middle and rises again",
    caught_by="learning_rate_trace",
    source="huggingface/transformers#35484",
    cohort="blind-second",
    must_say="The learning rate of a step is not the schedule's: too low in the middle, rising at the end.",
)
def schedule_over_half_the_steps(session: Session) -> None:
    """Plan the schedule over half of the steps: the learning rate reaches zero in the middle and rises again."""
    from tunecheck.training import native

    training = session.run.training
    planned = training.model_copy(update={"max_steps": max(2, training.max_steps // 2)})
    session.scheduler = native.make_scheduler(session.optimizer, planned)


@bug(
    "V61",
    "The warm-up is applied twice",
    caught_by="learning_rate_trace",
    source="huggingface/transformers#218",
    cohort="blind-second",
    settings=("training.warmup_ratio=0.6",),
    must_say="The learning rate of a step in the warm-up is not the schedule's.",
)
def warmed_up_twice(session: Session) -> None:
    """Apply the warm-up twice: the learning rate rises with the square of the step."""
    import torch

    training = session.run.training
    steps = math.ceil(training.warmup_ratio * training.max_steps)
    factor = session.scheduler.lr_lambdas[0]
    session.scheduler = torch.optim.lr_scheduler.LambdaLR(
        session.optimizer, lambda step: factor(step) * min(1.0, step / max(1, steps))
    )


@bug("W08", "The rate is rounded to bf16 inside the optimizer", caught_by="updates_match_adamw", cohort="unseen-second")
def rate_in_bf16(session: Session) -> None:
    """Step with the configured rate rounded to bf16; the rate that is read before and after is the right one."""
    import torch

    step, groups = session.optimizer.step, session.optimizer.param_groups

    def changed(*args: Any, **kwargs: Any) -> Any:
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = float(torch.tensor(group["lr"]).bfloat16())
        result = step(*args, **kwargs)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        return result

    session.optimizer.step = changed


@bug("W09", "AMSGrad though nobody asked", caught_by="optimizer_coverage", cohort="unseen-second")
def amsgrad(session: Session) -> None:
    """Switch AMSGrad on: as long as the second moments rise it computes the same."""
    _settings(session, amsgrad=True)


@bug(
    "W10",
    "Updates halve after twenty steps",
    caught_by="updates_match_adamw",
    cohort="unseen-second",
    settings=("training.max_steps=30",),
)
def updates_halve_late(session: Session) -> None:
    """From the 23rd step on undo half of every update."""
    import torch

    at, parameters = counted_steps(session), session.optimizer.param_groups[0]["params"]
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        before = [parameter.detach().clone() for parameter in parameters]
        result = step(*args, **kwargs)
        if at[0] >= 22:
            with torch.no_grad():
                for parameter, old in zip(parameters, before, strict=True):
                    parameter.lerp_(old, 0.5)
        return result

    session.optimizer.step = changed


@bug(
    "W11",
    "Weights rounded to bf16 between two steps",
    caught_by=("weights_change_only_in_steps", "updates_match_adamw"),
    cohort="unseen-second",
)
def rounded_between_steps(session: Session) -> None:
    """Round the trained weights to bf16 when the next window is fetched, once, before the fifth step."""
    import torch

    def fetch(step: int, window: Any) -> Any:
        if step == 4:
            with torch.no_grad():
                for _, parameter in lora_parameters(session):
                    parameter.copy_(parameter.bfloat16())
        return window(step)

    change_window(session, fetch)


@bug(
    "W12",
    "Averaged weights stay in place after training",
    caught_by=("weights_change_only_in_steps", "evaluation_mode"),
    cohort="unseen-second",
)
def average_stays(session: Session) -> None:
    """Put the average of all steps' weights in the trained ones' place at the last evaluation and leave it there."""
    import torch

    at, parameters = counted_steps(session), session.optimizer.param_groups[0]["params"]
    mean = [torch.zeros_like(parameter) for parameter in parameters]
    steps, evaluate = session.run.training.max_steps, session.evaluate

    def add() -> None:
        for held, parameter in zip(mean, parameters, strict=True):
            held += parameter.detach() / steps

    def changed(*args: Any) -> tuple[float, int]:
        if at[0] == steps - 1 and session.evaluate is changed:
            session.evaluate = evaluate
            with torch.no_grad():
                for held, parameter in zip(mean, parameters, strict=True):
                    parameter.copy_(held)
        return evaluate(*args)

    after_step(session, add)
    session.evaluate = changed


@bug("W13", "Weight decay follows the peak rate", caught_by="updates_match_adamw", cohort="unseen-second")
def decay_by_the_peak_rate(session: Session) -> None:
    """Decay with the peak rate in every step, not with the schedule's."""
    import torch

    training, group = session.run.training, session.optimizer.param_groups[0]

    def decay() -> None:
        with torch.no_grad():
            for parameter in group["params"]:
                parameter.mul_(1 - (training.learning_rate - group["lr"]) * training.weight_decay)

    after_step(session, decay)


@bug(
    "W14",
    "An evaluation in the middle clears the first moments",
    caught_by="updates_match_adamw",
    cohort="unseen-second",
    settings=("evaluation.at=[3]",),
)
def moments_cleared_by_evaluation(session: Session) -> None:
    """Set the first moments to zero after an evaluation in the middle."""

    def clear() -> None:
        for state in session.optimizer.state.values():
            state["exp_avg"].zero_()

    after_evaluation_in_the_middle(session, clear)
