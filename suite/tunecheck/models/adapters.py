"""Sections `lora` and `quantization` of a run: adapters, and the quantisation of the base."""

from math import sqrt
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from tunecheck.models.description import Section


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
