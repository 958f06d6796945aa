"""BitFit (arXiv 2106.10199): only the biases are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecheck.core.errors import Unsupported
from tunecheck.strategies.base import StrategyConfig


class BitFit:
    """Train every bias of the model: in Qwen2 those of q, k and v; Llama has none."""

    trains: ClassVar[str] = "the biases"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all but its biases frozen. Raises Unsupported for a model without biases."""
        model.requires_grad_(False)
        own = [dict(module.named_parameters(recurse=False)) for module in model.modules()]
        biases = [parameters["bias"] for parameters in own if "bias" in parameters]
        if not biases:
            raise _without_biases(run)
        for bias in biases:
            bias.requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the weight file whose last part is "bias". Raises Unsupported when there is none."""
        biases = {name for name in weights if name.split(".")[-1] == "bias"}
        if not biases:
            raise _without_biases(run)
        return biases


def _without_biases(run: StrategyConfig) -> Unsupported:
    kind = run.model.architecture.model_type
    return Unsupported(
        f"strategy bitfit trains biases, and {run.model.name} (model_type {kind}) has none; use a model with biases, "
        "such as qwen2-0.5b, or strategy: adapter_layers or lora"
    )
