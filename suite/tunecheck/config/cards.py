"""Card classes: what to train with on a machine of this kind, as a layer of keys between a run's YAML and --set."""

from typing import Annotated, Any

from pydantic import BeforeValidator, NonNegativeInt

from tunecheck.config.comparisons import COMPARE
from tunecheck.config.problems import loaded
from tunecheck.config.source import Document, described, known_names, leaves
from tunecheck.core.units import parse_bytes
from tunecheck.models.description import Section


class CardClass(Section):
    """The file of a card class."""

    at_least: Annotated[NonNegativeInt, BeforeValidator(parse_bytes)] | None = None
    """Memory of the smallest GPU of this class; None for the class without a GPU."""
    run: dict[str, Any] = {}  # noqa: RUF012 pydantic copies it
    """Keys of a run."""


def card_names() -> list[str]:
    """Return every class of configs/cards, the largest GPUs first and the class without a GPU last."""
    return sorted(known_names("cards"), key=_least, reverse=True)


def card_for(total_bytes: int | None) -> str:
    """Return the class for a machine whose largest GPU has this much memory; None is a machine without a GPU."""
    return next(name for name in card_names() if _least(name) <= (-1 if total_bytes is None else total_bytes))


def apply_card(document: Document, name: str) -> None:
    """Apply the class's keys to a run's document; a comparison sets its strategies itself. Raises ConfigError."""
    card, file = _card(name)
    if COMPARE in document.data:
        return
    for section, value in card.run.items():
        for path, leaf in leaves((section,), value):
            document.set(path, leaf, file.place(("run", *path)))


def _least(name: str) -> int:
    """Return the memory of the smallest GPU of this class; less than any for the class without a GPU."""
    least = _card(name)[0].at_least
    return -1 if least is None else least


def _card(name: str) -> tuple[CardClass, Document]:
    document = described("cards", name)
    return loaded(CardClass, document), document
