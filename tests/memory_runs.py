"""Shipped runs with changed settings, by default one whose YAML states what memory it needs."""

from __future__ import annotations

from tunecheck.config import find_run, load_run


def run_with(*settings, name="memory/tinyllama-1.1b-qlora"):
    """A run with these settings; the memory tier's states a need of 3 GiB."""
    return load_run(find_run(name), settings)
