"""The adapters and trained tensors that a peft LoraConfig declares. Imports torch."""

import re
from math import sqrt
from typing import Any, NamedTuple, Self

import torch

from tunecheck.core.evidence import RanksScored
from tunecheck.models.description import Lora

ADAPTER = "default"
"""peft's name for the adapter that get_peft_model adds."""
BASE = "base_model.model."
"""What peft puts before the name of a base's tensor."""


class WatchedLora(Lora):
    """Adapters as a LoraConfig declares them."""

    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    token_indices: list[int] = []  # noqa: RUF012 pydantic copies it
    """Tokens of the embedding that learn, too."""
    unmatched: list[str] = []  # noqa: RUF012
    """Names of target_modules and modules_to_save that no module of the model has."""

    def as_saved(self) -> dict[str, object]:
        """Return what peft's adapter_config.json must say of these adapters, as far as it is read here."""
        alike = {name: getattr(self, name) for name in ("r", "use_dora", "use_rslora", "rank_pattern", "alpha_pattern")}
        return {**alike, "lora_alpha": self.alpha, "lora_dropout": self.dropout}

    def scale_of(self, module: str) -> float:
        """Return the factor of this module's adapter: of its own rank and alpha, where a pattern names it."""
        r = _of_pattern(self.rank_pattern, module, self.r)
        return float(_of_pattern(self.alpha_pattern, module, self.alpha) / (sqrt(r) if self.use_rslora else r))


def configs_of(model: Any) -> dict[str, Any]:
    """Return peft's configurations by adapter, of a model of peft's or of one that holds it; {} without."""
    held = (getattr(module, "peft_config", None) for module in model.modules())
    return next((configs for configs in held if isinstance(configs, dict)), {})  # a script may name its own thing so


def kind_of(config: Any) -> str:
    """Return peft's name of this kind of adapters; "" where there are none."""
    kind = getattr(config, "peft_type", "")
    return str(getattr(kind, "value", kind))


def is_lora(config: Any) -> bool:
    return kind_of(config) == "LORA"


def adapter_variant(model: Any) -> str:
    """Return peft's variant by which an adapted layer computes otherwise than LoRA and DoRA; "" without one."""
    held = (kind for module in model.modules() for kind in getattr(module, "lora_variant", {}).values())
    names = (type(kind).__name__ for kind in held if kind is not None)
    return next((name for name in names if not name.startswith("Dora")), "")


def ranks_scored(model: Any, steps: int) -> RanksScored | None:
    """Return what AdaLoRA's allocator has seen of this many steps; None of other adapters."""
    allocator: Any = getattr(getattr(model, "base_model", None), "rankallocator", None)
    config = getattr(allocator, "peft_config", None)
    if config is None or steps >= config.total_step - config.tfinal:  # no scores are computed in the last steps
        return None
    return RanksScored(steps=steps, begins=config.tinit, scored=len(allocator.ipt))


def adapters_of(config: Any, model: Any) -> WatchedLora:
    """Return the adapters that this peft LoraConfig declares; their dtype is that of the model's own."""
    halves = any("lora_" in name and p.dtype.itemsize == 2 for name, p in model.named_parameters())
    targets = config.target_modules
    named = {*(() if isinstance(targets, str) else targets or ()), *(config.modules_to_save or ())}
    named -= {"classifier", "score"}  # which peft adds to modules_to_save of a classifier, whose head has one of these
    modules = [name for name, _ in model.named_modules()]
    return WatchedLora.model_construct(
        r=config.r,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        target_modules=[targets] if isinstance(targets, str) else sorted(targets or ()),
        adapter_dtype="model" if halves else "fp32",
        use_dora=bool(getattr(config, "use_dora", False)),
        use_rslora=bool(config.use_rslora),
        rank_pattern=dict(config.rank_pattern or {}),
        alpha_pattern=dict(config.alpha_pattern or {}),
        unmatched=sorted(name for name in named if not any(_names([name], module) for module in modules)),
        token_indices=sorted({token for tokens in learnt_tokens(config).values() for token in tokens}),
    )


