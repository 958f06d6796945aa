"""Steps of the optimizer that differ from AdamW's in a detail: one moment, one block, one term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import after_step, before_step, counted_steps, lora_parameters

if TYPE_CHECKING:
    from tunecheck.training.session import Session


@bug("Y20", "No bias correction after the sixth step", caught_by="updates_match_adamw", cohort="unseen-third")
def bias_correction_ends(session: Session) -> None:
    """Leave the bias correction out from the seventh step on."""
    at = counted_steps(session)

    def shift(by: float) -> None:
        if at[0] >= 6:
            for state in session.optimizer.state.values():
                state["step"] += by

    before_step(session, lambda: shift(1e5))
    after_step(session, lambda: shift(-1e5))


@bug(
    "Y21",
    "Gradients are clipped by their largest element",
    caught_by=("updates_match_adamw", "gradient_norm_reported"),
    source="thought up; norm_type=inf",
    cohort="unseen-third",
)
def clipped_by_the_largest_element(session: Session) -> None:
    """Scale the gradients so that their largest element is at most the limit; report the 2-norm."""
    import torch

    from tunecheck.training import native

    loop: Any = native
    clip = loop.clip_gradients

    def changed(parameters: Any, limit: float | None) -> Any:
        norm = clip(parameters, None)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limit, norm_type=float("inf"))
        return norm

    loop.clip_gradients = changed


@bug("Y22", "One tensor's update is lost in one step", caught_by="updates_match_adamw", cohort="unseen-third")
def update_lost_once(session: Session) -> None:
    """Undo the last tensor's update in the eighth step, inside of the optimizer's step; its moments go on."""
    import torch

    at, step = counted_steps(session), session.optimizer.step
    _, parameter = lora_parameters(session)[-1]

    def changed(*args: Any, **kwargs: Any) -> Any:
        before = parameter.detach().clone()
        result = step(*args, **kwargs)
        if at[0] == 7:
            with torch.no_grad():
                parameter.copy_(before)
        return result

    session.optimizer.step = changed


@bug(
    "Y23",
    "The tail of every tensor is not updated",
    caught_by=("updates_match_adamw", "trainable_moved"),
    source="thought up; a fused kernel whose last block is left out",
    cohort="unseen-third",
)
def tails_not_updated(session: Session) -> None:
    """Leave the last eight elements of every tensor as they are."""
    import torch

    step = session.optimizer.step
    parameters = [parameter for _, parameter in lora_parameters(session)]

    def changed(*args: Any, **kwargs: Any) -> Any:
        tails = [parameter.detach().flatten()[-8:].clone() for parameter in parameters]
        result = step(*args, **kwargs)
        with torch.no_grad():
            for parameter, tail in zip(parameters, tails, strict=True):
                parameter.view(-1)[-8:] = tail
        return result

    session.optimizer.step = changed


@bug("Y24", "Weights decay towards their start", caught_by="updates_match_adamw", cohort="unseen-third")
def decay_towards_the_start(session: Session) -> None:
    """Decay towards the weights of the start, not towards 0."""
    import torch

    start = {id(p): p.detach().clone() for _, p in lora_parameters(session)}

    def restore() -> None:
        with torch.no_grad():
            for group in session.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.add_(start[id(parameter)], alpha=group["lr"] * group["weight_decay"])

    before_step(session, restore)


@bug("Y25", "The bias correction is a step ahead", caught_by="updates_match_adamw", cohort="unseen-third")
def bias_correction_ahead(session: Session) -> None:
    """Correct the bias as if one step more had been taken."""
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        for state in session.optimizer.state.values():
            state["step"] += 1
        first = not session.optimizer.state
        result = step(*args, **kwargs)
        for state in session.optimizer.state.values():
            state["step"] -= 0 if first else 1
        return result

    session.optimizer.step = changed


@bug("Y26", "The second moments are of unclipped gradients", caught_by="updates_match_adamw", cohort="unseen-third")
def second_moments_unclipped(session: Session) -> None:
    """Average the squares of the gradients as they were before clipping."""
    import torch

    from tunecheck.training import native

    loop: Any = native
    clip, ratio = loop.clip_gradients, [1.0]

    def noted(parameters: Any, limit: float | None) -> Any:
        norm = clip(parameters, limit)
        ratio[0] = 1.0 if limit is None else max(1.0, float(norm) / limit)
        return norm

    def add() -> None:
        with torch.no_grad():
            for group in session.optimizer.param_groups:
                for parameter in group["params"]:
                    state = session.optimizer.state.get(parameter)
                    if state:
                        more = (1 - group["betas"][1]) * (ratio[0] ** 2 - 1) / group["betas"][1]
                        state["exp_avg_sq"].add_(parameter.grad.square(), alpha=more)

    loop.clip_gradients = noted
    before_step(session, add)


@bug(
    "Y27",
    "A part of the last window's gradient stays",
    caught_by=("updates_match_adamw", "gradient_norm_reported"),
    source="thought up; error feedback of a compression that is off",
    cohort="unseen-third",
)
def gradient_of_before_added(session: Session) -> None:
    """Add 3 % of the gradient of the step before when the gradients are clipped."""
    from tunecheck.training import native

    loop: Any = native
    clip, held = loop.clip_gradients, dict[int, Any]()

    def changed(parameters: Any, limit: float | None) -> Any:
        for parameter in parameters:
            if parameter.grad is not None:
                now = parameter.grad.clone()
                if id(parameter) in held:
                    parameter.grad.add_(held[id(parameter)], alpha=0.03)
                held[id(parameter)] = now
        return clip(parameters, limit)

    loop.clip_gradients = changed


@bug("Y28", "The norm of the step before is reported", caught_by="gradient_norm_reported", cohort="unseen-third")
def norm_reported_late(session: Session) -> None:
    """Clip rightly, and report the norm of the step before."""
    from tunecheck.training import native

    loop: Any = native
    clip, held = loop.clip_gradients, list[Any]()

    def changed(parameters: Any, limit: float | None) -> Any:
        held.append(clip(parameters, limit))
        return held[max(0, len(held) - 2)]

    loop.clip_gradients = changed


@bug(
    "Y29",
    "Every epoch begins with the same random state",
    caught_by="dropout_varies",
    cohort="unseen-third",
    settings=("lora.dropout=0.1", "data.train_rows=12"),
)
def seeded_at_every_epoch(session: Session) -> None:
    """Set the seed again when an epoch begins: its dropout masks are those of the epoch before."""
    import torch

    window, per_step = session.batches.window, 4

    def fetch(step: int) -> Any:
        if step * per_step % len(session.batches.train) == 0:
            torch.manual_seed(session.run.training.seed)
        return window(step)

    session.batches.window = fetch  # type: ignore[method-assign]
