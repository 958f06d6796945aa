"""After training: what the adapters do, whether all of them are in the file, and whether it gives the same function."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tunecheck.core.evidence import AdapterEffect, RoundTrip, Saved
from tunecheck.core.premises import Premise
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.measures import relative_difference
from tunecheck.probes.reference.weight_file import WeightFile, file_name
from tunecheck.strategies.mixed_precision import multiply_in_input_dtype
from tunecheck.training.events import Probe
from tunecheck.training.restore import as_found, kept_trainable, kept_values, without_adapters
from tunecheck.training.session import Session

BASE_WEIGHT = ".base_layer.weight"
ENLARGED = 4096.0
"""Factor of every B, a power of two: an adapter below the logits' last place is seen then."""


class RoundTripProbe(Probe):
    """Saves with the trainer's own function and reads back through peft, beside the trained adapter."""

    emits = (AdapterEffect, RoundTrip, Saved)

    def end(self, session: Session) -> None:
        """Save, compare the file tensor by tensor, load it as a second adapter, compare logits."""
        if session.run.lora is None:
            return
        trained = logits_of(session.model, first_tokens(session), training=False)
        with without_adapters(session.model):
            base = logits_of(session.model, first_tokens(session), training=False)
        enlarged = None
        if not (difference := relative_difference(base, trained)):
            factors = [p for name, p in session.model.named_parameters() if ".lora_B." in name]
            with kept_values(factors), torch.no_grad():
                for factor in factors:
                    factor.mul_(ENLARGED)
                enlarged = relative_difference(base, logits_of(session.model, first_tokens(session), training=False))
        self.emit(AdapterEffect(difference=difference, enlarged_difference=enlarged))
        with tempfile.TemporaryDirectory(prefix="tunecheck-") as name, as_found(session.model):
            folders = [Path(own) for own in session.exchange.gathered(name)]
            with session.as_trained():
                session.save_adapter(session, Path(name))
            writers = tuple(rank for rank, folder in enumerate(folders) if any(folder.iterdir()))
            try:
                if session.exchange.count > 1:
                    self.emit(Saved(writers=writers))
                self.emit(_compare(session, folders[writers[0]] if writers else Path(name), trained))
            finally:
                session.exchange.gathered(None)  # no rank may remove its folder while another reads it


def _compare(session: Session, folder: Path, logits: torch.Tensor) -> RoundTrip:
    trained = {
        _saved_name(name): parameter.detach().cpu()
        for name, parameter in session.model.named_parameters()
        if _is_learnt(name) or _is_learnt_bias(name, parameter)
    }
    # a tied head's own are the embedding's, too
    every = list(session.model.named_parameters(remove_duplicate=False))
    resized = set(_resized(session.model, WeightFile(session.folder)))
    beside = {
        name.replace(".default.", ".").removesuffix(".default"): parameter.detach().cpu()
        for name, parameter in every
        if name.endswith(BASE_WEIGHT) or "trainable_tokens_delta" in name or name in resized
    }
    beside |= {_saved_name(name): parameter.detach().cpu() for name, parameter in every if _is_learnt(name)}
    files = list(folder.glob("*.safetensors"))
    saved = WeightFile(folder)
    shared = [name for name in saved.names if name in trained]
    others = tuple(_other_settings(session, folder))
    _load_beside(folder)
    difference, differing = _read_back(session, folder, trained, logits) if files else (float("inf"), ())
    return RoundTrip(
        file_bytes=sum(file.stat().st_size for file in files),
        tensors=len(saved.names),
        missing=tuple(sorted(trained.keys() - set(saved.names))),
        # peft saves the own weights of an embedding that is adapted, and both copies of one that was resized, too
        unexpected=tuple(
            name
            for name in saved.names
            if name not in trained and not (name in beside and torch.equal(saved.tensor(name), beside[name]))
        ),
        differing=tuple(name for name in shared if not torch.equal(saved.tensor(name), trained[name])),
        zero_b=tuple(name for name in shared if ".lora_B." in name and not saved.tensor(name).any()),
        logit_difference=difference,
        reread_differing=differing,
        settings_differing=others,
    )


def _load_beside(folder: Path) -> None:
    """Have peft load the adapter in this folder of ours beside the trained one, without moving or training the base.

    PiSSA, OLoRA and others would take a part of it again, out of the model that goes on training; of adapters that
    train its biases peft allows one.
    """
    file = folder / "adapter_config.json"
    saved = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    plain = {"init_lora_weights": True, "bias": "none"}
    if any(saved.get(name, value) != value for name, value in plain.items()):  # other ranks read this file, too
        file.write_text(json.dumps({**saved, **plain}), encoding="utf-8")


