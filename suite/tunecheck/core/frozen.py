"""Plain frozen data by inheritance: what derives from `Frozen` is a dataclass without a decorator of its own."""

from dataclasses import Field, FrozenInstanceError, dataclass
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen:
    """Base of classes whose annotated attributes are fields, given by keyword and never changed."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass a frozen dataclass. One that has a decorator besides may have it."""
        super().__init_subclass__(**kwargs)
        if "__dataclass_fields__" not in vars(cls):  # as in the copy that `slots=True` makes of a class
            dataclass(frozen=True, kw_only=True)(cls)
            del cls.__setattr__, cls.__delattr__  # a decorator refuses a class that has them; those below do

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


class Record(Frozen):
    """Base of everything that a trace may hold."""
