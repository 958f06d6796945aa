"""Schema of a run's YAML as typed frozen models: a field is declared here and nowhere else.

Names are those of axolotl and transformers where they have one. YAML files state only what a reader should see.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, WithJsonSchema, model_validator

from tunecheck.checks import asked_of
from tunecheck.core.check import Check
from tunecheck.core.errors import Unsupported
from tunecheck.core.optimization import DecayedTensors, learning_rate
from tunecheck.core.paths import config_file
from tunecheck.core.premises import OF_THE_RUN, Fact, Premise, Source
from tunecheck.core.text import file_stem
from tunecheck.core.units import NUMBER, SIZE_UNITS, TIME_UNITS, parse_bytes, parse_seconds
from tunecheck.models.description import Lora, Model, Quantization, Section, Sha256
from tunecheck.models.shapes import tensor_shapes
from tunecheck.strategies import STRATEGIES, trained_shapes

FallbackStep = Literal["lean", "offload", "evaluate_on_gpu", "cpu"]
"""Name of a step; tunecheck.runner.fallback_chain defines what each changes."""
FALLBACK_STEPS: tuple[str, ...] = get_args(FallbackStep)
"""All steps in the order in which a chain takes them."""


def as_chain(given: Any) -> Any:
    """Return the steps of a chain: none of "none", one of a name; anything else unchanged, for pydantic to judge."""
    return [] if given == "none" else [given] if isinstance(given, str) else given


Fallback = Annotated[
    list[FallbackStep],
    BeforeValidator(as_chain, json_schema_input_type=list[FallbackStep] | FallbackStep | Literal["none"]),
]


NotBlank = Annotated[str, Field(pattern=r"\S")]


class Canary(Section):
    """An invented question and answer that no model can know before training and must reproduce exactly after it."""

    instruction: NotBlank
    response: NotBlank
    """An empty answer would be reproduced by any model that ends at once."""


class HubRows(Section):
    """Rows of a data set on the Hugging Face hub, at a pinned revision."""

    id: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """Full commit hash: a branch name would let the rows change under the limits."""
    file: Annotated[str, Field(pattern=r"\.json$")]
    """Path in the repository of a JSON list of {"instruction", "input", "output"}, where input may be missing."""
    sha256: Sha256 | None = None
    """Digest of the file."""
    rows: PositiveInt
    """Rows of the training split. Rows that might not fit into max_length are left out."""
    heldout_rows: PositiveInt
    """Rows of the held-out split, which shares no text with the other."""


class Data(Section):
    """Rows as JSON lines in two splits, and their tokenisation: {"instruction", "response"}, or {"text"} for blocks."""

    from_path: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    train: str
    """JSON lines of the training split: an absolute path, or one relative to configs/data."""
    heldout: str
    """JSON lines of the held-out split: other facts. A path as for train."""
    hub: HubRows | None = None
    """Rows to use instead of the two files, which remain the fallback where neither hub nor cache has them."""
    train_rows: PositiveInt | None = None
    """Number of first rows of the training split to use: more epochs of fewer facts. None: all of them."""
    template: Literal["alpaca", "chat", "blocks"] = "alpaca"
    """alpaca: the plain-text template, the same for every model; chat: the tokenizer's own chat template; blocks: the
    texts concatenated and cut every max_length tokens, all of them supervised."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Tokens per row; a longer row is an error, since cutting it would lose its answer."""
    pad_to_sequence_len: bool = False
    """Pad every row to max_length tokens, so that the memory of a step does not depend on the rows."""
    packing: Literal[False] = False
    """Packing of rows into one sequence; not supported yet, so only false is accepted."""
    canary: Canary | None = None
    """Row that takes the first place of every micro-batch."""

    def file(self, split: str) -> Path:
        return config_file(self.train if split == "train" else self.heldout)


PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "lean": {"lora": {"adapter_dtype": "mixed"}, "training": {"gradient_checkpointing": True, "loss_chunk_tokens": 32}},
}
"""Profile to the values of its keys where the YAML does not give them."""


def _number_or_text(number: str, units: dict[str, int]) -> WithJsonSchema:
    text = {"type": "string", "pattern": rf"^\s*{NUMBER}\s*({'|'.join(units)})\s*$"}
    return WithJsonSchema({"anyOf": [{"type": number, "exclusiveMinimum": 0}, text]})


