"""Frozen records: equal by class and values, as a dataclass of their own would make them."""

from dataclasses import replace

from tunecheck.core.frozen import Frozen


class Point(Frozen):
    """A record."""

    x: int
    y: int = 0


class Place(Point):
    """A record that derives from another."""

    name: str = ""


def test_records_are_equal_by_class_and_values() -> None:
    """And so are their hashes."""
    assert Point(x=1) == Point(x=1, y=0) == replace(Point(x=2), x=1)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Place(x=1)
    assert Point(x=1) != 1
    assert len({Point(x=1), Point(x=1), Place(x=1)}) == 2


def test_a_record_tells_its_class_and_fields() -> None:
    """As it would be written."""
    assert repr(Place(x=1, name="here")) == "Place(x=1, y=0, name='here')"
