"""Adapters that are saved or merged as something else than what was trained."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import RANDOM_WEIGHTS, before_step, lora_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tunecheck.training.session import Session


def _change_saved(session: Session, change: Any) -> None:
    """Change the tensors of every saved adapter by this function."""
    from safetensors.torch import load_file, save_file

    save = session.save_adapter

    def changed(saved: Session, folder: Path) -> None:
        save(saved, folder)
        for file in folder.glob("*.safetensors"):
            tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
            save_file(change(tensors), file, metadata={"format": "pt"})

    session.save_adapter = changed


@bug(
    "B10",
    "The untrained copy of a module is saved",
    caught_by="adapter_reads_back",
    source="unslothai/unsloth#918, huggingface/peft#503, #602",
    settings=("strategy=full", "quantization=null", "lora=null", "probes.read_back=true"),
    tier="convergence",
)
def original_copy_saved(session: Session) -> None:
    """Save the untrained copy of a module that is saved whole (modules_to_save)."""
    start = {name: p.detach().clone() for name, p in session.model.named_parameters() if "embed" in name}
    _change_saved(session, lambda tensors: {name: start.get(name, t) for name, t in tensors.items()})


@bug(
    "B17",
    "The merged sum is rounded to 4 bit again",
    caught_by="merge_keeps_function",
    source="huggingface/peft#1035",
    settings=("probes.merge=true",),
    tier="convergence",
)
def rounded_to_4bit_again(session: Session) -> None:
    """Merge the adapter into the packed model in one call: each sum is rounded to the 4-bit grid once more."""
    from peft import PeftModel

    def merge(session: Session, saved: Path) -> Any:
        return PeftModel.from_pretrained(session.model.unload(), saved).merge_and_unload(safe_merge=True)

    session.merge = merge


@bug(
    "B56",
    "Merged into the file's weights instead of the 4-bit ones",
    caught_by="merge_keeps_function",
    source="huggingface/peft#2321, #2105, unslothai/unsloth-zoo#810",
    settings=("probes.merge=true",),
    tier="convergence",
)
def on_the_files_weights(session: Session) -> None:
    """Merge the adapter into the original weights, without the 4-bit rounding that it was trained with."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def merge(session: Session, saved: Path) -> Any:
        base = AutoModelForCausalLM.from_pretrained(
            session.folder, dtype=session.model.dtype, device_map={"": session.device}, local_files_only=True
        )
        return PeftModel.from_pretrained(base, saved).merge_and_unload(safe_merge=True)

    session.merge = merge


@bug(
    "B76",
    "The adapter is saved empty",
    caught_by="adapter_round_trip",
    source="huggingface/peft#286, tloen/alpaca-lora#293, artidoro/qlora#44",
)
def adapter_saved_empty(session: Session) -> None:
    """Save an adapter file without tensors."""
    _change_saved(session, lambda tensors: {})


@bug(
    "B77",
    "Keys that the loader ignores",
    caught_by="adapter_round_trip",
    source="huggingface/sentence-transformers#3865, huggingface/transformers#46766",
)
def keys_with_another_prefix(session: Session) -> None:
    """Save every key with a prefix that the loader does not know and therefore ignores."""
    _change_saved(session, lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()})


@bug(
    "B82",
    "Not the best adapter is kept, but an older one",
    caught_by="adapter_round_trip",
    source="huggingface/transformers#24103, #36201, huggingface/sentence-transformers#3470",
)
def older_adapter_saved(session: Session) -> None:
    """Save the adapter of the first step, not the best or the last."""
    older: dict[str, torch.Tensor] = {}

    def remember(*_: Any) -> None:
        if not older and any(p.any() for _, p in lora_parameters(session, "lora_B")):
            older.update({n.replace(".default.", "."): p.detach().clone() for n, p in lora_parameters(session)})

    session.model.register_forward_pre_hook(remember)
    _change_saved(session, lambda tensors: {name: older.get(name, t) for name, t in tensors.items()})


@bug("X67", "The adapter saved is a fresh one", caught_by="adapter_round_trip")
def fresh_adapter_saved(session: Session) -> None:
    """Save a fresh adapter, whose B is zero."""
    import torch

    _change_saved(session, lambda t: {n: torch.zeros_like(v) if "lora_B" in n else v for n, v in t.items()})


@bug("X68", "The adapter saved in bf16", caught_by="adapter_round_trip")
def saved_in_bf16(session: Session) -> None:
    """Round the adapter to bf16 when it is saved, its dtype kept."""
    _change_saved(session, lambda t: {n: v.bfloat16().float() for n, v in t.items()})


@bug("X69", "A layer is not saved", caught_by="adapter_round_trip")
def one_layer_not_saved(session: Session) -> None:
    """Leave out the last layer's tensors when saving."""
    last = f".layers.{session.run.model.architecture.num_hidden_layers - 1}."
    _change_saved(session, lambda tensors: {name: t for name, t in tensors.items() if last not in name})


