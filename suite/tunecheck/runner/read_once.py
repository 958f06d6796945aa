"""transformers reads each model's files once while it is imported, not twice."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

READER = "transformers.utils.import_utils"


@contextmanager
def names_read_once() -> Iterator[None]:
    """Let that module's caches keep everything, if it is imported in the block.

    It looks for names in 3,300 files when transformers is imported, and in all of them again when transformers.models
    is: the cache of the first time keeps 128 of 550 folders. 2.25 s until the training libraries are there, 2.06 s
    with this (5.23.0, EPYC, 2026-11-23).
    """
    bounded = functools.lru_cache

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        here = sys._getframe(1).f_globals.get("__name__") == READER
        return bounded(None)(maxsize) if here and callable(maxsize) else bounded(maxsize, typed)

    functools.lru_cache = lru_cache
    try:
        yield
    finally:
        functools.lru_cache = bounded
