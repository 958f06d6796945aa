"""Plain frozen data by inheritance: what derives from `Frozen` is a dataclass without a decorator of its own."""

from dataclasses import Field, dataclass
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen:
    """Base of classes whose annotated attributes are fields, given by keyword and never changed."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass a frozen dataclass."""
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, kw_only=True)(cls)


class Record(Frozen):
    """Base of everything that a trace may hold."""