@bug("X70", "The saved configuration is another one", caught_by="adapter_round_trip")
def configuration_saved_wrong(session: Session) -> None:
    """Save a configuration with twice the alpha that the adapter was trained with."""
    save = session.save_adapter

    def changed(saved: Session, folder: Path) -> None:
        save(saved, folder)
        file = folder / "adapter_config.json"
        alpha = session.run.lora.alpha  # type: ignore[union-attr]
        file.write_text(file.read_text().replace(f'"lora_alpha": {alpha}', f'"lora_alpha": {2 * alpha}'))

    session.save_adapter = changed


@bug(
    "X71",
    "A trained head is not saved",
    caught_by="adapter_reads_back",
    settings=(
        "strategy=full",
        "quantization=null",
        "lora=null",
        "probes.read_back=true",
        "model.architecture.tie_word_embeddings=false",
        "model.parameters=426624",
        *RANDOM_WEIGHTS,
    ),
    tier="convergence",
)
def head_not_saved(session: Session) -> None:
    """Drop the head, which is trained on its own, from the file as if it were tied to the embedding."""
    _change_saved(session, lambda tensors: {name: t for name, t in tensors.items() if "lm_head" not in name})


@bug("X137", "Saved rows in another rotary layout", caught_by="adapter_round_trip")
def rows_in_another_rotary_layout(session: Session) -> None:
    """Permute the saved rows of q_proj's B for the other rotary layout, which no reader reverts."""
    from safetensors.torch import load_file, save_file

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


@bug(
    "U24",
    "The saved adapter is the average of the last steps",
    caught_by="adapter_round_trip",
    source="thought up, not from a thread",
    cohort="unseen",
)
def average_saved(session: Session) -> None:
    """Save a running average of the weights."""
    import torch

    average: dict[str, torch.Tensor] = {}
    save = session.save_adapter

    def update() -> None:
        for name, parameter in lora_parameters(session):
            held = average.setdefault(name, parameter.detach().clone())
            held.lerp_(parameter.detach(), 0.5)

    def averaged(saved: Session, folder: Any) -> None:
        kept = {name: p.detach().clone() for name, p in lora_parameters(session)}
        with torch.no_grad():
            for name, parameter in lora_parameters(session):
                parameter.copy_(average.get(name, parameter))
            save(saved, folder)
            for name, parameter in lora_parameters(session):
                parameter.copy_(kept[name])

    before_step(session, update)
    session.save_adapter = averaged


def _put(parameters: list[Any], values: list[torch.Tensor]) -> None:
    """Copy these values into the parameters."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value)


@bug(
    "V26",
    "The saved weights are those before the last step",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    cohort="blind",
    must_say="What was saved, read back, is not the model at the end of the training.",
)
def saved_before_last_step(session: Session) -> None:
    """Save a snapshot taken before the last step."""
    trained = [parameter for parameter in session.model.parameters() if parameter.requires_grad]
    save, snapshot = session.save_adapter, [parameter.detach().clone() for parameter in trained]

    def take() -> None:
        snapshot[:] = [parameter.detach().clone() for parameter in trained]

    def changed(session: Session, folder: Path) -> None:
        now = [parameter.detach().clone() for parameter in trained]
        _put(trained, snapshot)
        save(session, folder)
        _put(trained, now)

    before_step(session, take)
    session.save_adapter = changed


def _edit(folder: Path, **values: Any) -> None:
    """Change these values of the adapter's configuration in this folder."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@bug(
    "V27",
    "The saved adapter has another alpha",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    source="ml-explore/mlx-examples#623",
    cohort="blind",
    must_say="The saved adapter, read back, does not give the trained model: its alpha or scale is another.",
)
def alpha_lost_on_save(session: Session) -> None:
    """Save a configuration whose alpha equals the rank: readers apply the adapter at scale 1."""
    save = session.save_adapter

    def changed(session: Session, folder: Path) -> None:
        save(session, folder)
        _edit(folder, lora_alpha=json.loads((folder / "adapter_config.json").read_text())["r"])

    session.save_adapter = changed


@bug(
    "V28",
    "The merge ignores rsLoRA's scale",
    caught_by="merge_keeps_function",
    source="paiml/aprender#2189",
    cohort="blind",
    settings=("lora.use_rslora=true", "probes.merge=true"),
    tier="convergence",
    must_say="The merged model does not compute what base and adapter compute: the adapter's part is too small.",
)
def merged_without_rslora(session: Session) -> None:
    """Merge with alpha / r although the adapter was trained with alpha / sqrt(r)."""
    merge = session.merge

    def changed(session: Session, saved: Path) -> Any:
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(saved, copy, dirs_exist_ok=True)
            _edit(Path(copy), use_rslora=False)
            return merge(session, Path(copy))

    session.merge = changed


@bug(
    "V29",
    "The adapter is merged twice",
    caught_by="merge_keeps_function",
    cohort="blind",
    tier="convergence",
    must_say="The merged model does not compute what base and adapter compute: the adapter's part is doubled.",
)
def merged_twice(session: Session) -> None:
    """Add the adapter to the weights twice: on loading it for the merge, and by the merge."""
    import peft.tuners.lora.layer

    linear: Any = peft.tuners.lora.layer.Linear
    merge, delta = session.merge, linear.get_delta_weight

    def changed(session: Session, saved: Path) -> Any:
        linear.get_delta_weight = lambda layer, adapter: 2 * delta(layer, adapter)
        try:
            return merge(session, saved)
        finally:
            linear.get_delta_weight = delta

    session.merge = changed


