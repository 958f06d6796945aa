"""The run that a training's own objects declare, and it as the session that probes know. Imports torch."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Literal, Self

import torch

from tunecheck.config.schema import Data, Evaluate, Probes, Run, Training
from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import WeightsDrawn
from tunecheck.core.optimization import learning_rate
from tunecheck.core.premises import OF_THE_RUN, Fact, Premise, Reason, Source, facts, opened
from tunecheck.listen import premises, provenance, trained_model
from tunecheck.listen.adapters import Adapters, WatchedLora, trained_tensors
from tunecheck.listen.expectations import EXPECTATIONS
from tunecheck.listen.named_answers import answers_named
from tunecheck.listen.optimizers import adamw_settings, highest_rate
from tunecheck.listen.options import rank_and_processes
from tunecheck.listen.user_code import noise_by_hooks
from tunecheck.models.description import Architecture, Model, Quantization
from tunecheck.models.layer_names import as_written, attention_kernel, is_pretrained, text_config
from tunecheck.probes.reference.own_logits import unpadded
from tunecheck.probes.reference.weight_file import drawn_anew, drawn_heads
from tunecheck.training.data import Batch, Tokens, collate
from tunecheck.training.restore import dropouts
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning

Done = tuple[float, frozenset[str]]
"""The share of the first epoch that does not come, and digests of rows that were trained before a resume."""
ROW_TOKENS = 64
"""Tokens that a probe's own row has at least, where the model has positions for them: a shorter one is repeated."""
THAWED_BESIDE = re.compile(r"(norm|ln_|embed|wte|wpe|head)[^.]*\.weight$|bias$")
"""Ends the names of tensors that scripts thaw by hand beside adapters, as LongLoRA (arXiv 2309.12307) does."""
OF_ANY_TRAINING = {"adapters", "frozen", "trains_base", "quantized", "checkpointing", "dropout", "several_steps"}
"""Features that a training of another's has as a run of the suite has them."""


class WatchedTraining(Training, frozen=False):
    """The optimisation, as far as it is declared, see TrainingSnapshot; what it shows in its course comes later."""

    schedule_steps: int
    first_step: int = 0
    resume_steps: int = 0
    resumed_rate: float | None = None
    warmup_steps: int = 0
    use_cache: bool = False
    _rate: float | None = None
    """The optimizer's rate in the present step, where the schedule has no closed form here."""

    def rate(self, applied_steps: int) -> float:
        """Return the learning rate of the step that follows this many applied ones."""
        if self._rate is not None:
            return self._rate
        done = self.first_step + applied_steps
        return learning_rate(done, self.learning_rate, self.lr_scheduler, self.warmup_steps, self.schedule_steps)


class WatchedRun(Run, frozen=False):
    """A training that is not ours, in the words of a run (RunSnapshot has the keys); what is expected comes later."""

    tier: Literal["watch"] = "watch"  # type: ignore[assignment]
    strategy: str
    training: WatchedTraining
    lora: WatchedLora | None = None
    sources: dict[str, str]
    """Key to the object that it was read from: "training.learning_rate" to "SFTConfig.learning_rate"."""
    premises: dict[Premise, Fact]
    strict: bool = False
    trained: frozenset[str] = frozenset()
    """Names of the tensors that are declared to learn."""
    rests: tuple[str, ...] = ()
    added: int | None = None
    parameters: int | None = None
    """Number of their elements, by arithmetic; None where it is not known."""
    drops: bool = False
    evaluates: bool = False
    autocast: bool | None = None
    """Whether the training declares autocast; None for a loop, which declares nothing of it."""
    expected: dict[str, Any] = {}  # noqa: RUF012 pydantic copies it
    masked: Literal["", "completion", "assistant"] = ""
    longest: int | None = None
    smoothing: float = 0.0
    pairs: bool = False
    """Whether the data set's columns are pairs of a chosen and a rejected answer, or answers that are rated."""
    rows_per_micro_batch: int | None = None

    def under(
        self, *, training: WatchedTraining, left_open: dict[Premise, str], sources: dict[str, str], **others: Any
    ) -> Self:
        """Return this run with this optimisation, which leaves these premises open."""
        known = premises.known_by(sources, adapted=self.lora is not None) | self.premises
        known |= facts(premises.OF_A_SCRIPT | left_open)
        return self.model_copy(update={"training": training, "premises": known, "sources": sources, **others})

    def expected_trainable(self, weights: Sequence[str]) -> set[str]:
        return set(self.trained)

    def trained_parameters(self) -> int | None:
        return self.parameters

    def uses_autocast(self, precision: str) -> bool | None:
        return self.autocast

    def fact(self, premise: Premise) -> Fact:
        return self.premises.get(premise, OF_THE_RUN)

    @property
    def uses_dropout(self) -> bool:
        """Return whether any part of the model drops activations in training."""
        return self.drops

    @property
    def features(self) -> frozenset[str]:
        """What the training does, in the words by which checks say what they apply to."""
        flags = {
            **dict.fromkeys(super().features & OF_ANY_TRAINING, True),
            "oracle": True,
            "user_code": True,
            "unknown_rows": not self.holds(Premise.CAUSAL_LM),
            "evaluates": self.evaluates,
            "pairs": self.pairs,
            "resume_declared": self.training.resume_steps > 0,
            "merge": self.lora is not None,
            "repeat": self.probes.repeat_steps > 0 or not self.holds(Premise.REPEATED),
            "resume": self.probes.resume_from is not None or not self.holds(Premise.RESUMED),
            "expectations": any("as_expected" in EXPECTATIONS[key].opens for key in self.expected),
        }
        return frozenset(name for name, on in flags.items() if on)


