"""Names of what the project ships, for tests that must not depend on files of one's own beside it."""

from __future__ import annotations

RUN_FILES = (
    "quick/smollm2-135m-qlora",
    "convergence/smollm2-135m-qlora",
    "convergence/smollm2-135m-strategies",
    "convergence/strategies-seven-facts",
    "memory/smollm2-135m-lean",
    "memory/smollm2-135m-order",
    "memory/tinyllama-1.1b-qlora",
    "extended/smollm2-135m-trainers",
    "extended/strategies-instructions",
    "extended/tinyllama-1.1b-qlora",
    "full/llama-7b-qlora",
)
"""YAML files of runs and comparisons."""
DATA_SETS = {
    "alpaca-cleaned": "rust-python-facts",
    "rust-python-facts": "rust-python-facts",
    "rust-python-facts-512": "rust-python-facts",
    "rust-python-facts-canary": "rust-python-facts",
    "seven-rust-facts": "seven-rust-facts",
}
"""Data set to the folder of its rows in configs/data."""
