"""Training strategies: which parameters are trained. A strategy changes the model, never the loop."""

from tunecheck.strategies.base import Strategy as Strategy
from tunecheck.strategies.base_weights import (
    AdapterLayers,
    BitFit,
    FreezeEmbeddings,
    FreezeLower,
    Full,
    LastLayersAndHead,
)
from tunecheck.strategies.lora import LoraAdapters, QLoraAdapters

STRATEGIES: dict[str, Strategy] = {
    "full": Full(),
    "freeze_lower": FreezeLower(),
    "freeze_embeddings": FreezeEmbeddings(),
    "adapter_layers": AdapterLayers(),
    "last_layers_and_head": LastLayersAndHead(),
    "bitfit": BitFit(),
    "lora": LoraAdapters(),
    "qlora": QLoraAdapters(),
}
"""Every strategy by its name in a run's YAML."""
