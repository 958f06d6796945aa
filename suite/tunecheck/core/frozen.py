"""Plain frozen data by inheritance: what derives from `Frozen` is a dataclass without a decorator of its own."""

from dataclasses import dataclass
from typing import Any, dataclass_transform


@dataclass(frozen=True)
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen:
    """Base of classes whose annotated attributes are fields, given by keyword and never changed."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass a frozen dataclass, unless it was made one by hand, which `slots=True` does twice."""
        super().__init_subclass__(**kwargs)
        if "__dataclass_fields__" not in vars(cls):
            dataclass(frozen=True, kw_only=True)(cls)


class Record(Frozen):
    """Base of everything that a trace may hold."""
