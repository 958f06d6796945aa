"""What a run's YAML may say, as typed frozen models: a field is declared here and nowhere else.

Names are those of axolotl and transformers where they have one. Defaults live on the fields; the YAML files state only
what a reader should see.
"""

from __future__ import annotations

import hashlib
import json
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from suite.check import Check
from suite.checks import asked_of
from suite.config.model import Model, Section, Sha256
from suite.config.rules import check_rules
from suite.config.units import GIB as GIB
from suite.config.units import Bytes, Seconds
from suite.paths import configs_folder


class Canary(Section):
    """An invented question and answer that no model can know before training and must give exactly after it."""

    instruction: str
    response: str


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
    """Rows of the training split. Those that might not fit into max_length are left out."""
    heldout_rows: PositiveInt
    """Rows of the held-out split, which shares no text with the other."""


class Data(Section):
    """Instruction data: JSON lines of {"instruction", "response"} in two splits, and how they become tokens."""

    from_path: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    train: str
    """JSON lines of the training split: an absolute path, or one relative to configs/data."""
    heldout: str
    """JSON lines of the held-out split: other facts. A path as for train."""
    hub: HubRows | None = None
    """Rows to use instead of those two files; where neither hub nor cache has them, the files are used after all."""
    train_rows: PositiveInt | None = None
    """Use only the first rows of the training split: more epochs of fewer facts. None: all of them."""
    template: Literal["alpaca", "chat"] = "alpaca"
    """alpaca: the plain-text template, the same for every model; chat: the tokenizer's own chat template."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Tokens a row; a longer row is an error, since cutting it would lose its answer."""
    pad_to_sequence_len: bool = False
    """Pad every row to max_length tokens, so that a step's memory is that of max_length whatever the rows are."""
    packing: Literal[False] = False
    """Packing rows into one sequence is not carried out yet, so only false is accepted."""
    canary: Canary | None = None
    """When given, it takes the first place of every micro-batch."""

    def file(self, split: str) -> Path:
        """Where this split ("train" or "heldout") lies on disk."""
        return configs_folder() / (self.train if split == "train" else self.heldout)


class Lora(Section):
    """Low-rank adapters, as in peft's LoraConfig."""

    r: PositiveInt = 8
    alpha: PositiveInt = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[list[str], Field(min_length=1)]
    """Last part of a linear layer's name, exact; every one must be found in every layer."""
    adapter_dtype: Literal["fp32", "mixed", "model"] = "fp32"
    """fp32: products in fp32, as peft does by default, for which each adapted layer keeps an fp32 copy of its input;
    mixed: weights, gradients and moments in fp32, products in the model's dtype; model: all in the model's dtype, which
    rounds small updates away."""
    use_dora: bool = False
    """DoRA (arXiv 2402.09353): a magnitude for each output learns beside the direction."""
    use_rslora: bool = False
    """rsLoRA (arXiv 2312.03732): the adapter's product is scaled by alpha / sqrt(r) instead of alpha / r."""

    @property
    def scale(self) -> float:
        """What the adapter's product B A x is multiplied by."""
        return self.alpha / (sqrt(self.r) if self.use_rslora else self.r)


class Quantization(Section):
    """4-bit loading through bitsandbytes."""

    bits: Literal[4] = 4
    quant_type: Literal["nf4", "fp4"] = "nf4"
    block_size: Literal[64] = 64
    """transformers always uses 64; bitsandbytes 0.50.2 dequantises 128 and 256 wrongly on the CPU."""
    double_quant: bool = True


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
    seed: NonNegativeInt = 0
    deterministic: bool = False
    """torch.use_deterministic_algorithms, for runs whose losses must come back bit for bit: on a GPU attention's
    backward pass adds in an order of its own otherwise."""
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


