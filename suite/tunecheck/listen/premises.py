"""Who declares the premises of a training that is not ours, or why nobody does: the last of several reasons counts."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from tunecheck.core.check import some
from tunecheck.core.premises import Fact, Premise, Reason, Source
from tunecheck.listen import provenance
from tunecheck.listen.adapters import Adapters, kind_of
from tunecheck.listen.options import rank_and_processes
from tunecheck.listen.user_code import departure, user_modules
from tunecheck.models.layer_names import as_written, attention_kernel, attention_of, hides_calls, stacked_layers
from tunecheck.probes.reference.measures import living

OF_A_SCRIPT = {
    Premise.OPTIMIZER_OF_TRAINED: "a script may hand model.parameters() to an optimizer, and train again with it",
    Premise.STEPS_DECLARED: "a script or its callbacks may end the training early",
    Premise.EVERY_STEP_LEARNS: "some steps may have nothing to learn from, such as answers that are all as good",
    Premise.ONE_CALL_PER_BATCH: "the loss may call the model again, for a teacher, a reference or a second view",
    Premise.AVERAGED_EACH_STEP: "ranks may average every so many steps, or hold parts of one model",
    Premise.SEED_DECLARED: "a script may seed for its adapters, and again for its rows",
    Premise.SAVING_DECLARED: "only the script decides how its adapters are saved",
    Premise.STATE_DECLARED: "a script may keep its best weights, an average or counts",
    Premise.PRODUCTS_KNOWN: "no trained weight belongs to a module with a known product",
    Premise.MERGED: "the script merged no adapters",
    Premise.DTYPES_DECLARED: "no object declares the dtype of each part",
    Premise.INTENT_DECLARED: "a script may break a convention on purpose",
}
"""What nobody declares of a training by a script of the user's."""
OF_A_LOOP = {
    Premise.STEP_DECLARED: "a loop carries out its own steps",
    Premise.MEAN_DECLARED: "a loop may average the means of its micro-batches",
    Premise.SETTINGS_DECLARED: "only the optimizer's groups declare rates and decays",
    Premise.SCHEDULE_KNOWN: "a loop declares no schedule",
    Premise.GRADIENTS_CLEARED_BEFORE: "a loop may clear gradients after a forward pass; accumulation_oracle judges it",
    Premise.CHECKPOINTING_DECLARED: "only the model declares checkpointing in a loop",
    Premise.TOKENS_REPORTED: "a loop reports no token count",
    Premise.LOSS_REPORTED: "a loop has no standard log",
    Premise.NORM_REPORTED: "a loop reports no norm; updates_match_adamw judges clipping",
}
"""What a loop, which has no trainer, does not declare either."""
OF_OWN_CODE = {
    Premise.BASE_UNWRITTEN: "the script may write to frozen tensors, such as running averages",
    Premise.TRAINED_UNWRITTEN: "the script may write to its weights, to clip, normalise or average them",
    Premise.TRAINED_SET_DECLARED: "only requires_grad declares which tensors are trained",
    Premise.COUNT_DECLARED: "no object declares the number of trained parameters",
    Premise.DEVICE_DECLARED: "no object declares the model's device",
}
"""What a model of the script's own may do, as far as anybody else knows."""
DECLARED_BY: dict[str, tuple[Premise, ...]] = {
    "training": (
        *(Premise.STEP_DECLARED, Premise.MEAN_DECLARED, Premise.LOSS_DECLARED, Premise.LOSS_UNSMOOTHED),
        *(Premise.GRADIENTS_CLEARED_BEFORE, Premise.CHECKPOINTING_DECLARED, Premise.SETTINGS_DECLARED),
        *(Premise.NORM_REPORTED, Premise.LOSS_REPORTED, Premise.TOKENS_REPORTED),
        *(Premise.UPDATE_RULE_KNOWN, Premise.GROUPS_DECLARED, Premise.SCHEDULE_KNOWN),
    ),
    "model": (
        *(Premise.ARCHITECTURE_KNOWN, Premise.ATTENTION_DECLARED, Premise.DEVICE_DECLARED),
        *(Premise.BASE_FROM_FILE, Premise.BASE_PLAIN),
    ),
    "lora": (Premise.TRAINED_SET_DECLARED, Premise.COUNT_DECLARED, Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH),
}
"""Trainer's arguments or optimizer, model's and adapters' configuration to what each declares; the rest was seen."""
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
"""transformers' schedules whose closed form is known here."""


def known_by(sources: dict[str, str], *, adapted: bool) -> dict[Premise, Fact]:
    """Return who declares each premise that nothing leaves open, of these objects that were read."""
    known = dict.fromkeys(Premise, Fact(source=Source.OBSERVED, where="the training's own objects and passes"))
    where = {"training": sources.get("training.learning_rate", "the trainer")} | sources
    for section in DECLARED_BY if adapted else ("training", "model"):
        known |= dict.fromkeys(DECLARED_BY[section], Fact(source=Source.DECLARED, where=where[section]))
    return known


