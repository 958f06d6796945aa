"""Checkpoints from which a run does not continue as the uninterrupted one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import lora_parameters, on_resume

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug(
    "B04",
    "A fresh adapter instead of the one in the checkpoint",
    caught_by="resume_equals",
    source="huggingface/peft#793",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def adapter_not_loaded(session: Session) -> None:
    """Begin a resumed run with a fresh adapter and ignore the one in the checkpoint."""
    import torch

    fresh = {name: p.detach().clone() for name, p in lora_parameters(session)}

    def forget() -> None:
        with torch.no_grad():
            for name, parameter in lora_parameters(session):
                parameter.copy_(fresh[name])

    on_resume(session, forget)


@bug(
    "B79",
    "Optimizer state not restored",
    caught_by="resume_equals",
    source="huggingface/transformers#33336, QwenAudio/CosyVoice#282",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def optimizer_state_not_restored(session: Session) -> None:
    """Resume with empty optimizer moments."""
    on_resume(session, lambda: session.optimizer.state.clear())


@bug(
    "B80",
    "The schedule starts over after a resume",
    caught_by="resume_equals",
    source="QwenAudio/CosyVoice#282, starVLA/starVLA#204, #210",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def schedule_starts_over(session: Session) -> None:
    """Restart the schedule at its first step after a resume."""
    start = {**session.scheduler.state_dict()}
    on_resume(session, lambda: session.scheduler.load_state_dict(start))


@bug(
    "X72",
    "Random state not restored",
    caught_by="resume_equals",
    settings=("probes.resume_from=2", "lora.dropout=0.1"),
    tier="convergence",
)
def random_state_not_restored(session: Session) -> None:
    """Resume with the random state of a fresh process."""
    import torch

    from tunecheck.training import checkpoint

    saving: Any = checkpoint
    load = saving.load_file
    saving.load_file = lambda path: {**load(path), "rng/cpu": torch.get_rng_state()}


@bug(
    "X73",
    "The checkpoint holds older weights",
    caught_by="resume_equals",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def older_weights_in_the_checkpoint(session: Session) -> None:
    """Write the previous step's weights into the checkpoint, beside this step's optimizer state."""
    import torch

    from tunecheck.training import checkpoint

    saving: Any = checkpoint
    save, older = saving.save_file, dict[str, torch.Tensor]()
    step = session.optimizer.step

    def remember(*args: Any, **kwargs: Any) -> Any:
        older.update({f"model/{name}": p.detach().clone() for name, p in lora_parameters(session)})
        return step(*args, **kwargs)

    session.optimizer.step = remember
    saving.save_file = lambda tensors, path: save({**tensors, **older}, path)


@bug(
    "X108",
    "The gradient scaler starts over after a resume",
    caught_by="resume_equals",
    settings=("strategy=lora", "quantization=null", "training.precision=fp16", "probes.resume_from=2"),
    tier="convergence",
)
def scaler_starts_over(session: Session) -> None:
    """Ignore the gradient scaler's state in the checkpoint."""
    session.scaler.load_state_dict = lambda state: None


