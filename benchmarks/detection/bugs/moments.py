"""AdamW's arithmetic, the clipping before it, the schedule beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")


def _adam(change: Callable[..., None]) -> None:
    """Replace torch's AdamW for one tensor at a time by `change(plain, params, grads, m, v, steps, options)`."""
    from torch.optim import adam

    plain: Any = adam._single_tensor_adam

    def changed(params: Any, grads: Any, m: Any, v: Any, largest: Any, steps: Any, **options: Any) -> None:
        def each(
            params: Any = params, grads: Any = grads, m: Any = m, v: Any = v, steps: Any = steps, **more: Any
        ) -> None:
            plain(params, grads, m, v, largest, steps, **{**options, **more})

        change(each, params, grads, m, v, steps, options)

    module: Any = adam
    module._single_tensor_adam = changed


@unseen(
    "Z07",
    "From the third step on the loss is climbed",
    caught_by=("updates_match_adamw", "loss_falls"),
    must_say="Updates are not AdamW's.",
)
def climbs_later(session: Session) -> None:
    """Negate the gradients from the third step on."""
    _adam(lambda plain, p, g, m, v, steps, o: plain(maximize=bool(steps[0] >= 2)))


@unseen(
    "Z08",
    "Weight decay is not multiplied by the rate",
    caught_by="updates_match_adamw",
    must_say="Updates are not AdamW's: weights shrink too much.",
)
def decay_without_rate(session: Session) -> None:
    """Shrink every tensor by the decay itself in each step, the rate left out."""

    def shrink(plain: Any, params: Any, g: Any, m: Any, v: Any, steps: Any, options: Any) -> None:
        for parameter in params:
            parameter.mul_(1 - options["weight_decay"])
        plain(weight_decay=0.0)

    _adam(shrink)


@unseen(
    "Z27",
    "The second moment's bias is not corrected",
    caught_by="updates_match_adamw",
    must_say="Updates are not AdamW's.",
)
def uncorrected_second_moment(session: Session) -> None:
    """Divide by the root of the raw second moment, with the first one corrected as it should be."""

    def raw(plain: Any, params: Any, grads: Any, m: Any, v: Any, steps: Any, options: Any) -> None:
        for parameter, gradient, first, second, step in zip(params, grads, m, v, steps, strict=True):
            step += 1
            parameter.mul_(1 - options["lr"] * options["weight_decay"])
            first.lerp_(gradient, 1 - options["beta1"])
            second.mul_(options["beta2"]).addcmul_(gradient, gradient, value=1 - options["beta2"])
            rate = options["lr"] / (1 - options["beta1"] ** float(step))
            parameter.addcdiv_(first, second.sqrt() + options["eps"], value=-rate)

    _adam(raw)


@unseen(
    "Z29",
    "The second moment is kept in bf16",
    caught_by=("updates_match_adamw", "dtypes_as_configured"),
    must_say="Updates are not AdamW's, or the optimizer's state is not fp32.",
)
def rounded_second_moment(session: Session) -> None:
    """Round the second moment to bf16 after each step, in a tensor of fp32: a decay of 0.999 then does nothing."""
    import torch

    def rounded(plain: Any, params: Any, g: Any, m: Any, v: Any, steps: Any, options: Any) -> None:
        plain()
        for second in v:
            second.copy_(second.to(torch.bfloat16))

    _adam(rounded)


@unseen(
    "Z30",
    "The schedule's horizon is counted in micro-batches",
    caught_by="learning_rate_trace",
    must_say="The learning rate is not the schedule's.",
)
def long_horizon(session: Session) -> None:
    """Let the schedule end after as many steps as there are micro-batches."""
    from tunecheck.training.native import make_scheduler

    training = session.run.training
    longer = training.model_copy(update={"max_steps": training.max_steps * training.gradient_accumulation_steps})
    session.scheduler = make_scheduler(session.optimizer, longer)