def _run_of(**declared: Any) -> WatchedRun:
    """Return the run of a model, which lacks its optimisation so far."""
    return WatchedRun.model_construct(
        # sections that another's training does not have
        data=Data.model_construct(name="the training's own", template="", max_length=64),
        evaluation=Evaluate.model_construct(splits=[], at=[], rows=0, batch_size=1),
        probes=Probes.model_construct(oracle_steps=[0, 1], directional_gradient=False),
        **declared,
    )


def described(model: Any) -> tuple[WatchedRun, dict[Premise, str]]:
    """Return what the model declares, and the premises that it leaves open. Raises Unsupported where FSDP shards it."""
    parameters = dict(model.named_parameters())
    if any(hasattr(p, "to_local") or getattr(p, "_is_flat_param", False) for p in parameters.values()):
        raise Unsupported("its parameters are sharded, which tunecheck does not support yet")
    if not trained_model.is_transformers(model):
        return _described_by_itself(model, parameters), premises.OF_OWN_CODE | opened(*premises.of_processes())
    adapters = Adapters.of(model)
    config, lora = adapters.config, adapters.lora
    trained, elements = frozenset(name for name, p in parameters.items() if p.requires_grad), None
    rests, added = tuple[str, ...](), None
    if lora is not None:
        trained, elements = trained_tensors(model, config)
        drawn = sorted(name for name in trained if ".lora_A." in name and name in parameters)
        if not any(parameters[name].requires_grad for name in drawn):  # as LoRA-FA has it (arXiv 2308.03303)
            rests, trained, added = tuple(drawn), trained.difference(drawn), elements
            elements = elements and elements - sum(parameters[name].numel() for name in rests)
    elif len(trained) == len(parameters):
        elements = base_parameters(model)
    quantization, folder, noise = quantization_of(model), weights_folder(model), noise_by_hooks(model)
    heads = drawn_heads(model, folder) if lora is not None and folder is not None else frozenset[str]()
    beside = [name for name, p in parameters.items() if p.requires_grad and name not in trained | heads]
    thawed = beside if lora is not None and all(map(THAWED_BESIDE.search, beside)) else []
    sources = {"model": f"{type(model.config).__name__}, weights in {folder or 'no known file'}"}
    if lora is not None:
        sources["lora"] = f"{type(config).__name__} of the {type(model).__name__}"
    elif config is None and adapters.configs:
        sources["lora"] = f"none: {adapters.unknown}"
    adapted = "qlora" if quantization is not None else "lora"
    name = Path(getattr(model.config, "_name_or_path", "") or type(model).__name__).name
    architecture, size = architecture_of(model.config), base_parameters(model)
    run = _run_of(
        model=Model.model_construct(name=name, parameters=size, architecture=architecture, sources=[]),
        strategy=adapted if lora is not None else "full" if len(trained) == len(parameters) else "partial",
        lora=lora,
        quantization=quantization,
        trained=trained | heads,
        rests=rests,
        added=added,
        parameters=elements,
        drops=bool(noise) or any(True for _ in dropouts(model)),
        premises=facts(opened(*premises.presumed(model, adapters, thawed)), Source.PRESUMED),
        sources=sources,
    )
    reasons = [*premises.of_processes(), *premises.of_model(model, run, noise)]
    reasons += [*premises.of_adapters(model, run, adapters), *premises.of_files(model, run, folder, heads)]
    return run, opened(*reasons)


