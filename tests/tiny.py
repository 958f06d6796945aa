"""The quick run shrunk to a two-layer model, random or trained: seconds instead of half a minute."""

from __future__ import annotations

from pathlib import Path

from benchmarks.detection.trial import TINY

CPU_FP32 = ["device=cpu", "training.precision=fp32"]
"""In fp32 on every CPU: on one with native bf16, auto is bf16, in which some of the tests' limits do not hold."""
TRAINED = [*TINY, *CPU_FP32]
"""The shipped model, whose logits are far from uniform: a wrong loss or position is larger than 16 bit's rounding."""
RANDOM = [
    "model.architecture.num_hidden_layers=2",
    "model.architecture.hidden_size=128",
    "model.architecture.intermediate_size=256",
    "model.architecture.num_attention_heads=4",
    "model.architecture.num_key_value_heads=2",
    "model.architecture.vocab_size=512",
    "model.parameters=361088",
    "model.sources=[{kind: random}]",
    "allow_random_weights=true",
    "data.max_length=512",
    "training.max_steps=5",
    *CPU_FP32,
]
"""Random weights of the same shape, for tests that change it."""
SHORT_ROWS = [f"data.{split}={Path(__file__).parent / 'short_rows' / split}.jsonl" for split in ("train", "heldout")]
SETTINGS = [*RANDOM, *SHORT_ROWS]
"""The same on rows of 20 characters instead of 150: two thirds of the time."""

SHRUNK = [
    "model.architecture={model_type: llama, vocab_size: 512, hidden_size: 64, num_hidden_layers: 2, "
    "intermediate_size: 128, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}",
    "model.parameters=106816",
    "model.sources=[{kind: random}]",
    "allow_random_weights=true",
    "data.max_length=512",
    "device=cpu",
]
"""The recipe of docs/troubleshooting.md: it shrinks a run of any tier to a random model of two layers on the CPU."""
