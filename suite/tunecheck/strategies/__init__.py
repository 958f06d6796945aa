"""Training strategies: which parameters are trained. A strategy changes the model, never the loop.

It chooses them by modules and by names of tensors, so that one checks the other.
"""

from tunecheck.models.description import StrategyConfig
from tunecheck.models.shapes import Shape, is_layer_linear
from tunecheck.strategies import base_weights
from tunecheck.strategies.lora import LoraAdapters, target_layers

STRATEGIES: dict[str, base_weights.BaseWeights | LoraAdapters] = {
    "full": base_weights.FULL,
    "freeze_lower": base_weights.FREEZE_LOWER,
    "freeze_embeddings": base_weights.FREEZE_EMBEDDINGS,
    "adapter_layers": base_weights.ADAPTER_LAYERS,
    "last_layers_and_head": base_weights.LAST_LAYERS_AND_HEAD,
    "bitfit": base_weights.BITFIT,
    "lora": LoraAdapters(),
    "qlora": LoraAdapters(sections=("lora", "quantization")),
}


def trained_shapes(run: StrategyConfig, shapes: dict[str, Shape]) -> list[Shape]:
    """Return the shapes of all tensors that the run trains in a model of these shapes. Raises Unsupported."""
    if run.lora is None:
        return [shapes[name] for name in sorted(STRATEGIES[run.strategy].expected_trainable(run, list(shapes)))]
    rank, dora = run.lora.r, run.lora.use_dora
    linears = [name for name, shape in shapes.items() if is_layer_linear(name, shape)]
    # lora_A [r, in], lora_B [out, r] and, with DoRA, the magnitude [out] of every target
    targets = [shapes[f"{module}.weight"] for module in target_layers(run, linears)]
    parts = [((rank, columns), (rows, rank), *([(rows,)] if dora else [])) for rows, columns in targets]
    return [shape for adapter in parts for shape in adapter]
