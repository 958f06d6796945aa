"""Optimizers, schedules and clipping that do something else than AdamW on this window's gradient."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import after_step, before_step, change_window, lora_parameters

if TYPE_CHECKING:
    from suite.training.session import Session


def scheduler_per_micro_batch(session: Session) -> None:
    """The scheduler steps once a micro-batch."""
    step = session.scheduler.step

    def often() -> None:
        for _ in range(session.run.training.gradient_accumulation_steps):
            step()

    session.scheduler.step = often


def learning_rate_nothing(session: Session) -> None:
    """The rate is a billionth of what it should be."""
    session.scheduler.base_lrs = [rate * 1e-9 for rate in session.scheduler.base_lrs]


def another_schedule(session: Session) -> None:
    """The rate falls linearly where the run says cosine."""
    from transformers import get_scheduler

    steps = session.run.training.max_steps
    session.scheduler = get_scheduler("linear", session.optimizer, num_warmup_steps=1, num_training_steps=steps)


def rate_reported_not_used(session: Session) -> None:
    """The optimizer shows the right rate, and steps with half of it."""
    step, groups = session.optimizer.step, session.optimizer.param_groups

    def halved(*args: Any, **kwargs: Any) -> Any:
        shown = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] /= 2
        result = step(*args, **kwargs)
        for group, rate in zip(groups, shown, strict=True):
            group["lr"] = rate
        return result

    session.optimizer.step = halved


def second_group_slower(session: Session) -> None:
    """The A matrices are in a group of their own with a tenth of the rate."""
    a = [p for _, p in lora_parameters(session, "lora_A")]
    first = session.optimizer.param_groups[0]
    first["params"] = [p for _, p in lora_parameters(session, "lora_B")]
    rate = session.run.training.learning_rate / 10
    session.optimizer.add_param_group({"params": a, "lr": 0.0, "initial_lr": rate})
    session.scheduler.base_lrs.append(rate)
    session.scheduler.lr_lambdas.append(session.scheduler.lr_lambdas[0])


def every_second_step_skipped(session: Session) -> None:
    """Every second step is not applied, while the schedule goes on."""
    step, count = session.optimizer.step, itertools.count()
    session.optimizer.step = lambda *args, **kwargs: step(*args, **kwargs) if next(count) % 2 == 0 else None


def never_steps(session: Session) -> None:
    """The optimizer's step does nothing, while everything else goes on."""
    session.optimizer.step = lambda *args, **kwargs: None


def steps_twice(session: Session) -> None:
    """Every step is taken twice with the same gradients."""
    step = session.optimizer.step

    def twice(*args: Any, **kwargs: Any) -> Any:
        step(*args, **kwargs)
        return step(*args, **kwargs)

    session.optimizer.step = twice


def gradients_never_cleared(session: Session) -> None:
    """zero_grad is missing."""
    session.optimizer.zero_grad = lambda *args, **kwargs: None


def stale_gradient(session: Session) -> None:
    """Each step is taken with the gradient of the one before it."""
    held: dict[int, torch.Tensor] = {}

    def exchange() -> None:
        for group in session.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    now = parameter.grad.clone()
                    parameter.grad.copy_(held.get(id(parameter), now))
                    held[id(parameter)] = now

    before_step(session, exchange)


def holds_stale_tensors(session: Session) -> None:
    """Half of the B matrices are replaced after the optimizer was built."""
    for name, parameter in lora_parameters(session, "lora_B")[::2]:
        owner, _, attribute = name.rpartition(".")
        setattr(session.model.get_submodule(owner), attribute, torch.nn.Parameter(parameter.detach().clone()))


def clipped_before_unscaling(session: Session) -> None:
    """Gradients are clipped while they are still scaled by 65536; the norm that is reported is the right one."""
    _clip(session, lambda clip, parameters, limit: clip(parameters, limit / 65536))


def not_clipped(session: Session) -> None:
    """The norm is measured and nothing is clipped."""
    _clip(session, lambda clip, parameters, limit: clip(parameters, None))


def clipped_one_by_one(session: Session) -> None:
    """Every tensor is clipped by its own norm; the norm of all is reported."""

    def each(clip: Any, parameters: Any, limit: float) -> Any:
        norm = clip(parameters, None)
        for parameter in parameters:
            clip([parameter], limit)
        return norm

    _clip(session, each)


