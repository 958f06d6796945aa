"""What the adapters do after training and in their file, and whether a resumed training has its state back."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tunecheck.core.evidence import AdapterEffect, RoundTrip, Saved, TrainerState
from tunecheck.core.premises import Premise
from tunecheck.models.description import Lora
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.four_bit import with_statistics
from tunecheck.probes.reference.measures import digest, hex_digest, random_digest, relative_difference
from tunecheck.probes.reference.weight_file import WeightFile
from tunecheck.strategies.mixed_precision import multiply_in_input_dtype
from tunecheck.training.events import Probe
from tunecheck.training.restore import as_found, having, kept_values, without_adapters
from tunecheck.training.session import Session

ENLARGED = 4096.0
"""Factor of every B, a power of two: an adapter below the logits' last place is seen then."""


class RoundTripProbe(Probe[AdapterEffect | RoundTrip | Saved]):
    """Saves with the trainer's own function and reads back through peft, beside the trained adapter."""

    def end(self, session: Session) -> None:
        """Save, compare the file tensor by tensor, load it as a second adapter, compare logits."""
        if (lora := session.run.lora) is None:
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
                self.emit(_compare(session, lora, folders[writers[0]] if writers else Path(name), trained))
            finally:
                session.exchange.gathered(None)  # no rank may remove its folder while another reads it


def _compare(session: Session, lora: Lora, folder: Path, logits: torch.Tensor) -> RoundTrip:
    """Compare the file with what peft itself says is to be saved, and what is read of it with what was trained."""
    from peft import PeftConfig, get_peft_model_state_dict

    # named here: a sharded model's own state dict would end the look at it whole
    every = dict(session.model.named_parameters(remove_duplicate=False))
    of_adapter = get_peft_model_state_dict(session.model, every, save_embedding_layers=False)
    # a bias of the base's that learns is to be saved, whether or not LoraConfig.bias says so
    of_adapter |= {n: p for n, p in every.items() if p.requires_grad and n.endswith("bias") and ".default" not in n}
    trained = {name: parameter.detach().cpu() for name, parameter in of_adapter.items()}
    saved = WeightFile(folder)
    shared = [name for name in saved.names if name in trained]
    difference, differing, others = float("inf"), tuple[str, ...](), tuple[str, ...]()
    if files := list(folder.glob("*.safetensors")):
        config = PeftConfig.from_pretrained(str(folder))  # with peft's default for a key that is not there
        others = tuple(_other_settings(session, lora, config.to_dict()))
        difference, differing = _read_back(session, lora, folder, config, logits)
    # of a script's embedding that is adapted or was resized peft saves the own weights, too
    beside = {} if session.run.holds(Premise.SAVING_DECLARED) else every
    beside = {name.replace(".default.", ".").removesuffix(".default"): p for name, p in beside.items()}
    known = {name for name, p in beside.items() if name in saved and torch.equal(saved.tensor(name), p.cpu())}
    return RoundTrip(
        file_bytes=sum(file.stat().st_size for file in files),
        tensors=len(saved.names),
        missing=tuple(sorted(trained.keys() - set(saved.names))),
        unexpected=tuple(name for name in saved.names if name not in trained.keys() | known),
        differing=tuple(name for name in shared if not torch.equal(saved.tensor(name), trained[name])),
        zero_b=tuple(n for n in shared if ".lora_B." in n and not saved.tensor(n).any()),
        logit_difference=difference,
        reread_differing=differing,
        settings_differing=others,
    )


def _other_settings(session: Session, lora: Lora, saved: dict[str, Any]) -> Iterator[str]:
    """Yield what peft's saved configuration says otherwise than the run, in words."""
    wanted = lora.as_saved()
    if session.run.holds(Premise.SAVING_DECLARED):  # frameworks write another name of the same weights
        wanted["base_model_name_or_path"] = str(session.folder)
    for name, value in wanted.items():
        held = saved.get(name)
        if (held := sorted(held) if isinstance(held, set) else held) != value:
            yield f"{name} {held}, configured {value}"