def of_processes() -> Iterator[Reason]:
    """Yield what the other processes of the training leave open."""
    rank, processes = rank_and_processes()
    if processes > 1:
        yield f"each of {processes} processes sees only its own rows", Premise.EVERY_ROW_SEEN
    if rank:
        yield f"process {rank} saves nothing; process 0 does", Premise.FILES_WRITTEN_HERE


def of_model(model: Any, run: Any, noise: str) -> Iterator[Reason]:
    """Yield what a model of transformers, described as this run, leaves open; `noise` says what adds it, if any."""
    if run.lora is None and run.strategy == "partial":
        yield "some tensors are frozen, and no object declares which", Premise.TRAINED_SET_DECLARED
    if run.parameters is None:
        yield OF_OWN_CODE[Premise.COUNT_DECLARED], Premise.COUNT_DECLARED
    if own := user_modules(model):
        for premise in (Premise.BASE_UNWRITTEN, Premise.TRAINED_UNWRITTEN):
            yield f"{OF_OWN_CODE[premise]}: the model holds its own {own[0]}", premise
    if len(places := {p.device for p in model.parameters()}) > 1 and {place.type for place in places} == {"cuda"}:
        yield "the model lies on several GPUs", Premise.DEVICE_DECLARED
    yield noise, Premise.LOSS_REPEATABLE, Premise.FORWARD_REPEATABLE
    if hooked := sorted(name for name, p in model.named_parameters() if p._backward_hooks):
        yield f"a hook may edit the gradients of {some(hooked, 1)}", Premise.GRADIENTS_UNEDITED
    if run.quantization is None and getattr(model.config, "quantization_config", None) is not None:
        yield "tunecheck does not know the quantisation of the base", Premise.BASE_PLAIN
    if (attention := attention_kernel(model)) not in ("sdpa", "eager", "flash_attention_2"):
        yield f"tunecheck does not know the kernels of attention {attention!r}", Premise.ATTENTION_DECLARED
    if not (layers := stacked_layers(model)):
        yield "no module list has the configured number of layers", Premise.CHECKPOINTING_DECLARED
    if not (kinds := {type(found) for found in map(attention_of, layers) if found is not None}):
        yield "no layer has an attention module", Premise.ATTENTION_DECLARED
    elif others := [kind.__name__ for kind in kinds if not kind.forward.__module__.startswith("transformers.")]:
        why = f"{others[0]} computes attention in its own code, whatever the configuration selects"
        yield why, Premise.ATTENTION_DECLARED


def of_adapters(model: Any, run: Any, adapters: Adapters) -> Iterator[Reason]:
    """Yield what the adapters of this model, described as this run, leave open."""
    config, init = adapters.config, getattr(adapters.config, "init_lora_weights", True)
    if config is None and adapters.configs:
        yield adapters.unknown, Premise.TRAINED_SET_DECLARED
    if kind_of(config) == "ADALORA":  # arXiv 2303.10512
        yield "AdaLoRA adds a penalty to the loss", Premise.TOKEN_MEAN_LOSS, Premise.GRADIENT_BY_FORWARD
        yield "AdaLoRA sets singular values to 0 after a step", Premise.TRAINED_UNWRITTEN, Premise.UPDATE_RULE_KNOWN
    if run.lora is not None:
        if getattr(config, "target_parameters", None):
            yield "tunecheck does not enumerate adapters of LoraConfig.target_parameters", Premise.ADAPTERS_ENUMERATED
        if not isinstance(init, bool):
            yield f"LoraConfig.init_lora_weights = {init!r} selects another initialisation", Premise.ADAPTERS_FRESH
        if provenance.trained_before(model, adapters=True):
            yield "an earlier training of this process trained the adapters", Premise.ADAPTERS_FRESH
        if model in provenance.LOADED:
            yield "the adapters were loaded, not created", Premise.ADAPTERS_FRESH
    inits = [getattr(each, "init_lora_weights", True) for each in adapters.configs.values()]
    # these move no part of the base into the adapters, as PiSSA's and OLoRA's do
    if moving := [each for each in inits if each not in (True, False, "gaussian", "orthogonal", "eva")]:
        why = f"LoraConfig.init_lora_weights = {moving[0]!r} moves part of the base into the adapters"
        yield why, Premise.BASE_FROM_FILE
    if adapters.variant:
        yield f"peft's {adapters.variant} may move a part of the base into the adapters", Premise.BASE_FROM_FILE


def of_files(model: Any, run: Any, folder: Path | None, drawn: Collection[str]) -> Iterator[Reason]:
    """Yield what the weight files of the base leave open; these of its tensors are in none of them, and learn."""
    if provenance.trained_before(model, adapters=False):
        yield "an earlier training or merged adapters changed the base", Premise.BASE_FROM_FILE
    if folder is None:
        yield "the safetensors file of the base is unknown", Premise.BASE_FROM_FILE
    elif run.quantization is None and stores_quantised(folder):
        yield "the file has quantised weights, the base does not", Premise.BASE_FROM_FILE
    if drawn:
        yield f"{min(drawn)} is in no file, and is trained beside the adapters", Premise.COUNT_DECLARED


