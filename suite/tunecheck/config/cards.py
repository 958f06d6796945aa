"""Card classes: what to train with on a machine of this kind, as a layer of keys between a run's YAML and --set."""

from typing import Annotated, Any

from pydantic import BeforeValidator, NonNegativeInt, ValidationError

from tunecheck.config.comparisons import COMPARE
from tunecheck.config.problems import report_all
from tunecheck.config.references import shown
from tunecheck.config.source import Document, leaves, parse
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import config_file, config_files
from tunecheck.core.spelling import nearest
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
    for section, value in card.data.get("run", {}).items():
        for path, leaf in leaves((section,), value):
            document.set(path, leaf, card.place(("run", *path)))


def _rank(name: str) -> float:
    least = _least_bytes(name)
    return 1.0 if least is None else -float(least)


def _least_bytes(name: str) -> int | None:
    least = parse_bytes(_card(name).data.get("at_least"))
    return None if least is None else int(least)


def _card(name: str) -> Document:
    """Read the class's file, whose keys have their types. Raises ConfigError with its problems."""
    path = config_file(f"cards/{name}.yaml")
    document = parse(path, shown(path))
    if not document.problems:
        try:
            CardClass.model_validate(document.data)
            return document
        except ValidationError as error:
            report_all(error, CardClass, document)
    raise ConfigError(document.problems)
