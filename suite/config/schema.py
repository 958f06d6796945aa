"""What a run's YAML may say, as typed frozen models: a field is declared here and nowhere else.

Names are those of axolotl and transformers where they have one. Defaults live on the fields; the YAML files state only
what a reader should see.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from suite.checks import asked_of
from suite.config.dataset import Canary as Canary
from suite.config.dataset import Data as Data
from suite.config.dataset import HubRows as HubRows
from suite.config.fallback import Fallback
from suite.config.profiles import PROFILES as PROFILES
from suite.config.profiles import filled_in
from suite.config.units import Bytes, Seconds
from suite.core.check import Check
from suite.core.units import GIB as GIB
from suite.models.adapters import Lora as Lora
from suite.models.adapters import Quantization as Quantization
from suite.models.description import Model, Section
from suite.strategies import STRATEGIES

if TYPE_CHECKING:
    StrategyName = str
else:  # the table is the only place where a name is added
    StrategyName = Literal[tuple(STRATEGIES)]

Tier = Literal["quick", "convergence", "memory", "extended", "full"]


class Training(Section):
    """The optimisation itself."""

    max_steps: PositiveInt
    """Optimizer steps."""
    micro_batch_size: PositiveInt = 1
    """Rows a forward pass."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes an optimizer step; the loss is the mean over all supervised tokens of the window."""
    learning_rate: PositiveFloat
    lr_scheduler: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of max_steps, rounded up, over which the rate rises linearly from 0."""
    weight_decay: NonNegativeFloat = 0.0
    adam_beta1: Annotated[float, Field(gt=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat | None = 1.0
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """auto is bf16 where the device computes it natively, else fp32 (the trace says which); fp16 uses a scaler."""
    gradient_checkpointing: bool = False
    loss_chunk_tokens: PositiveInt | None = None
    """Tokens whose logits exist at one time, computed again in the backward pass. None: those of the whole micro-batch,
    which in fp32 are the largest tensors of a small model's training."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of torch, numpy and Python alike; numpy takes no larger one."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms, for runs whose losses must come back bit for bit: on a GPU attention's
    backward pass adds in an order of its own otherwise."""
    offload: Literal["none", "activations", "parameters"] = "none"
    """What of a training on the GPU lies in the CPU's memory: nothing; what the backward pass needs; or parameters,
    gradients and the optimizer's state, through FSDP2's CPU offloading. Changes where, not what is computed."""
    threads: PositiveInt | None = None
    """CPU threads of torch; by default $OMP_NUM_THREADS or the cores this process may use."""


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
    """cuda: evaluations and texts come from the GPU although the training is on the CPU: the weights go there and back.
    """


class Probes(Section):
    """Evidence that costs time; everything cheap is always gathered."""

    oracle_steps: list[Annotated[int, Field(ge=-1)]] = [0]
    """Steps whose window the oracle computes again: 0 is before any update, a later one sees real adapters, -1 is the
    last one."""
    directional_gradient: bool = False
    """At the last oracle step, hold the gradient against the loss itself, a little to either side: two more forward
    passes over the window."""
    repeat_steps: NonNegativeInt = 0
    """Train this many steps again in a fresh process and compare the losses bit for bit."""
    reference: bool = False
    """After a fallback that ended on the CPU: train once more in a process that begins there, and compare the start and
    every loss bit for bit."""
    rungs: bool = False
    """Train a few steps at every rung of the ladder, for `tunecheck rungs`: what each costs in memory and time."""
    resume_from: PositiveInt | None = None
    """Save a checkpoint after this many steps and train the rest again from it in a fresh process."""
    read_back: bool = False
    """Read what was trained back in a fresh process by transformers and peft alone, and compare the logits."""
    merge: bool = False
    """Merge the saved adapter into the base in a fresh process, a 4-bit base unpacked first, and compare the logits.
    Takes as much memory as the base in its own dtype."""
    memory_order: bool = False
    """Train a few steps in variants (checkpointing, more rows, no quantisation, no adapters), each in a fresh process,
    whose memory must have the known order."""
    generate: bool = False
    """Greedy continuations before and after, the canary's among them."""
    prompts: list[str] = []
    """Texts to continue greedily before and after, as they are, without a template."""