def _read_back(
    session: Session, lora: Lora, folder: Path, config: Any, wanted: torch.Tensor
) -> tuple[float, tuple[str, ...]]:
    """Logits of the file's adapter against the trained one's, which is the active one again afterwards.

    Then the names of its tensors that are not the trained ones.
    """
    from peft.utils.save_and_load import load_peft_weights, set_peft_model_state_dict

    model, read, saved = session.model, dict[str, torch.Tensor](), load_peft_weights(str(folder), device="cpu")
    # PiSSA, OLoRA and others would take a part of the base again, out of the model that goes on training; of adapters
    # that train its biases peft allows one
    config.init_lora_weights, config.bias, config.inference_mode = True, "none", True
    with ExitStack() as stack:
        stack.callback(lambda: "from_disk" in model.peft_config and model.delete_adapter("from_disk"))
        stack.callback(model.set_adapter, "default")
        model.add_adapter("from_disk", config)
        for name, module in model.named_modules():
            # tied to what the configuration names, and saved under its own name: peft would read it into a fresh base
            copies = getattr(module, "modules_to_save", None)
            if isinstance(copies, torch.nn.ModuleDict) and {*copies} == {"default"} and f"{name}.weight" in saved:
                module.update("from_disk")
        every = dict(model.named_parameters(remove_duplicate=False))  # a tied copy has a name of its own in the file
        # what peft would load, by the names in the model: an adapter may have the base's dtype then, a sharded model
        # would be whole no more, and a script may have replaced these on the object
        state = {"state_dict": lambda: every, "load_state_dict": lambda given, **_: read.update(given)}
        with having((model, name, function) for name, function in state.items()):
            set_peft_model_state_dict(model, saved, "from_disk")
        twins = {name: name.replace(".default", ".from_disk") for name in every if ".default" in name}
        beside = {name: every[twin] for name, twin in twins.items() if twin in every}
        for name, parameter in beside.items():
            parameter.data = read.get(twins[name], parameter.data).to(every[name].device, every[name].dtype)
        if lora.adapter_dtype == "mixed":
            multiply_in_input_dtype(model)
        model.set_adapter("from_disk")
        differing = tuple(name for name, parameter in beside.items() if not torch.equal(parameter, every[name]))
        return relative_difference(logits_of(model, first_tokens(session), training=False), wanted), differing


class ResumedProbe(Probe[TrainerState]):
    """Looks once, before the step that is resumed from: where it was saved and where it was read.

    Where a reference is to start from the same, at all that the training starts from, too.
    """

    def start(self, session: Session) -> None:
        """Note every tensor, quantisation statistics included, and the random state."""
        if session.run.probes.reference:
            every = chain(with_statistics(session.model.named_parameters()), session.model.named_buffers())
            drawn = {"random state": random_digest(session.device)}
            self.emit(TrainerState(step=0, tensors=_tensors(session, every), settings=_settings(session) | drawn))

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Note what the optimizer goes on from; most steps of most runs leave no record."""
        if step == session.run.probes.resume_from:
            trained = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad]
            self.emit(TrainerState(step=step, tensors=_tensors(session, trained), settings=_settings(session)))


def steps_taken(optimizer: Any) -> int:
    """Return how many steps the optimizer has behind it; 0 where it does not count them."""
    return max((int(state.get("step", 0)) for state in optimizer.state.values()), default=0)


def _tensors(session: Session, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Digests of these and of what the optimizer keeps of the model's, 16 hex digits."""
    held: dict[str, Any] = dict(named)
    for name, parameter in session.model.named_parameters():
        state = session.optimizer.state.get(parameter, {})
        held |= {f"{key} of {name}": value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: hex_digest(digest(tensor)) for name, tensor in held.items()}


def _settings(session: Session) -> dict[str, str]:
    found = {
        f"{key} of group {number}": json.dumps(value, default=str)  # betas come back from JSON as a list
        for number, group in enumerate(session.optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }
    if session.scaler is not None:
        found["scaler"] = json.dumps(session.scaler.state_dict(), sort_keys=True)
    return found