class Adapters(NamedTuple):
    """The adapters of a model of peft's; of others, into which they were injected, nobody knows what they are for."""

    configs: dict[str, Any]
    config: Any
    """The only one's, of the name that get_peft_model gives; None for others."""
    variant: str
    lora: WatchedLora | None
    """What that one declares, where it is of LoRA and computes as LoRA does."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return those of this model."""
        configs = getattr(model, "peft_config", {}) if hasattr(model, "get_base_model") else {}
        config, variant = configs.get(ADAPTER) if len(configs) == 1 else None, adapter_variant(model)
        return cls(configs, config, variant, adapters_of(config, model) if is_lora(config) and not variant else None)

    @property
    def unknown(self) -> str:
        """Why nobody knows which of them are trained."""
        names = ", ".join(map(repr, self.configs))
        return f"the model holds {names}, and no object declares which adapters are trained"


def trained_tensors(model: Any, config: Any) -> tuple[frozenset[str], int | None]:
    """Enumerate the tensors that a LoraConfig trains, and count their elements; requires_grad is not read."""
    sizes = dict[str, int]()
    lora, targeted = adapters_of(config, model), set(model.base_model.targeted_module_names)  # peft's own report
    for module, layer in model.base_model.model.named_modules():
        base = getattr(layer, "base_layer", layer)
        embeds = isinstance(base, torch.nn.Embedding)
        known = embeds or isinstance(base, torch.nn.Linear) or type(base).__name__ == "Conv1D"  # of GPT-2
        if module not in targeted or not known or not hasattr(layer, "in_features"):
            continue
        r, rows, columns = _of_pattern(lora.rank_pattern, module, lora.r), layer.out_features, layer.in_features
        half, ending = ("lora_embedding_", "") if embeds else ("lora_", ".weight")
        sizes[f"{BASE}{module}.{half}A.{ADAPTER}{ending}"] = r * columns
        sizes[f"{BASE}{module}.{half}B.{ADAPTER}{ending}"] = r * rows
        if not embeds and getattr(config, "lora_bias", False):
            sizes[f"{BASE}{module}.lora_B.{ADAPTER}.bias"] = rows
        if lora.use_dora:
            sizes[f"{BASE}{module}.lora_magnitude_vector.{ADAPTER}.weight"] = rows
    inner = r"\.(modules_to_save|original_module|token_adapter|base_layer)"
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding))
    widths = {re.sub(inner, "", name.removeprefix(BASE)): module.embedding_dim for name, module in found}
    for target, learnt in learnt_tokens(config).items():
        for module, width in widths.items():
            if _names([target], module):
                sizes[f"{BASE}{module}.token_adapter.trainable_tokens_delta.{ADAPTER}"] = len(learnt) * width
    adapted = {f"{BASE}{module}.base_layer.bias" for module in targeted} if config.bias != "none" else ()
    for name, parameter in model.named_parameters():
        module, kept, _ = name.partition(f".modules_to_save.{ADAPTER}.")
        saved = kept and module.endswith(tuple(config.modules_to_save or ()))  # as peft: "norm" is input_layernorm, too
        if saved or name in adapted or (config.bias == "all" and name.endswith("bias") and "lora_" not in name):
            sizes[name] = parameter.numel()
    # a bias that learns is one of the base's own, which is no parameter more
    known = config.bias == "none" and not getattr(config, "target_parameters", None)
    return frozenset(sizes), sum(sizes.values()) if known else None


def learnt_tokens(config: Any) -> dict[str, list[int]]:
    """Return the tokens that a LoraConfig has learn beside its adapters, by the name of their embedding."""
    given = getattr(config, "trainable_token_indices", None) or {}
    return dict(given) if isinstance(given, dict) else {"embed_tokens": list(given)}


def _names(targets: Any, module: str) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets or ())


def _of_pattern(pattern: dict[str, Any], module: str, default: Any) -> Any:
    """Return the value of the pattern that names this module, as peft matches it: a key, or an end of the name."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)
