"""Mistakes of users, each where a user would make it: in the rows, the collator, the model, a callback, the loop."""

from benchmarks.scripts.bugs import (
    alone,
    chats,
    habits,
    handed,
    loops,
    loss,
    model,
    optimizer,
    order,
    parts,
    practices,
    recipes,
    reporting,
    rows,
    strangers,
    unseen,
    unseen_second,
)
from benchmarks.scripts.bugs.mistake import MISTAKES

__all__ = [
    "MISTAKES",
    "alone",
    "chats",
    "habits",
    "handed",
    "loops",
    "loss",
    "model",
    "optimizer",
    "order",
    "parts",
    "practices",
    "recipes",
    "reporting",
    "rows",
    "strangers",
    "unseen",
    "unseen_second",
]
