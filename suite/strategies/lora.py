"""LoRA: low-rank adapters on named linear layers, through peft; the base is frozen. DoRA and rsLoRA are its options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from suite.adapters import multiply_in_input_dtype
from suite.errors import Unsupported

if TYPE_CHECKING:
    from suite.config.schema import Run


class LoraAdapters:
    """Trains lora_A and lora_B of every target module in every layer, with DoRA its magnitude too, and nothing else."""

    trains = "low-rank adapters"

    def adapt(self, model: Any, run: Run) -> Any:
        """A PeftModel. Raises Unsupported when a target module is missing in some layer."""
        from peft import LoraConfig, get_peft_model

        lora = run.lora
        assert lora is not None  # the schema asks for it with this strategy
        target_layers(run, [f"{name}.weight" for name, _ in model.named_modules()])
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

    def expected_trainable(self, run: Run, weights: Sequence[str]) -> set[str]:
        """target x layer x {A, B}, and DoRA's magnitude, under peft's names."""
        assert run.lora is not None
        parts = ("lora_A", "lora_B", *(["lora_magnitude_vector"] if run.lora.use_dora else []))
        return {
            f"base_model.model.{module}.{part}.default.weight"
            for module in target_layers(run, weights)
            for part in parts
        }


def target_layers(run: Run, weights: Sequence[str]) -> list[str]:
    """The modules that the run's target_modules name, one per target and layer.

    Raises Unsupported when one is missing.
    """
    assert run.lora is not None
    layers = run.model.architecture.num_hidden_layers
    modules: list[str] = []
    problems = []
    for target in run.lora.target_modules:
        pattern = re.compile(rf"(.*\.layers\.(\d+)\..*\b{re.escape(target)})\.weight")
        found = {int(match[2]): match[1] for name in weights if (match := pattern.fullmatch(name))}
        if missing := [layer for layer in range(layers) if layer not in found]:
            where = (
                "no layer" if len(missing) == layers else f"{layers - len(missing)} of {layers} layers (not {missing})"
            )
            known = sorted({name.split(".")[-2] for name in weights if ".layers." in name and "proj" in name})
            problems.append(f"lora.target_modules: {target!r} is in {where}; linear layers here: {', '.join(known)}")
        modules += [found[layer] for layer in sorted(found)]
    if problems:
        raise Unsupported("; ".join(problems))
    return modules
