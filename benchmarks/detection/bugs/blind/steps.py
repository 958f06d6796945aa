"""Held-out faults of optimizer, schedule, clipping, precision and seeding. Imports torch; child process only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from benchmarks.detection.bugs.parts import after_step, before_step, layers, lora_parameters
from suite.training import native

if TYPE_CHECKING:
    from suite.training.session import Session


def no_bias_correction(session: Session) -> None:
    """Adam's moments are used as they are: its step count is so large that the correction is none."""

    def count_many() -> None:
        for state in session.optimizer.state.values():
            state["step"].fill_(1e6)

    before_step(session, count_many)


def second_moment_in_bf16(session: Session) -> None:
    """Adam's second moment is stored in bf16, where a change of a thousandth is rounded away."""

    def rounded() -> None:
        for state in session.optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())

    after_step(session, rounded)


def last_layer_a_step_late(session: Session) -> None:
    """The last layer is updated with the gradient of the step before: an overlapped copy was not waited for."""
    late = [parameter for parameter in layers(session)[-1].parameters() if parameter.requires_grad]
    kept: dict[int, torch.Tensor] = {}

    def swap() -> None:
        for number, parameter in enumerate(late):
            if parameter.grad is not None:
                now = parameter.grad.clone()
                parameter.grad.copy_(kept.get(number, torch.zeros_like(now)))
                kept[number] = now

    before_step(session, swap)


def schedule_over_micro_batches(session: Session) -> None:
    """The schedule is planned for micro-batches but advanced once a step: a warm-up too long, an end never reached."""
    training = session.run.training
    planned = training.model_copy(update={"max_steps": training.max_steps * training.gradient_accumulation_steps})
    session.scheduler = native.make_scheduler(session.optimizer, planned)


def clipped_one_by_one(session: Session) -> None:
    """Each tensor's gradient is clipped to the limit by itself, so that all together they may be far above it."""

    def clip(parameters: list[torch.nn.Parameter], max_norm: float | None) -> torch.Tensor:
        limit = math.inf if max_norm is None else max_norm
        norms = [torch.nn.utils.clip_grad_norm_([parameter], limit) for parameter in parameters]
        total: torch.Tensor = torch.stack(norms).square().sum().sqrt()
        return total

    native.clip_gradients = clip


def weights_rounded_to_bf16(session: Session) -> None:
    """After every step what learns is rounded to bf16: no master copy keeps the small updates."""
    trained = [parameter for parameter in session.model.parameters() if parameter.requires_grad]

    def rounded() -> None:
        for parameter in trained:
            parameter.data.copy_(parameter.data.bfloat16())

    after_step(session, rounded)


def adapters_not_seeded(session: Session) -> None:
    """lora_A is drawn from a generator of its own that nobody has seeded: the same seed gives other runs."""
    generator = torch.Generator(device=session.device)
    generator.seed()
    for _, parameter in lora_parameters(session, "lora_A"):
        torch.nn.init.kaiming_uniform_(parameter.data, a=math.sqrt(5), generator=generator)
