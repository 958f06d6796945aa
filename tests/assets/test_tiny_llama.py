"""The trained tiny model that is shipped: small, whole, loaded as any other, better than a uniform guess."""

from __future__ import annotations

import hashlib

from tunecheck.config import load_model
from tunecheck.core.paths import config_file

WEIGHTS = config_file("models/tiny-llama/model.safetensors")


def test_the_file_is_small_and_the_one_that_the_yaml_names():
    """A megabyte at most, by its digest."""
    [source] = load_model("tiny-llama").sources
    assert WEIGHTS.stat().st_size <= 1_000_000
    assert source.sha256 == hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