def _resized(model: Any, base: WeightFile) -> Iterator[str]:
    """Yield the tables that have another number of rows than in the base's file, where a tied head has none."""
    every = list(model.named_parameters(remove_duplicate=False))
    modules = model.get_input_embeddings(), model.get_output_embeddings()
    tables = {id(weight) for weight in (getattr(module, "weight", None) for module in modules) if weight is not None}
    embeddings = [file_name(name) for name, p in every if id(p) in tables]  # GPT-2 calls it wte, Falcon word_embeddings
    for name, parameter in every:
        if id(parameter) in tables or "embed" in name or "lm_head" in name:
            known = [file for file in (file_name(name), *embeddings, "model.embed_tokens.weight") if file in base]
            if known and base.shape(known[0])[0] != len(parameter):
                yield name


def _is_learnt(name: str) -> bool:
    """Return whether this is a tensor of the adapter, or of what learns beside it."""
    kinds = (".lora_", ".modules_to_save.", ".trainable_tokens_delta.")
    return ".default" in name and any(kind in name for kind in kinds)


def _is_learnt_bias(name: str, parameter: Any) -> bool:
    """Return whether this is a bias of the base's that learns, as LoraConfig.bias may have it."""
    return parameter.requires_grad and name.endswith("bias") and ".default" not in name


def _other_settings(session: Session, folder: Path) -> Iterator[str]:
    """Yield what peft's configuration in this folder says otherwise than the run, in words."""
    lora, file = session.run.lora, folder / "adapter_config.json"
    if lora is None or not file.is_file():
        return  # without it nothing can be read back, which is told
    saved = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(saved.get("target_modules"), list):
        saved["target_modules"] = sorted(saved["target_modules"])
    wanted = lora.as_saved()
    if session.run.holds(Premise.SAVING_DECLARED):  # frameworks write another name of the same weights
        wanted["base_model_name_or_path"] = str(session.folder)
    from peft import LoraConfig

    defaults: Any = LoraConfig()
    read = {**defaults.to_dict(), **saved}  # peft takes its default for a key that is not there
    for name, value in wanted.items():
        if read.get(name) != value:
            yield f"{name} {read.get(name)}, configured {value}"


def _saved_name(name: str) -> str:
    """A trained tensor's name in peft's file, where a magnitude is no module's weight but a tensor of its own."""
    name = name.replace(".modules_to_save.default.", ".")
    name = name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default.", ".")
    return name.removesuffix(".default")


def _undo_rounding(model: Any, saved: WeightFile) -> None:
    """Put the file's own numbers where peft rounded them to the base's dtype on the way, as it did before 0.19."""
    for name, parameter in model.named_parameters():
        held = _saved_name(name.replace(".from_disk", ".default"))
        if ".from_disk" in name and held in saved:
            exact = saved.tensor(held).to(parameter.device)
            if torch.equal(parameter.data, exact.to(model.dtype).to(parameter.dtype)):
                parameter.data.copy_(exact)


def _read_back(
    session: Session, folder: Path, trained: dict[str, torch.Tensor], wanted: torch.Tensor
) -> tuple[float, tuple[str, ...]]:
    """Logits of the file's adapter against the trained one's, which is the active one again afterwards.

    Then the names of its tensors that are not the trained ones.
    """
    model = session.model
    # a file that holds biases is loaded into the base itself
    biases = [p for name, p in model.named_parameters() if _is_learnt_bias(name, p)]
    with kept_values(biases), kept_trainable(model), ExitStack() as stack:
        stack.callback(lambda: "from_disk" in model.peft_config and model.delete_adapter("from_disk"))
        stack.callback(model.set_adapter, "default")
        kind = session.run.lora.adapter_dtype if session.run.lora else "fp32"
        model.load_adapter(str(folder), "from_disk", is_trainable=False, autocast_adapter_dtype=kind != "model")
        _read_tied(model, WeightFile(folder))
        with session.as_trained():
            pass  # loading a state dict has ended the look at a sharded model: this begins another
        kinds = {name: p.dtype for name, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            if ".from_disk" in name:  # which peft has in the base's dtype, or in fp32
                parameter.data = parameter.data.to(kinds.get(name.replace(".from_disk", ".default"), parameter.dtype))
        if not session.run.holds(Premise.SAVING_DECLARED):
            _undo_rounding(model, WeightFile(folder))
        if kind == "mixed":
            multiply_in_input_dtype(model)
        model.set_adapter("from_disk")
        differing = tuple(
            saved
            for name, parameter in model.named_parameters()
            if ".from_disk" in name
            and (saved := _saved_name(name.replace(".from_disk", ".default"))) in trained
            and not torch.equal(parameter.detach().cpu(), trained[saved])
        )
        return relative_difference(logits_of(session.model, first_tokens(session), training=False), wanted), differing


def _read_tied(model: Any, saved: WeightFile) -> None:
    """Read what is trained tied to another module's weights, and saved under its own name.

    peft's configuration names one of the two, so that it reads the other into the base's own module: into that of a
    fresh base, that is, which this model's no longer is.
    """
    for name, module in model.named_modules():
        if not isinstance(copies := getattr(module, "modules_to_save", None), torch.nn.ModuleDict):
            continue
        if "default" in copies and "from_disk" not in copies and (file := f"{name}.weight") in saved:
            module.update("from_disk")
            weight = module.modules_to_save["from_disk"].weight
            weight.data = saved.tensor(file).to(weight)
