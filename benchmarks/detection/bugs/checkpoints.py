"""What is saved or loaded is not what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.detection.bugs.parts import lora_parameters, on_resume

if TYPE_CHECKING:
    from pathlib import Path

    from suite.training.session import Session


def adapter_saved_empty(session: Session) -> None:
    """The saved file holds no tensor."""
    _change_saved(session, lambda tensors: {})


def keys_with_another_prefix(session: Session) -> None:
    """Every key in the file has a prefix that the loader does not know, and so ignores."""
    _change_saved(session, lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()})


def fresh_adapter_saved(session: Session) -> None:
    """The adapter that is saved is a fresh one: B is zero."""
    _change_saved(session, lambda t: {n: torch.zeros_like(v) if "lora_B" in n else v for n, v in t.items()})


def saved_in_bf16(session: Session) -> None:
    """The adapter is rounded to bf16 on its way to the disk, its dtype kept."""
    _change_saved(session, lambda t: {n: v.bfloat16().float() for n, v in t.items()})


def one_layer_not_saved(session: Session) -> None:
    """The last layer's tensors are left out."""
    last = f".layers.{session.run.model.architecture.num_hidden_layers - 1}."
    _change_saved(session, lambda tensors: {name: t for name, t in tensors.items() if last not in name})


def older_adapter_saved(session: Session) -> None:
    """What is saved is the adapter of the first step, not the best or the last."""
    older: dict[str, torch.Tensor] = {}

    def remember(*_: Any) -> None:
        if not older and any(p.any() for _, p in lora_parameters(session, "lora_B")):
            older.update({n.replace(".default.", "."): p.detach().clone() for n, p in lora_parameters(session)})

    session.model.register_forward_pre_hook(remember)
    _change_saved(session, lambda tensors: {name: older.get(name, t) for name, t in tensors.items()})


def _change_saved(session: Session, change: Any) -> None:
    from safetensors.torch import load_file, save_file

    save = session.save_adapter

    def changed(saved: Session, folder: Path) -> None:
        save(saved, folder)
        for file in folder.glob("*.safetensors"):
            tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
            save_file(change(tensors), file, metadata={"format": "pt"})

    session.save_adapter = changed


def configuration_saved_wrong(session: Session) -> None:
    """The saved configuration has another alpha than the adapter was trained with."""
    save = session.save_adapter

    def changed(saved: Session, folder: Path) -> None:
        save(saved, folder)
        file = folder / "adapter_config.json"
        alpha = session.run.lora.alpha  # type: ignore[union-attr]
        file.write_text(file.read_text().replace(f'"lora_alpha": {alpha}', f'"lora_alpha": {2 * alpha}'))

    session.save_adapter = changed


def head_not_saved(session: Session) -> None:
    """The head, trained on its own, is dropped from the file as if it were tied to the embedding."""
    _change_saved(session, lambda tensors: {name: t for name, t in tensors.items() if "lm_head" not in name})


def original_copy_saved(session: Session) -> None:
    """Of a module that is kept whole, the untrained copy is saved."""
    start = {name: p.detach().clone() for name, p in session.model.named_parameters() if "embed" in name}
    _change_saved(session, lambda tensors: {name: start.get(name, t) for name, t in tensors.items()})


def optimizer_state_not_restored(session: Session) -> None:
    """After a resume the optimizer starts with empty averages."""
    on_resume(session, lambda: session.optimizer.state.clear())


def schedule_starts_over(session: Session) -> None:
    """After a resume the schedule starts at its first step."""
    start = {**session.scheduler.state_dict()}
    on_resume(session, lambda: session.scheduler.load_state_dict(start))


def random_state_not_restored(session: Session) -> None:
    """After a resume the random numbers are those of a fresh process."""
    from suite.training import checkpoint

    saving: Any = checkpoint
    load = saving.load_file
    saving.load_file = lambda path: {**load(path), "rng/cpu": torch.get_rng_state()}


def adapter_not_loaded(session: Session) -> None:
    """A resumed run begins with a fresh adapter: what the checkpoint holds is ignored."""
    fresh = {name: p.detach().clone() for name, p in lora_parameters(session)}

    def forget() -> None:
        with torch.no_grad():
            for name, parameter in lora_parameters(session):
                parameter.copy_(fresh[name])

    on_resume(session, forget)


def older_weights_in_the_checkpoint(session: Session) -> None:
    """The checkpoint holds the weights of the step before, beside the optimizer's state of this one."""
    from suite.training import checkpoint

    saving: Any = checkpoint
    save, older = saving.save_file, dict[str, torch.Tensor]()
    step = session.optimizer.step

    def remember(*args: Any, **kwargs: Any) -> Any:
        older.update({f"model/{name}": p.detach().clone() for name, p in lora_parameters(session)})
        return step(*args, **kwargs)

    session.optimizer.step = remember
    saving.save_file = lambda tensors, path: save({**tensors, **older}, path)


def scaler_starts_over(session: Session) -> None:
    """The gradient scaler's state is in the checkpoint and not loaded."""
    session.scaler.load_state_dict = lambda state: None


def rows_in_another_rotary_layout(session: Session) -> None:
    """The saved rows of q_proj's B are permuted for the other rotary layout, and no reader turns them back."""
    save, heads = session.save_adapter, session.model.config.num_attention_heads

    def permuted(session: Session, folder: Path) -> None:
        save(session, folder)
        for file in folder.glob("adapter_model.safetensors"):
            state = load_file(file)
            for name, rows in state.items():
                if "q_proj.lora_B" in name:
                    halves = rows.view(heads, 2, -1, rows.shape[1]).transpose(1, 2)
                    state[name] = halves.reshape(rows.shape).contiguous()
            save_file(state, file, metadata={"format": "pt"})

    session.save_adapter = permuted