def _after_save(session: Session, change: Callable[[Path], None]) -> None:
    """Change the folder of every saved adapter by this function."""
    save = session.save_adapter

    def changed(session: Session, folder: Path) -> None:
        save(session, folder)
        change(folder)

    session.save_adapter = changed


@bug(
    "V69",
    "The saved configuration names fewer modules",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    source="huggingface/peft#1323, #2118",
    cohort="blind-second",
    must_say="The saved adapter, read back, is not the trained one: tensors are missing or its targets are others.",
)
def targets_lost_on_save(session: Session) -> None:
    """Save a configuration that targets q_proj alone: readers drop the other tensors silently."""

    def shorten(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "target_modules": ["q_proj"]}))

    _after_save(session, shorten)


@bug(
    "V70",
    "DoRA's magnitudes are not saved",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    source="NVIDIA-NeMo/Megatron-Bridge#6031",
    cohort="blind-second",
    settings=("lora.use_dora=true",),
    must_say="The saved adapter lacks trained tensors, or read back it does not give the trained model.",
)
def magnitudes_not_saved(session: Session) -> None:
    """Leave DoRA's trained magnitudes out of the saved file: a reader initializes new ones."""
    from safetensors.torch import load_file, save_file

    def drop(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items() if "magnitude" not in name}
        save_file(tensors, file, metadata={"format": "pt"})

    _after_save(session, drop)


@bug(
    "V75",
    "The merge transposes square weights' part",
    caught_by="merge_keeps_function",
    source="paiml/aprender#2138, huggingface/peft#3531",
    cohort="blind-second",
    settings=("probes.merge=true",),
    tier="convergence",
    must_say="The merged model does not compute what base and adapter compute.",
)
def merged_transposed(session: Session) -> None:
    """Add the transposed update to square weights when merging, as when the layout is guessed from the shape."""
    import peft.tuners.lora.layer

    linear: Any = peft.tuners.lora.layer.Linear
    merge, delta = session.merge, linear.get_delta_weight

    def turned(layer: Any, adapter: str) -> torch.Tensor:
        part: torch.Tensor = delta(layer, adapter)
        return part.T.contiguous() if part.shape[0] == part.shape[1] else part

    def changed(session: Session, saved: Path) -> Any:
        linear.get_delta_weight = turned
        try:
            return merge(session, saved)
        finally:
            linear.get_delta_weight = delta

    session.merge = changed


@bug(
    "W29",
    "The saved configuration has lost the dropout",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    cohort="unseen-second",
    settings=("lora.dropout=0.1",),
)
def dropout_lost_on_save(session: Session) -> None:
    """Save a configuration whose dropout is 0: the function is the same, and a training that goes on from it is not."""
    _after_save(session, lambda folder: _edit(folder, lora_dropout=0.0))


@bug(
    "W30",
    "All weights saved in bf16",
    caught_by="adapter_reads_back",
    cohort="unseen-second",
    settings=("strategy=full", "quantization=null", "lora=null", "probes.read_back=true"),
    tier="convergence",
)
def all_weights_saved_in_bf16(session: Session) -> None:
    """Save the fp32 weights of a full fine-tuning rounded to bf16."""
    _change_saved(session, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})


@bug(
    "W31",
    "One layer is left out of the merge",
    caught_by="merge_keeps_function",
    cohort="unseen-second",
    settings=("probes.merge=true",),
    tier="convergence",
)
def layer_not_merged(session: Session) -> None:
    """Merge an adapter whose last layer's B is zero."""
    import tempfile

    from safetensors.torch import load_file, save_file

    merge, last = session.merge, f"layers.{session.run.model.architecture.num_hidden_layers - 1}."

    def changed(session: Session, saved: Path) -> Any:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(saved, folder, dirs_exist_ok=True)
            file = folder / "adapter_model.safetensors"
            tensors = {n: t * (0.0 if last in n and "lora_B" in n else 1.0) for n, t in load_file(file).items()}
            save_file(tensors, file, metadata={"format": "pt"})
            return merge(session, folder)

    session.merge = changed


@bug(
    "W32",
    "The merge adds nine tenths of the adapter",
    caught_by="merge_keeps_function",
    cohort="unseen-second",
    settings=("probes.merge=true",),
    tier="convergence",
)
def merged_in_part(session: Session) -> None:
    """Scale what is merged by 0.9, as a merge with a wrong weight does."""
    import peft.tuners.lora.layer

    linear: Any = peft.tuners.lora.layer.Linear
    merge, delta = session.merge, linear.get_delta_weight

    def changed(session: Session, saved: Path) -> Any:
        linear.get_delta_weight = lambda layer, adapter: 0.9 * delta(layer, adapter)
        try:
            return merge(session, saved)
        finally:
            linear.get_delta_weight = delta

    session.merge = changed
