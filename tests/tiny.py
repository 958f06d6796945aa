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

SHRUNK = [
    "model.architecture={model_type: llama, vocab_size: 512, hidden_size: 64, num_hidden_layers: 2, "
    "intermediate_size: 128, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}",
    "model.parameters=106816",
    "model.sources=[{kind: random}]",
    "allow_random_weights=true",
    "data.max_length=512",
    "device=cpu",
]
"""The recipe of the README: it shrinks a run of any tier to a random model of two layers on the CPU."""