def _described_by_itself(model: Any, parameters: Mapping[str, Any]) -> WatchedRun:
    """Return the run of a model that is none of transformers, of which its tensors alone are known."""
    trained = frozenset(name for name, _ in learning(model))
    name = type(as_written(model)).__name__  # in torch.compile's
    unknown, size = Architecture.model_construct(model_type=""), sum(p.numel() for p in parameters.values())
    return _run_of(
        model=Model.model_construct(name=name, parameters=size, architecture=unknown, sources=[]),
        strategy="full" if len(trained) == len(parameters) else "partial",
        trained=trained,
        drops=any(True for _ in dropouts(model)),
        premises={},
        sources={"model": f"{type(model).__name__}.named_parameters()"},
    )


def run_of_loop(
    model: Any, optimizer: Any, listener: Any, autocast: torch.dtype | None, objective: str, entry: Any = None
) -> WatchedRun:
    """Return what the model and the optimizer of a loop declare; `entry` is what each pass calls, if not the model."""
    run, left_open = described(model)
    settings, why = adamw_settings(optimizer, own=True)
    reasons: list[Reason] = [(objective, Premise.CAUSAL_LM), (why, Premise.UPDATE_RULE_KNOWN)]
    reasons += premises.of_loop(optimizer, objective, drops=run.drops)
    left_open |= premises.OF_A_LOOP | opened(*reasons, *premises.of_compiled(model if entry is None else entry))
    dtype = autocast or trained_model.dtype_of(model)
    training = WatchedTraining.model_construct(
        max_steps=listener.options.steps,
        schedule_steps=listener.options.steps,
        use_cache=bool(getattr(getattr(model, "config", None), "use_cache", False)),
        **{"learning_rate": 1.0, **settings},
        max_grad_norm=None,
        precision={torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32"),
        gradient_checkpointing=checkpoints(model),
        attention=attention_kernel(model) if trained_model.is_transformers(model) else "",
    )
    training._rate = highest_rate(optimizer)
    sources = {**run.sources, "training": f"parameter groups of the {type(optimizer).__name__}"}
    return run.under(training=training, left_open=left_open, sources=sources, id=listener.run_id, trainer="a loop")


def checkpoints(model: Any) -> bool:
    """Return whether the model recomputes activations: transformers 5.23 warns of the older word."""
    newer = getattr(model, "is_activation_checkpointing", None)
    return bool(getattr(model, "is_gradient_checkpointing", False) if newer is None else newer)


def architecture_of(config: Any) -> Architecture:
    """Return the shapes that a model's configuration states, 0 for others; its further keys as they are."""
    text = text_config(config)
    heads, width = getattr(text, "num_attention_heads", None) or 1, getattr(text, "hidden_size", 0)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else "default"
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    extra: dict[str, Any] = {} if kind == "default" else {"rope_scaling": dict(rope)}
    if (window := getattr(text, "sliding_window", None)) is not None:
        extra["sliding_window"] = window
    return Architecture.model_construct(
        None,
        model_type=str(text.model_type),
        vocab_size=text.vocab_size,
        hidden_size=width,
        num_hidden_layers=getattr(text, "num_hidden_layers", 0),
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * width,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        rms_norm_eps=getattr(text, "rms_norm_eps", None) or 1e-5,
        rope_theta=theta or getattr(text, "rope_theta", None) or 10000.0,
        head_dim=getattr(text, "head_dim", None) or width // heads,
        initializer_range=getattr(text, "initializer_range", 0.02),
        hidden_act=getattr(text, "hidden_act", None),
        **extra,
    )


def quantization_of(model: Any) -> Quantization | None:
    """Return the 4-bit quantisation that the model's configuration declares; None for any other."""
    config = getattr(model.config, "quantization_config", None)

    def read(key: str) -> Any:
        return config.get(key) if isinstance(config, dict) else getattr(config, key, None)

    if config is None or not read("load_in_4bit"):
        return None
    double = bool(read("bnb_4bit_use_double_quant"))
    return Quantization.model_construct(quant_type=read("bnb_4bit_quant_type"), double_quant=double, block_size=64)


def weights_folder(model: Any) -> Path | None:
    """Return the folder of safetensors files that the configuration was read from; None where it is not known."""
    name = provenance.read_from(getattr(model, "config", None))
    folder = Path(name)
    if name and not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        held = None
        with suppress(ValueError):  # of a folder that is gone
            held = try_to_load_from_cache(name, "config.json", revision=getattr(model.config, "_commit_hash", None))
        folder = Path(held).parent if isinstance(held, str) else Path("/nonexistent")
    return folder if name and any(folder.glob("*.safetensors")) else None


def weights_drawn(model: Any) -> Iterator[WeightsDrawn]:
    """Yield each model of transformers, this one or a part, that has a file's configuration and not its weights."""
    within = set[int]()
    for module in model.modules():
        folder = weights_folder(module) if is_pretrained(module) and id(module) not in within else None
        if folder is not None:
            within |= {id(part) for part in module.modules()}
            if tensors := drawn_anew(module, folder):
                name = Path(provenance.read_from(module.config)).name
                yield WeightsDrawn(model=type(module).__name__, folder=name, tensors=tensors)


def base_parameters(model: Any) -> int:
    """Return the number of the base's parameters, packed ones counted with their unpacked number."""
    adapters = (".lora_", ".modules_to_save.", ".trainable_tokens_")
    own = [p for name, p in model.named_parameters() if not any(part in name for part in adapters)]
    return sum(prod(p.quant_state.shape) if getattr(p, "quant_state", None) is not None else p.numel() for p in own)


class GivenRows:
    """The rows of the first window, where probes look for some of their own."""

    def __init__(self, window: Sequence[Batch], dataset: Any, pad_token_id: int, done: Done, most: int) -> None:
        """`most` are the positions that the model has."""
        given = ((ids.tolist(), labels.tolist()) for ids, labels in unpadded(window) if len(ids))
        self.train = [Tokens("?", (*ids,), (*labels,)) for ids, labels in given]
        self.dataset = dataset
        self.done_share, self.done_rows = done
        first, last = self.train[0], self.train[-1]
        other = last if last is not first else Tokens("?", first.input_ids[::-1], first.labels[::-1])
        self.heldout = [_long_enough(first, most), _long_enough(other, most)]
        self.collate = collate
        self.tokenizer = type("Padding", (), {"pad_token_id": pad_token_id})

    def rows(self, step: int) -> list[list[Tokens]]:
        return [self.train]


def _long_enough(row: Tokens, most: int) -> Tokens:
    if len(row.input_ids) >= ROW_TOKENS:
        return row
    times, width = -(-ROW_TOKENS // len(row.input_ids)), max(most, len(row.input_ids))
    return Tokens(row.key, (row.input_ids * times)[:width], (row.labels * times)[:width])


def _declared_number(model: Any, name: str) -> int:
    """Return this number of the model's configuration, of its text's where it has several; the largest without."""
    return int(getattr(text_config(getattr(model, "config", None)), name, None) or sys.maxsize)


def session_of(
    run: WatchedRun,
    model: Any,
    window: Sequence[Batch],
    *,
    optimizer: Any,
    tokenizer: Any = None,
    dataset: Any = None,
    done: Done = (0.0, frozenset()),
    **others: Any,
) -> Session:
    """Return the session of this run; `others` are fields of it that the training has besides."""
    pad = getattr(tokenizer, "pad_token_id", None)
    pad = 0 if pad is None or pad >= _declared_number(model, "vocab_size") else pad  # some are the tokenizer's alone
    rows: Any = GivenRows(window, dataset, pad, done, _declared_number(model, "max_position_embeddings"))
    return Session(
        run=run,
        processes=rank_and_processes()[1],
        device=trained_model.device_of(model),
        precision=str(run.training.precision),
        folder=weights_folder(model) or Path("/nonexistent"),
        model=model,
        tokenizer=tokenizer,
        batches=rows,
        optimizer=optimizer,
        answers_named=answers_named,
        **{"save_adapter": lambda own, folder: own.model.save_pretrained(str(folder)), **others},
    )