MOST_SECONDS = 30 * 24 * 3600
"""Thirty days: a longer time is a slip, and no timer of the system takes any number."""
Bytes = Annotated[PositiveInt, BeforeValidator(parse_bytes), _number_or_text("integer", SIZE_UNITS)]
Seconds = Annotated[
    PositiveFloat, Field(le=MOST_SECONDS), BeforeValidator(parse_seconds), _number_or_text("number", TIME_UNITS)
]


if TYPE_CHECKING:
    StrategyName = str
else:  # the table is the only place where a name is added
    StrategyName = Literal[tuple(STRATEGIES)]

Tier = Literal["quick", "convergence", "memory", "extended", "full"]


class Training(Section):
    """Settings of the optimisation."""

    max_steps: PositiveInt
    """Optimizer steps."""
    micro_batch_size: PositiveInt = 1
    """Sequences per forward pass."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes per optimizer step; the loss is the mean over the window's supervised tokens."""
    learning_rate: PositiveFloat
    lr_scheduler: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of max_steps, rounded up, over which the learning rate rises linearly from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    weight_decay_on: DecayedTensors = "all"
    """Trained tensors that decay. Many trainers leave out norms and biases, transformers' among them."""
    adam_beta1: Annotated[float, Field(gt=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat | None = 1.0
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """auto is bf16 where the device has it natively, fp16 on GPUs of compute capability 7.x where it can be, else fp32
    (the trace records which); fp16 uses a gradient scaler."""
    gradient_checkpointing: bool = False
    loss_chunk_tokens: PositiveInt | None = None
    """Tokens whose logits exist at one time, recomputed in the backward pass. None: those of the whole micro-batch,
    which in fp32 are the largest tensors of a small model's training."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    cudnn_attention: bool | None = None
    """Whether sdpa may take cuDNN's kernel. None: yes, but where it is known to return NaN gradients."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of torch, numpy and Python; numpy accepts no larger one."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms, for losses that repeat bit for bit: on a GPU the backward pass of attention
    otherwise sums in no fixed order. Strict: an operation without a deterministic variant is an error, and sdpa does
    not take cuDNN's kernel."""
    offload: Literal["none", "activations", "parameters"] = "none"
    """What a training on the GPU keeps in the CPU's memory: nothing; the activations saved for the backward pass; or
    parameters, gradients and optimizer state, through FSDP2's CPU offloading. Changes where, not what is computed."""
    threads: PositiveInt | None = None
    """CPU threads of torch; by default $OMP_NUM_THREADS or the cores this process may use."""

    def rate(self, applied_steps: int) -> float:
        """Return the learning rate of the step that follows this many applied ones."""
        warmup_steps = math.ceil(self.warmup_ratio * self.max_steps)
        return learning_rate(applied_steps, self.learning_rate, self.lr_scheduler, warmup_steps, self.max_steps)


class Parallel(Section):
    """Several processes that train together, each on its share of the micro-batches."""

    engine: Literal["ddp", "fsdp"] = "ddp"
    """ddp: torch's DistributedDataParallel, a whole model in every process. fsdp: FSDP2 (fully_shard), of each layer's
    parameters, gradients and optimizer state a part in every process."""
    processes: Annotated[int, Field(ge=2, le=64)]
    """Processes, started on this machine by torch's elastic agent."""


class Evaluate(Section):
    """Token-weighted evaluation in eval mode on fixed rows."""

    splits: Annotated[list[Literal["probe", "heldout"]], Field(min_length=1)] = ["probe"]
    """probe: fixed rows of the training set, whose loss falls without sampling noise; heldout: other facts."""
    rows: PositiveInt = 4
    """Rows of each split."""
    batch_size: PositiveInt = 4
    at: list[NonNegativeInt] = []
    """Steps before which to evaluate, besides the start and the end."""
    device: Literal["training", "cuda"] = "training"
    """cuda: run evaluation and generation on the GPU although the training is on the CPU; the weights are moved back
    and forth."""


class Probes(Section):
    """Evidence that costs time; everything cheap is always recorded."""

    oracle_steps: list[Annotated[int, Field(ge=-2)]] = [0, 1]
    """Steps whose window the oracle recomputes: 0 is before any update, a later one sees trained adapters, -1 is the
    last one and -2 the one before. Two in a row, an even and an odd one: a fault of every second step is seen."""
    directional_gradient: bool = False
    """Compare the gradient of the last oracle step with a finite difference of the loss: two more forward passes over
    the window."""
    repeat_steps: NonNegativeInt = 0
    """Steps to train again in a fresh process; the losses must be equal bit for bit."""
    reference: bool = False
    """After a fallback that ended on the CPU, train again in a process that starts there; the initial state and every
    loss must be equal bit for bit."""
    rungs: bool | Literal["gpu"] = False
    """Train a few steps at every fallback step, for `tunecheck fallback-table`: the memory and time each costs. gpu:
    only at those that train on the GPU."""
    resume_from: PositiveInt | None = None
    """Steps after which to save a checkpoint; the rest is trained again from it in a fresh process."""
    rescale_to: list[Annotated[int, Field(ge=1, le=64)]] = []
    """Numbers of processes by which to train that rest once more, besides the run's own: each step has the same rows,
    with more or less accumulation."""
    read_back: bool = False
    """Load what was trained in a fresh process by transformers and peft alone, and compare the logits."""
    merge: bool = False
    """Merge the saved adapter into the base in a fresh process, a 4-bit base dequantised first, and compare the logits.
    Takes as much memory as the base in its own dtype."""
    memory_order: bool = False
    """Train a few steps in variants (checkpointing, more rows, no quantisation, no adapters), each in a fresh process,
    whose peak memory must have the known order."""
    generate: bool = False
    """Generate greedily before and after training, from the canary among others."""
    prompts: list[str] = []
    """Further prompts to continue greedily before and after training, verbatim, without a template."""


class Run(Section):
    """One training run and the checks that apply to it. The file's folder is its tier, the file's name is its id.

    A file with `compare:` is several runs: see suite/tunecheck/config/comparisons.py.
    """

    from_path: ClassVar[frozenset[str]] = frozenset({"id", "tier", "comparison", "entry", "turn"})

    id: str
    tier: Tier
    """The name of the file's folder; written only in a file whose folder is no tier."""
    comparison: str = ""
    """Tier and file of the comparison that this run belongs to; empty for a run by itself."""
    entry: str = ""
    """Name of the run in that comparison."""
    turn: int = 0
    """Turn of a benchmark, from 1: the comparison is then of trainers, and the entry is named after its own."""
    also_in: list[Tier] = []
    """Further tiers that include the run."""
    model: Model
    data: Data
    strategy: StrategyName
    """Which parameters are trained: `tunecheck strategies MODEL` counts them."""
    profile: Literal["plain", "lean"] = "plain"
    """plain: what users write; lean: the same training in the least memory. A profile only presets other keys."""
    lora: Lora | None = None
    quantization: Quantization | None = None
    training: Training
    parallel: Parallel | None = None
    """Train in several processes; None: in one."""
    trainer: str = "native"
    """Trainer that carries the run out, a name in suite/tunecheck/config/trainers.py: native (the suite's own loop),
    transformers, trl."""
    evaluation: Evaluate = Evaluate()
    probes: Probes = Probes()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: the GPU when there is one, else the CPU; the trace records which."""
    fallback: Fallback = []
    """Fallback chain for GPU out-of-memory errors: each step is tried in a fresh process. none: stop."""
    vram: Bytes | None = None
    """Free GPU memory that the run needs; a machine without it skips the run. None: it may run on the CPU."""
    deadline: Seconds = 600.0
    """Seconds that an attempt may take before it is killed as hung."""
    allow_random_weights: bool = False
    """Whether random weights are allowed; checks that depend on learning are then unjudged."""
    checks: dict[str, dict[str, Any] | Literal["off"]] = {}
    """Limits by check, or off. A check that is not listed applies with its defaults."""
    ignore: dict[str, str] = {}
    """Check to the reason why what it finds is meant: it is still asked and counted, and no longer fails the run."""
    _places: dict[tuple[str, ...], str] = {}  # where each key was written: no part of what is dumped

    @model_validator(mode="before")
    @classmethod
    def _profile_fills_in(cls, given: Any) -> Any:
        """Return the keys with the profile's presets in the sections that there are; what the YAML gives is kept."""
        profile = given.get("profile", "plain") if isinstance(given, dict) else None
        presets = PROFILES.get(profile, {}) if isinstance(profile, str) else {}
        held = {section: keys for section, keys in presets.items() if isinstance(given.get(section), dict)}
        return {**given, **{section: {**keys, **given[section]} for section, keys in held.items()}} if held else given

    @property
    def name(self) -> str:
        """Return tier and id, such as quick/smollm2-135m-qlora: unlike the id alone it is unique."""
        return f"{self.tier}/{self.id}"

    @property
    def stem(self) -> str:
        return file_stem(self.name)

    @property
    def trains_base(self) -> bool:
        """Return whether base weights are trained: the base is then kept in fp32, and 16 bit means autocast."""
        return self.lora is None

    def expected_trainable(self, weights: Sequence[str]) -> set[str]:
        """Return the names of the trained tensors, from the weight file's tensor names. Raises Unsupported."""
        return STRATEGIES[self.strategy].expected_trainable(self, weights)

    def trained_parameters(self) -> int | None:
        """Return how many parameters are trained, by arithmetic from the shapes; None for unknown shapes."""
        try:
            return sum(map(math.prod, trained_shapes(self, tensor_shapes(self.model.architecture))))
        except Unsupported:
            return None

    def fact(self, premise: Premise) -> Fact:
        return OF_THE_RUN

    def holds(self, premise: Premise) -> bool:
        return self.fact(premise).source is not Source.OPEN

    @property
    def processes(self) -> int:
        return self.parallel.processes if self.parallel else 1

    @property
    def micro_batches_per_step(self) -> int:
        """Return the micro-batches of one optimizer step, those of all processes."""
        return self.training.gradient_accumulation_steps * self.processes

    @property
    def shards_parameters(self) -> bool:
        """Return whether FSDP2 holds the parameters: sharded over the processes, or offloaded to the CPU."""
        return (self.parallel is not None and self.parallel.engine == "fsdp") or self.training.offload == "parameters"

    @property
    def uses_dropout(self) -> bool:
        """Return whether training drops activations, so that no other code can compute its passes again."""
        return self.lora is not None and self.lora.dropout > 0

    def uses_autocast(self, precision: str) -> bool | None:
        """Return whether forward passes run under autocast in this precision; None where nobody says."""
        return self.trains_base and precision != "fp32"

    @property
    def uses_gpu(self) -> bool:
        return self.device != "cpu" or self.evaluation.device == "cuda"

    @property
    def gpus(self) -> int:
        """Return how many GPUs the run needs where it trains on them: one for each of its most processes."""
        return max(self.processes, *self.probes.rescale_to, 1)

    @property
    def features(self) -> frozenset[str]:
        """Return the features by which checks decide whether they apply to this run."""
        dropping = self.lora is not None and self.lora.dropout > 0  # of adapters: `uses_dropout` may say more
        flags = {
            "suite_rows": True,
            "own_clock": self.trainer == "native",  # other trainers time no step, and are timed by the probes' clock
            "adapters": self.lora is not None,
            "frozen": self.strategy != "full",
            "trains_base": self.trains_base,
            "quantized": self.quantization is not None,
            "checkpointing": self.training.gradient_checkpointing,
            "parallel": self.parallel is not None,
            "sharded": self.parallel is not None and self.parallel.engine == "fsdp",
            "oracle": bool(self.probes.oracle_steps) and not dropping,
            "dropout": dropping,
            "directional": self.probes.directional_gradient and not dropping,
            "several_steps": self.training.max_steps >= 5,
            "many_steps": self.training.max_steps >= 50,
            "long_run": self.training.max_steps >= 100,
            "repeat": self.probes.repeat_steps > 0,
            "fallback": bool(self.fallback),
            "reference": self.probes.reference,
            "resume": self.probes.resume_from is not None,
            "rescale": bool(self.probes.rescale_to),
            "read_back": self.probes.read_back,
            "merge": self.probes.merge,
            "memory_order": self.probes.memory_order,
            "generate": self.probes.generate or bool(self.probes.prompts),
            "canary": self.data.canary is not None and self.probes.generate,
        }
        return frozenset(name for name, on in flags.items() if on)

    def resolved_checks(self) -> dict[str, Check]:
        return asked_of(self.features, self.checks)

    @property
    def fingerprint(self) -> str:
        """Return the digest (16 hex digits) of all that determines the training."""
        of_the_judgement = ("checks", "ignore", "deadline", "profile", "also_in")
        settings = self.model_dump(mode="json", exclude={*of_the_judgement, *self.from_path})
        training, probes = settings["training"], settings["probes"]
        # without their defaults, keys that came later keep the fingerprints recorded before them
        later = ((settings, "trainer", "native"), (settings, "parallel", None))
        for section, key, default in (*later, (training, "cudnn_attention", None), (probes, "rescale_to", [])):
            if section[key] == default:
                del section[key]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