class Probes(Section):
    """Evidence that costs time; everything cheap is always gathered."""

    oracle_steps: list[NonNegativeInt] = [0]
    """Steps whose window the oracle computes again: 0 is before any update, a later one sees real adapters."""
    directional_gradient: bool = False
    """At the last oracle step, hold the gradient against the loss itself, a little to either side: two more forward
    passes over the window."""
    repeat_steps: NonNegativeInt = 0
    """Train this many steps again in a fresh process and compare the losses bit for bit."""
    resume_from: PositiveInt | None = None
    """Save a checkpoint after this many steps and train the rest again from it in a fresh process."""
    read_back: bool = False
    """Read what was trained back in a fresh process by transformers and peft alone, and compare the logits."""
    memory_order: bool = False
    """Train a few steps in variants (checkpointing, more rows, no quantisation, no adapters), each in a fresh process,
    whose memory must have the known order."""
    generate: bool = False
    """Greedy continuations before and after, the canary's among them."""


PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "lean": {
        "lora": {"adapter_dtype": "mixed"},
        "training": {"gradient_checkpointing": True, "loss_chunk_tokens": 32},
    },
}
"""Profile to what its keys are where the YAML does not give them."""


class Run(Section):
    """One training run and what is asked of it. The file's folder is its tier, the file's name is its id."""

    from_path: ClassVar[frozenset[str]] = frozenset({"id", "tier"})

    id: str
    tier: Literal["quick", "convergence", "memory", "extended", "full"]
    model: Model
    data: Data
    strategy: Literal[
        "full",
        "freeze_lower",
        "freeze_embeddings",
        "adapter_layers",
        "last_layers_and_head",
        "bitfit",
        "lora",
        "qlora",
    ]
    """What learns: `tunecheck strategies MODEL` counts it."""
    profile: Literal["plain", "lean"] = "plain"
    """plain: what users write; lean: the same training in the least memory. A profile only presets other keys."""
    lora: Lora | None = None
    quantization: Quantization | None = None
    training: Training
    evaluation: Evaluate = Evaluate()
    probes: Probes = Probes()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: the GPU when there is one, else the CPU; the trace says which."""
    fallback: Literal["cpu", "none"] = "none"
    """What to do when the GPU runs out of memory: again in a fresh process on the CPU, or stop."""
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
        presets = PROFILES.get(given.get("profile", "plain"), {}) if isinstance(given, dict) else {}
        filled = {
            section: {**keys, **given[section]}
            for section, keys in presets.items()
            if isinstance(given.get(section), dict)
        }
        return {**given, **filled} if filled else given

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Run:
        check_rules(self)
        return self

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
    def features(self) -> frozenset[str]:
        """What this run does, in the words by which checks say what they apply to."""
        flags = {
            "adapters": self.lora is not None,
            "frozen": self.strategy != "full",
            "quantized": self.quantization is not None,
            "accumulation": self.training.gradient_accumulation_steps > 1,
            "oracle": bool(self.probes.oracle_steps) and not (self.lora and self.lora.dropout),
            "dropout": self.lora is not None and self.lora.dropout > 0,
            "directional": self.probes.directional_gradient and not (self.lora and self.lora.dropout),
            "several_steps": self.training.max_steps >= 5,
            "many_steps": self.training.max_steps >= 50,
            "long_run": self.training.max_steps >= 100,
            "repeat": self.probes.repeat_steps > 0,
            "resume": self.probes.resume_from is not None,
            "read_back": self.probes.read_back,
            "memory_order": self.probes.memory_order,
            "generate": self.probes.generate,
            "canary": self.data.canary is not None and self.probes.generate,
        }
        return frozenset(name for name, on in flags.items() if on)

    def resolved_checks(self) -> dict[str, Check]:
        """Every check asked of this run, with its limits, in the table's order."""
        return asked_of(self.features, self.checks)

    @property
    def fingerprint(self) -> str:
        """Digest (16 hex digits) of everything that determines the training: not the limits, not the deadline."""
        settings = self.model_dump(mode="json", exclude={"checks", "deadline", "id", "tier", "profile"})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