def clipped_after_the_step(session: Session) -> None:
    """Clipping comes when the step is already taken."""
    from suite.training import native

    loop: Any = native
    clip, parameters = loop.clip_gradients, session.optimizer.param_groups[0]["params"]
    limit = session.run.training.max_grad_norm
    loop.clip_gradients = lambda given, _limit: clip(given, None)

    def late() -> None:
        clip(parameters, limit)

    after_step(session, late)


def norm_after_clipping_reported(session: Session) -> None:
    """The norm that is reported is that of the clipped gradients."""

    def clipped(clip: Any, parameters: Any, limit: float) -> Any:
        clip(parameters, limit)
        return clip(parameters, None)

    _clip(session, clipped)


def _clip(session: Session, change: Any) -> None:
    from suite.training import native

    loop: Any = native
    clip = loop.clip_gradients
    loop.clip_gradients = lambda parameters, limit: change(clip, parameters, 1.0 if limit is None else limit)


def _settings(session: Session, **settings: Any) -> None:
    for group in session.optimizer.param_groups:
        group.update(settings)


def decay_though_zero(session: Session) -> None:
    """Weights decay by AdamW's default although the run says 0."""
    _settings(session, weight_decay=session.run.training.weight_decay + 0.01)


def no_decay(session: Session) -> None:
    """Weights do not decay although the run says so, and the optimizer's settings look right."""
    step, groups = session.optimizer.step, session.optimizer.param_groups

    def without(*args: Any, **kwargs: Any) -> Any:
        decays = [group["weight_decay"] for group in groups]
        _settings(session, weight_decay=0.0)
        result = step(*args, **kwargs)
        for group, decay in zip(groups, decays, strict=True):
            group["weight_decay"] = decay
        return result

    session.optimizer.step = without


def decay_in_the_gradient(session: Session) -> None:
    """Weight decay is added to the gradient, as Adam does, not taken from the weight, as AdamW does."""
    decay = session.run.training.weight_decay
    no_decay(session)

    def add() -> None:
        for group in session.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(parameter.detach(), alpha=decay)

    before_step(session, add)


def betas_exchanged(session: Session) -> None:
    """beta1 and beta2 have changed places."""
    training = session.run.training
    _settings(session, betas=(training.adam_beta2, training.adam_beta1))


def epsilon_of_another_library(session: Session) -> None:
    """The epsilon is 1e-6 where the run says 1e-8."""
    _settings(session, eps=1e-6)


def no_bias_correction(session: Session) -> None:
    """The averages' bias is not corrected, as if a thousand steps lay behind."""

    def pretend() -> None:
        for state in session.optimizer.state.values():
            state["step"] += 1e5

    def take_back() -> None:
        for state in session.optimizer.state.values():
            state["step"] %= 1e5

    before_step(session, pretend)
    after_step(session, take_back)


def moments_in_bf16(session: Session) -> None:
    """The averages are rounded to bf16 after each step."""

    def round_all() -> None:
        for state in session.optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                state[key].copy_(state[key].bfloat16())

    after_step(session, round_all)


def state_lost_every_step(session: Session) -> None:
    """The optimizer forgets its averages after each step."""
    after_step(session, lambda: session.optimizer.state.clear())


def plain_gradient_descent(session: Session) -> None:
    """The optimizer is SGD."""
    training = session.run.training
    optimizer = torch.optim.SGD(session.optimizer.param_groups[0]["params"], lr=training.learning_rate)
    session.scheduler.optimizer = optimizer
    optimizer.param_groups[0]["initial_lr"] = training.learning_rate
    session.optimizer = optimizer


def goes_uphill(session: Session) -> None:
    """The step goes with the gradient, not against it."""
    _settings(session, maximize=True)


def one_adapter_updated_twice(session: Session) -> None:
    """The gradient of one tensor is doubled after the norm was taken."""
    _, parameter = lora_parameters(session, "lora_B")[0]

    def double() -> None:
        if parameter.grad is not None:
            parameter.grad.mul_(2)

    before_step(session, double)


def random_state_reset(session: Session) -> None:
    """The seed is set again at each step: dropout draws the same masks every time."""

    def seeded(step: int, window: Any) -> Any:
        torch.manual_seed(session.run.training.seed)
        return window(step)

    change_window(session, seeded)


def overflow_in_backward(session: Session) -> None:
    """The gradient of the last hidden states passes through fp16 with a scale of 2^30: it overflows."""

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        return (gradient * 2.0**30).half().to(gradient.dtype) / 2.0**30

    def watch(_module: Any, _args: Any, out: Any) -> None:
        if out.requires_grad:
            out.register_hook(overflow)

    session.model.get_decoder().norm.register_forward_hook(watch)
