"""Strategies of hypothesis for what a user, a disk or another program may hand to tunecheck."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(max_size=12) | st.sampled_from(
    ["", " ", "🦀", "\ud800", "\x00", "‮", "a" * 300, "../../etc/passwd", "nan", "-1", "1e999", "~", "null", "*a", "&a"]
)
NUMBERS = st.sampled_from([0, -1, 1, 2**63, 10**400, 0.5, -0.0, 1e308, float("inf"), float("-inf"), float("nan"), True])
LEAVES = TEXT | NUMBERS | st.none()
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """The JSON value with one to three of its parts replaced, removed or doubled."""
    return st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "del", "twice"]), VALUES), min_size=1, max_size=3
    ).map(lambda changes: _changed(value, changes))


def _changed(value: Any, changes: list[tuple[int, str, Any]]) -> Any:
    held = json.loads(json.dumps(value))
    for number, how, new in changes:
        places = list(_places(held))
        if not places:
            return new
        container, key = places[number % len(places)]
        if how == "set":
            container[key] = new
        elif how == "del":
            del container[key]
        elif isinstance(container, list):
            container.insert(key, container[key])
    return held


def _places(value: Any) -> Any:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield value, key
        yield from _places(inner)
