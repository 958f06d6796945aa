"""Training strategies: which parameters are trained. One file each; a strategy changes the model, never the loop."""

from __future__ import annotations

from tunecheck.strategies.adapter_layers import AdapterLayers
from tunecheck.strategies.base import Strategy as Strategy
from tunecheck.strategies.bitfit import BitFit
from tunecheck.strategies.freeze_embeddings import FreezeEmbeddings
from tunecheck.strategies.freeze_lower import FreezeLower
from tunecheck.strategies.full import Full
from tunecheck.strategies.last_layers_and_head import LastLayersAndHead
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