def stores_quantised(folder: Path) -> bool:
    """Return whether the model's own configuration file says that its weights are stored quantised."""
    config = folder / "config.json"
    return config.is_file() and '"quantization_config"' in config.read_text(encoding="utf-8")


def presumed(model: Any, adapters: Adapters, thawed: list[str]) -> Iterator[Reason]:
    """Yield what nothing proves and nothing refutes of a model of transformers, in which a script thawed these."""
    yield departure(model), Premise.ARCHITECTURE_KNOWN
    if adapters.lora is not None and getattr(adapters.config, "init_lora_weights", True) is False:
        yield "init_lora_weights=False draws B at random, which peft has for tests", Premise.ADAPTERS_FRESH
    if (kind := kind_of(adapters.config)) not in ("", "LORA", "ADALORA"):
        why = f"{kind} adapters of peft may draw numbers or mix rows"
        yield why, Premise.LOSS_REPEATABLE, Premise.ARCHITECTURE_KNOWN
    if thawed:
        why = f"{some(thawed, 1)} may be trained beside the adapters on purpose"
        yield why, Premise.TRAINED_SET_DECLARED, Premise.COUNT_DECLARED


def of_trainer(trainer: Any, loader: Any, schedule: str) -> Iterator[Reason]:
    """Yield what a Trainer's arguments, the loader of its rows and its schedule ("" for a given one) leave open."""
    if schedule not in SCHEDULES:
        which = f"the schedule {schedule!r}" if schedule else "the script's own schedule"
        yield f"tunecheck does not know the closed form of {which}", Premise.SCHEDULE_KNOWN
    yield from of_compiled(trainer.model_wrapped)
    if trainer.args.max_grad_norm in (None, 0):
        yield "gradients are not clipped, so no norm is computed", Premise.NORM_REPORTED
    if weighted := weighted_sampler(loader):
        yield f"{weighted} may draw a row several times", Premise.ROWS_DRAWN_ONCE


def of_compiled(called: Any) -> Iterator[Reason]:
    """Yield what torch.compile leaves open of what each pass calls, or of a part of it."""
    if (part := next((part for part in called.modules() if hides_calls(part)), None)) is not None:
        why = f"torch.compile hides the modules of the {type(as_written(part)).__name__} from hooks"
        yield why, Premise.ATTENTION_DECLARED, Premise.CHECKPOINTING_DECLARED


def weighted_sampler(loader: Any, depth: int = 6) -> str:
    """Return the class of a sampler that draws rows repeatedly by given weights; "" without one."""
    if isinstance(loader, torch.utils.data.WeightedRandomSampler) and loader.replacement:
        return type(loader).__name__
    within = (getattr(loader, name, None) for name in ("base_dataloader", "batch_sampler", "sampler") if depth)
    return next(filter(None, (weighted_sampler(layer, depth - 1) for layer in within if layer is not None)), "")


def adds_to_loss(config: Any) -> bool:
    """Return whether the model adds a term of its own to the loss it returns: that of a router."""
    return bool(getattr(config, "router_aux_loss_coef", 0) and getattr(config, "output_router_logits", False))


def of_loss(trainer: Any, resumed_at: int) -> Iterator[Reason]:
    """Yield what a resume, and a declared loss of another kind, leave open where the model does not."""
    args = trainer.args
    if resumed_at:
        why = f"the training resumed at step {resumed_at}"
        yield why, Premise.ADAPTERS_FRESH, Premise.BASE_FROM_FILE, Premise.UPDATE_RULE_KNOWN
    if adds_to_loss(getattr(trainer.model, "config", None)):
        yield "the router loss is added to the token loss", Premise.TOKEN_MEAN_LOSS
    if (kind := getattr(args, "loss_type", None)) not in (None, "nll", "chunked_nll"):
        yield f"the loss is not the token mean: loss_type = {kind}", Premise.TOKEN_MEAN_LOSS
    if noise := getattr(args, "neftune_noise_alpha", None):
        why = f"noise is added to the embeddings: neftune_noise_alpha = {noise}"
        yield why, Premise.TOKEN_MEAN_LOSS, Premise.FORWARD_REPEATABLE
    if getattr(trainer, "compute_loss_func", None) is not None:
        yield "compute_loss_func declares the script's own loss", Premise.LOSS_DECLARED
    if smoothing := getattr(args, "label_smoothing_factor", 0):  # loss_oracle knows what such a loss is not
        yield f"the loss is smoothed: label_smoothing_factor = {smoothing}", Premise.LOSS_UNSMOOTHED


def of_loop(optimizer: Any, objective: str, *, drops: bool) -> Iterator[Reason]:
    """Yield what a loop leaves open that has this optimizer, and a model that drops or does not."""
    if any(scaler.is_enabled() for scaler in living(torch.amp.GradScaler)):
        why = "a GradScaler scales the loss, and a loop does not declare when it unscales"
        yield why, Premise.LOSS_UNSCALED
        if not objective or any(group.get("fused") for group in optimizer.param_groups):
            yield why, Premise.UPDATE_RULE_KNOWN
    if drops:
        yield "the model has dropout, and a loop's passes cannot be repeated without it", Premise.LOSS_REPEATABLE
