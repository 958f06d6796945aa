"""Training strategies: which parameters are trained. One file each; a strategy changes the model, never the loop."""

from __future__ import annotations

from suite.strategies.adapter_layers import AdapterLayers
from suite.strategies.base import Strategy as Strategy
from suite.strategies.bitfit import BitFit
from suite.strategies.freeze_embeddings import FreezeEmbeddings
from suite.strategies.freeze_lower import FreezeLower
from suite.strategies.full import Full
from suite.strategies.last_layers_and_head import LastLayersAndHead
from suite.strategies.lora import LoraAdapters, QLoraAdapters

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
