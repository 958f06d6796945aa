"""LoRA: low-rank adapters on named linear layers, through peft; the base is frozen. DoRA and rsLoRA are options."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunecheck.core.errors import BrokenRules, Unsupported
from tunecheck.core.spelling import nearest
from tunecheck.strategies.base import Strategy, StrategyConfig
from tunecheck.strategies.mixed_precision import multiply_in_input_dtype


@dataclass(frozen=True)
class LoraAdapters(Strategy):
    """Train lora_A and lora_B of every target module in every layer, and with DoRA its magnitude."""

    trains: str = "low-rank adapters"
    sections: tuple[str, ...] = ("lora",)

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return a PeftModel. Raises BrokenRules when a target module is missing in some layer."""
        from peft import LoraConfig, get_peft_model

        lora = run.lora
        assert lora is not None  # required with this strategy by the rules of the configuration
        problems = target_problems(run, [f"{name}.weight" for name, _ in model.named_modules()])
        if problems:
            raise BrokenRules(*((f"lora.target_modules.{number}", rule) for number, rule in problems.items()))
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
    """Return a module for each of the run's target_modules and each layer. Raises Unsupported when one is missing."""
    assert run.lora is not None
    if problems := target_problems(run, weights):
        raise Unsupported("; ".join(f"lora.target_modules: {problem}" for problem in problems.values()))
    return [module for target in run.lora.target_modules for _, module in sorted(_found(target, weights).items())]


def target_problems(run: StrategyConfig, weights: Sequence[str]) -> dict[int, str]:
    """Return index in target_modules to problem, for each target that some layer or every layer lacks."""
    assert run.lora is not None
    layers = run.model.architecture.num_hidden_layers
    known = sorted({name.split(".")[-2] for name in weights if ".layers." in name and "proj" in name})
    problems = {}
    for number, target in enumerate(run.lora.target_modules):
        if target in run.lora.target_modules[:number]:
            problems[number] = f"{target!r} is given twice: keep one of them"
            continue
        found = _found(target, weights)
        if missing := [layer for layer in range(layers) if layer not in found]:
            some = f"{layers - len(missing)} of {layers} layers (not {missing})"
            where = "no layer" if len(missing) == layers else some
            hint = nearest(target, known)
            problems[number] = f"{target!r} is in {where}{hint}; linear layers here: {', '.join(known)}"
    return problems


def _found(target: str, weights: Sequence[str]) -> dict[int, str]:
    """Return layer to the module whose name ends in the target."""
    pattern = re.compile(rf"(.*\.layers\.(\d+)\.(?:.*\.)?{re.escape(target)})\.weight")
    return {int(match[2]): match[1] for name in weights if (match := pattern.fullmatch(name))}