class Run(Section):
    """One training run and what is asked of it. The file's folder is its tier, the file's name is its id.

    A file with `compare:` is several runs: see suite/config/comparisons.py.
    """

    from_path: ClassVar[frozenset[str]] = frozenset({"id", "tier", "comparison", "entry"})

    id: str
    tier: Tier
    comparison: str = ""
    """Tier and file of the comparison that this run is a row of; empty for a run by itself."""
    entry: str = ""
    """Its name in that comparison."""
    also_in: list[Tier] = []
    """Further tiers in which it is asked for."""
    model: Model
    data: Data
    strategy: StrategyName
    """What learns: `tunecheck strategies MODEL` counts it."""
    profile: Literal["plain", "lean"] = "plain"
    """plain: what users write; lean: the same training in the least memory. A profile only presets other keys."""
    lora: Lora | None = None
    quantization: Quantization | None = None
    training: Training
    trainer: str = "native"
    """What carries it out, a name in suite/config/trainers.py: native (the suite's own loop), transformers."""
    evaluation: Evaluate = Evaluate()
    probes: Probes = Probes()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: the GPU when there is one, else the CPU; the trace says which."""
    fallback: Fallback = []
    """What to do when the GPU runs out of memory: again in a fresh process, a rung lower on this ladder. none: stop."""
    vram: Bytes | None = None
    """Free GPU memory that the run needs; a machine without it skips the run. None: it may run on the CPU."""
    deadline: Seconds = 600.0
    """Seconds an attempt may take before it is killed as hung."""
    allow_random_weights: bool = False
    """Whether random weights will do; then what depends on learning is unjudged."""
    checks: dict[str, dict[str, Any] | Literal["off"]] = {}
    """Limits by check, or off. A check that is not named is asked with its defaults when it applies."""
    _places: dict[tuple[str, ...], str] = {}  # where each key was written: no part of what is dumped

    @model_validator(mode="before")
    @classmethod
    def _profile_fills_in(cls, given: Any) -> Any:
        return filled_in(given)

    @property
    def name(self) -> str:
        """Tier and id, such as quick/smollm2-135m-qlora: unlike the id alone it is unique."""
        return f"{self.tier}/{self.id}"

    @property
    def stem(self) -> str:
        """The name as the beginning of a file name."""
        return f"{self.tier}-{self.id}"

    @property
    def trains_base(self) -> bool:
        """Whether weights of the base itself learn: it is then kept in fp32 whole, and 16 bit means autocast."""
        return self.lora is None

    @property
    def uses_gpu(self) -> bool:
        """Whether any part of it may go to a GPU."""
        return self.device != "cpu" or self.evaluation.device == "cuda"

    @property
    def features(self) -> frozenset[str]:
        """What this run does, in the words by which checks say what they apply to."""
        flags = {
            "adapters": self.lora is not None,
            "frozen": self.strategy != "full",
            "trains_base": self.trains_base,
            "quantized": self.quantization is not None,
            "checkpointing": self.training.gradient_checkpointing,
            "accumulation": self.training.gradient_accumulation_steps > 1,
            "oracle": bool(self.probes.oracle_steps) and not (self.lora and self.lora.dropout),
            "dropout": self.lora is not None and self.lora.dropout > 0,
            "directional": self.probes.directional_gradient and not (self.lora and self.lora.dropout),
            "several_steps": self.training.max_steps >= 5,
            "many_steps": self.training.max_steps >= 50,
            "long_run": self.training.max_steps >= 100,
            "repeat": self.probes.repeat_steps > 0,
            "fallback": bool(self.fallback),
            "reference": self.probes.reference,
            "resume": self.probes.resume_from is not None,
            "read_back": self.probes.read_back,
            "merge": self.probes.merge,
            "memory_order": self.probes.memory_order,
            "generate": self.probes.generate or bool(self.probes.prompts),
            "canary": self.data.canary is not None and self.probes.generate,
        }
        return frozenset(name for name, on in flags.items() if on)

    def resolved_checks(self) -> dict[str, Check]:
        """Every check asked of this run, with its limits, in the table's order."""
        return asked_of(self.features, self.checks)

    @property
    def fingerprint(self) -> str:
        """Digest (16 hex digits) of everything that determines the training: not the limits, not the deadline."""
        settings = self.model_dump(mode="json", exclude={"checks", "deadline", "profile", "also_in", *self.from_path})
        if self.trainer == "native":  # what was recorded before there was another one stays comparable
            del settings["trainer"]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
