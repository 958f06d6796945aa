"""Suggestions for misspelt names."""

import difflib
import re
from collections.abc import Iterable

SYNONYMS = {
    "gpu": "cuda",
    "rank": "r",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "lr": "learning_rate",
    "lr_scheduler_type": "lr_scheduler",
    "per_device_train_batch_size": "micro_batch_size",
    "batch_size": "micro_batch_size",
    "sequence_len": "max_length",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
}
"""Names of other tools to ours, which no edit distance would find: `gpu` is closer to `cpu` than to `cuda`."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name most like this one, else at one that has such a word; empty when none is."""
    names = list(known)
    synonym = SYNONYMS.get(name.lower())
    close = [synonym] if synonym in names else difflib.get_close_matches(name, names, n=1)
    close = close or [each for each in names if difflib.get_close_matches(name, re.split(r"[_.]", each), cutoff=0.8)]
    return f" (did you mean {close[0]!r}?)" if close else ""


def nearest_few(name: str, known: Iterable[str]) -> str:
    """Return a hint at three runs for a name that is close to none: those that contain it, else the most alike."""
    every = list(known)
    names = [other for other in every if name and name in other] or every
    few = ", ".join(difflib.get_close_matches(name, names, n=3, cutoff=0.0))
    return f"; nearest: {few}; `tunecheck list` shows all {len(every)}" if few else ""