@bug(
    "U26",
    "Moments pass through bf16 in the checkpoint",
    caught_by="resume_equals",
    source="thought up, not from a thread",
    cohort="unseen",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def moments_rounded_in_the_checkpoint(session: Session) -> None:
    """Store the optimizer's moments in bf16."""
    from tunecheck.training import checkpoint

    saving: Any = checkpoint
    save = saving.save_file

    def rounded(tensors: dict[str, torch.Tensor], path: Any) -> Any:
        return save({n: t.bfloat16().to(t.dtype) if "exp_avg" in n else t for n, t in tensors.items()}, path)

    saving.save_file = rounded


@bug(
    "V25",
    "A resumed optimizer counts its steps from zero",
    caught_by="resume_equals",
    source="NVIDIA-NeMo/Automodel#763",
    cohort="blind",
    tier="convergence",
    must_say="Training resumed from the checkpoint does not go on as the uninterrupted one: losses or weights differ.",
)
def step_count_lost_on_resume(session: Session) -> None:
    """Resume Adam with its moments but a step counter of 0: their bias is corrected a second time."""

    def count_anew() -> None:
        for state in session.optimizer.state.values():
            state["step"].zero_()

    on_resume(session, count_anew)


@bug(
    "V71",
    "A resumed optimizer's averages belong to other tensors",
    caught_by="resume_equals",
    source="Lightning-AI/pytorch-lightning#17025",
    cohort="blind-second",
    tier="convergence",
    must_say="Training resumed from the checkpoint does not go on as the uninterrupted one: losses or weights differ.",
)
def moments_in_another_order(session: Session) -> None:
    """Exchange the moments between tensors of one shape on resume."""

    def exchange() -> None:
        by_shape: dict[torch.Size, list[Any]] = {}
        for parameter in session.optimizer.param_groups[0]["params"]:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        state = session.optimizer.state
        for alike in by_shape.values():
            held = [state[parameter] for parameter in alike]
            for parameter, other in zip(alike, reversed(held), strict=True):
                state[parameter] = other

    on_resume(session, exchange)


@bug(
    "V72",
    "A resumed schedule has lost its base rate",
    caught_by="resume_equals",
    source="huggingface/nanotron#256, pytorch/pytorch#60265",
    cohort="blind-second",
    tier="convergence",
    must_say="Training resumed from the checkpoint does not go on as the uninterrupted one: its learning rate differs.",
)
def base_rate_lost_on_resume(session: Session) -> None:
    """Take the checkpoint's current learning rate for the base learning rate on resume."""

    def forget() -> None:
        session.scheduler.base_lrs = [group["lr"] for group in session.optimizer.param_groups]

    on_resume(session, forget)


@bug(
    "W33",
    "A save in the middle rounds the weights in memory",
    caught_by=("weights_change_only_in_steps", "resume_equals"),
    cohort="unseen-second",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def rounded_by_a_save(session: Session) -> None:
    """Round the trained weights to bf16 in memory when a checkpoint has been written, as model.bfloat16() would."""
    import torch

    from tunecheck.training import checkpoint

    saving: Any = checkpoint
    save = saving.save_file

    def changed(tensors: Any, path: Any) -> None:
        save(tensors, path)
        with torch.no_grad():
            for _, parameter in lora_parameters(session):
                parameter.copy_(parameter.bfloat16())

    saving.save_file = changed


@bug(
    "W34",
    "The checkpoint holds the weights in bf16",
    caught_by="resume_equals",
    cohort="unseen-second",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def checkpoint_in_bf16(session: Session) -> None:
    """Round the weights in the checkpoint to bf16."""

    from tunecheck.training import checkpoint

    saving: Any = checkpoint
    save = saving.save_file

    def rounded(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.bfloat16().to(tensor.dtype) if name.startswith("model/") else tensor

    saving.save_file = lambda tensors, path: save({n: rounded(n, t) for n, t in tensors.items()}, path)


@bug(
    "W35",
    "A resumed run goes on in eval mode",
    caught_by=("resume_equals", "state_in_training"),
    cohort="unseen-second",
    settings=("probes.resume_from=2", "lora.dropout=0.1"),
    tier="convergence",
)
def resumed_in_eval_mode(session: Session) -> None:
    """Go on in eval mode after a resume: dropout is off for the rest of the run."""

    def evaluate_on() -> None:
        window = session.batches.window

        def fetch(step: int) -> Any:
            session.model.eval()
            return window(step)

        session.batches.window = fetch  # type: ignore[method-assign]

    on_resume(session, evaluate_on)


@bug(
    "W36",
    "A resumed optimizer has lost its weight decay",
    caught_by="resume_equals",
    cohort="unseen-second",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def decay_lost_by_a_resume(session: Session) -> None:
    """Resume with a weight decay of 0."""

    def lose() -> None:
        for group in session.optimizer.param_groups:
            group["weight_decay"] = 0.0

    on_resume(session, lose)


@bug(
    "Y45",
    "A resumed schedule steps once a micro-batch",
    caught_by="resume_equals",
    cohort="unseen-third",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def resumed_schedule_too_fast(session: Session) -> None:
    """Step the schedule twice a step after a resume."""

    def often() -> None:
        step = session.scheduler.step

        def changed() -> None:
            step()
            step()

        session.scheduler.step = changed

    on_resume(session, often)


@bug(
    "Y46",
    "The checkpoint lacks the last step",
    caught_by="resume_equals",
    source="thought up; a save that is queued and written from the step before",
    cohort="unseen-third",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def checkpoint_a_step_early(session: Session) -> None:
    """Write weights and optimizer state of the step before under this step's number."""
    import torch

    from tunecheck.training import checkpoint

    saving: Any = checkpoint
    save, step, older = saving.save_file, session.optimizer.step, dict[str, torch.Tensor]()

    def remember(*args: Any, **kwargs: Any) -> Any:
        older.update({f"model/{name}": p.detach().clone() for name, p in lora_parameters(session)})
        states = session.optimizer.state_dict()["state"]
        for index, state in states.items():
            older.update({f"optimizer/{index}/{key}": value.detach().clone() for key, value in state.items()})
        return step(*args, **kwargs)

    session.optimizer.step = remember
    saving.save_file = lambda tensors, path: save({**tensors, **older}, path)


@bug(
    "Y47",
    "A resumed run saves the checkpoint's adapter",
    caught_by=("resume_equals", "adapter_round_trip"),
    cohort="unseen-third",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def resumed_run_saves_the_checkpoint(session: Session) -> None:
    """Save the weights that a resume began with, not those that it ended with."""
    import torch

    def keep() -> None:
        began = {name: p.detach().clone() for name, p in lora_parameters(session)}
        save = session.save_adapter

        def changed(saved: Session, folder: Any) -> None:
            ended = {name: p.detach().clone() for name, p in lora_parameters(session)}
            with torch.no_grad():
                for name, parameter in lora_parameters(session):
                    parameter.copy_(began[name])
                save(saved, folder)
                for name, parameter in lora_parameters(session):
                    parameter.copy_(ended[name])

        session.save_adapter = changed

    on_resume(session, keep)


@bug(
    "Y48",
    "A resumed run does not clip",
    caught_by="resume_equals",
    cohort="unseen-third",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def resumed_without_clipping(session: Session) -> None:
    """Clip nothing after a resume."""
    from tunecheck.training import native

    loop: Any = native
    clip = loop.clip_gradients

    def never() -> None:
        loop.clip_gradients = lambda parameters, _limit: clip(parameters, None)

    on_resume(session, never)


@bug(
    "Y49",
    "A resume draws once before it goes on",
    caught_by="resume_equals",
    source="thought up; a loader's base seed drawn after the random state was restored",
    cohort="unseen-third",
    settings=("probes.resume_from=2", "lora.dropout=0.1"),
    tier="convergence",
)
def random_state_a_draw_ahead(session: Session) -> None:
    """Draw one number from torch's random state at the first window after a resume."""
    import torch

    def draw() -> None:
        window, drawn = session.batches.window, list[Any]()

        def fetch(step: int) -> Any:
            if not drawn:
                drawn.append(torch.rand(()))
            return window(step)

        session.batches.window = fetch  # type: ignore[method-assign]

    on_resume(session, draw)
