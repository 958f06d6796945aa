"""The quick run shrunk to a random two-layer model: seconds instead of half a minute."""

from __future__ import annotations

SETTINGS = [
    "model.architecture.num_hidden_layers=2",
    "model.architecture.hidden_size=128",
    "model.architecture.intermediate_size=256",
    "model.architecture.num_attention_heads=2",
    "model.architecture.num_key_value_heads=1",
    "model.architecture.vocab_size=512",
    "model.parameters=361088",
    "model.sources=[{kind: random}]",
    "allow_random_weights=true",
    "data.max_length=512",
    "training.max_steps=5",
    "device=cpu",
]
