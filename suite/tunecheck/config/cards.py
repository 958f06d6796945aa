"""Card classes: what to train with on a machine of this kind, as a layer of keys between a run's YAML and --set."""

from __future__ import annotations

from tunecheck.config.comparisons import COMPARE
from tunecheck.config.references import shown
from tunecheck.config.source import Document, leaves, parse
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import config_file, config_files
from tunecheck.core.spelling import nearest
from tunecheck.core.units import parse_bytes


def card_names() -> list[str]:
    """Return every class of configs/cards, the largest GPUs first and the class without a GPU last."""
    return sorted((path.stem for path in config_files("cards")), key=_rank)


def card_for(total_bytes: int | None) -> str:
    """Return the class for a machine whose largest GPU has this much memory; None is a machine without a GPU."""
    fits = [name for name in card_names() if (least := _least_bytes(name)) is None or (total_bytes or -1) >= least]
    return fits[0]


def apply_card(document: Document, name: str) -> None:
    """Apply the class's keys to a run's document, each with its place. Raises ConfigError for an unknown class.

    A comparison is left unchanged: it sets its strategies itself.
    """
    if name not in (known := card_names()):
        raise ConfigError([f"configs/cards has no {name!r}{nearest(name, known)}; known: {', '.join(known)}"])
    if COMPARE in document.data:
        return
    card = _card(name)
    document.problems += card.problems
    given = card.data.get("run", {})
    for section, value in given.items() if isinstance(given, dict) else ():
        for path, leaf in leaves((section,), value):
            document.set(path, leaf, card.place(("run", *path)))


def _rank(name: str) -> float:
    least = _least_bytes(name)
    return 1.0 if least is None else -float(least)


def _least_bytes(name: str) -> int | None:
    """Return the memory of the smallest GPU of this class; None for the class without a GPU."""
    least = parse_bytes(_card(name).data.get("at_least"))
    return None if least is None else int(least)


def _card(name: str) -> Document:
    path = config_file(f"cards/{name}.yaml")
    return parse(path, shown(path))
