"""LoRA: low-rank adapters on named linear layers, through peft; the base is frozen. DoRA and rsLoRA are options."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunecheck.core.errors import BrokenRules
from tunecheck.core.spelling import nearest
from tunecheck.models.description import StrategyConfig
from tunecheck.strategies.mixed_precision import multiply_in_input_dtype


@dataclass(frozen=True)
class LoraAdapters:
    """Train lora_A and lora_B of every target module in every layer, and with DoRA its magnitude."""

    trains: str = "low-rank adapters"
    sections: tuple[str, ...] = ("lora",)

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return a PeftModel. Raises BrokenRules when a target module is missing in some layer."""
        from peft import LoraConfig, get_peft_model

        lora = run.lora
        assert lora is not None  # required with this strategy by the rules of the configuration
        target_layers(run, [f"{name}.weight" for name, _ in model.named_modules()])  # raises where one is missing
        config = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.target_modules),
            use_dora=lora.use_dora,
            use_rslora=lora.use_rslora,
            task_type="CAUSAL_LM",
        )
        adapted = get_peft_model(model, config, autocast_adapter_dtype=lora.adapter_dtype != "model")
        if lora.adapter_dtype == "mixed":
            multiply_in_input_dtype(adapted)
        return adapted

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return target x layer x {A, B}, and DoRA's magnitudes, under peft's names."""
        assert run.lora is not None
        parts = ("lora_A", "lora_B", *(["lora_magnitude_vector"] if run.lora.use_dora else []))
        modules = target_layers(run, weights)
        return {f"base_model.model.{module}.{part}.default.weight" for module in modules for part in parts}


def target_layers(run: StrategyConfig, weights: Sequence[str]) -> list[str]:
    """Return a module for each of the run's target_modules and each layer. Raises BrokenRules when one is missing."""
    assert run.lora is not None
    layers, targets = run.model.architecture.num_hidden_layers, run.lora.target_modules
    known = sorted({name.split(".")[-2] for name in weights if ".layers." in name and "proj" in name})
    modules, broken = list[str](), list[tuple[str, str]]()
    for number, target in enumerate(targets):
        found, key = _found(target, weights), f"lora.target_modules.{number}"
        if target in targets[:number]:
            broken.append((key, f"{target!r} is given twice: keep one of them"))
        elif missing := [layer for layer in range(layers) if layer not in found]:
            some = f"{layers - len(missing)} of {layers} layers (not {missing})"
            where = f"{'no layer' if len(missing) == layers else some}{nearest(target, known)}"
            broken.append((key, f"{target!r} is in {where}; linear layers here: {', '.join(known)}"))
        modules += [module for _, module in sorted(found.items())]
    if broken:
        raise BrokenRules(*broken)
    return modules


def _found(target: str, weights: Sequence[str]) -> dict[int, str]:
    pattern = re.compile(rf"(.*\.layers\.(\d+)\.(?:.*\.)?{re.escape(target)})\.weight")
    return {int(match[2]): match[1] for name in weights if (match := pattern.fullmatch(name))}