@unseen(
    "Z31",
    "B learns at twice the rate",
    caught_by="updates_match_adamw",
    must_say="Some tensors are updated with another rate than the schedule's.",
)
def faster_b(session: Session) -> None:
    """Double the update of every lora_B inside the optimizer, as LoRA+ does; the groups say nothing of it."""
    ups = {id(parameter) for name, parameter in session.model.named_parameters() if "lora_B" in name}

    def faster(plain: Any, params: Any, g: Any, m: Any, v: Any, steps: Any, options: Any) -> None:
        before = [parameter.detach().clone() for parameter in params]
        plain()
        for old, parameter in zip(before, params, strict=True):
            if id(parameter) in ups:
                parameter.add_(parameter - old)

    _adam(faster)


@unseen(
    "Z41",
    "The last element of a tensor is never updated",
    caught_by=("updates_match_adamw", "trainable_moved"),
    must_say="Some elements of a tensor do not move, or not as AdamW would move them.",
)
def last_element_skipped(session: Session) -> None:
    """Leave the last element of each tensor alone, as a fused kernel whose grid is one short."""

    def skipped(plain: Any, params: Any, g: Any, m: Any, v: Any, steps: Any, options: Any) -> None:
        before = [parameter.detach().view(-1)[-1].clone() for parameter in params]
        plain()
        for old, parameter in zip(before, params, strict=True):
            parameter.view(-1)[-1] = old

    _adam(skipped)


def _clip(change: Callable[..., Any]) -> None:
    """Replace the loop's clipping by `change(plain, parameters, max_norm)`."""
    from tunecheck.training import native

    loop: Any = native
    loop.clip_gradients = partial(change, native.clip_gradients)


@unseen(
    "Z32",
    "Each tensor is clipped by itself",
    caught_by="updates_match_adamw",
    must_say="Updates are not those of gradients clipped by their total norm.",
)
def clipped_apart(session: Session) -> None:
    """Clip every tensor's gradient to the limit by its own norm, and report the total norm."""

    def apart(plain: Any, parameters: Any, max_norm: Any) -> Any:
        total = plain(parameters, None)
        for parameter in parameters:
            plain([parameter], max_norm)
        return total

    _clip(apart)


@unseen(
    "Z33",
    "Every fourth step is not clipped",
    caught_by="updates_match_adamw",
    must_say="A step's update is that of gradients that were not clipped.",
)
def unclipped_now_and_then(session: Session) -> None:
    """Only measure the norm in steps 0, 4, 8."""
    calls = iter(range(10**9))
    _clip(lambda plain, parameters, max_norm: plain(parameters, max_norm if next(calls) % 4 else None))


@unseen(
    "Z39",
    "The Trainer clips by the largest element",
    caught_by=("gradient_norm_reported", "updates_match_adamw"),
    settings=("trainer=transformers", "evaluation.batch_size=2"),
    must_say="The norm that is reported, or clipped by, is not the gradients' Euclidean norm.",
)
def trainer_clips_by_largest(session: Session) -> None:
    """Have accelerate clip by the infinity norm."""
    if session.trainer is None:
        return
    clip = session.trainer.accelerator.clip_grad_norm_
    session.trainer.accelerator.clip_grad_norm_ = lambda parameters, limit, **_: clip(
        parameters, limit, norm_type=float("inf")
    )


@unseen(
    "Z45",
    "Gradients are rounded to bf16 before the optimizer",
    caught_by=("updates_match_adamw", "dtypes_as_configured", "gradient_norm_reported"),
    must_say="Updates are not those of the gradients as they were computed.",
)
def rounded_gradients(session: Session) -> None:
    """Round all gradients to bf16 and back, as a communication hook or an offloading does, then clip."""
    import torch

    def rounded(plain: Any, parameters: Any, max_norm: Any) -> Any:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.copy_(parameter.grad.to(torch.bfloat16))
        return plain(parameters, max_norm)

    _clip(rounded)
