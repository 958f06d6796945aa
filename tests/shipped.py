"""What the project ships, by name, for tests that must not depend on files of one's own beside it."""

from __future__ import annotations

from collections.abc import Sequence

from tunecheck.config import all_problems, read_runs
from tunecheck.config.schema import Run

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


def load_runs(tier: str, overrides: Sequence[str] = (), card: str | None = None) -> list[Run]:
    """Return all runs of a tier, for this card class if any. Raises ConfigError with the problems of all files."""
    runs, unusable = read_runs(tier, overrides, card)
    if unusable:
        raise all_problems(unusable.values())
    return runs
