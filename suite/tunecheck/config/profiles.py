"""Profiles: named presets of other keys."""

from __future__ import annotations

from typing import Any

PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "lean": {
        "lora": {"adapter_dtype": "mixed"},
        "training": {"gradient_checkpointing": True, "loss_chunk_tokens": 32},
    },
}
"""Profile to the values of its keys where the YAML does not give them."""


def filled_in(given: Any) -> Any:
    """Return a run's keys with its profile's presets in the sections that it has; what the YAML gives is kept."""
    profile = given.get("profile", "plain") if isinstance(given, dict) else None
    presets = PROFILES.get(profile, {}) if isinstance(profile, str) else {}
    filled = {
        section: {**keys, **given[section]} for section, keys in presets.items() if isinstance(given.get(section), dict)
    }
    return {**given, **filled} if filled else given
