"""Plain frozen data by inheritance: what derives from `Frozen` is a dataclass without a decorator of its own."""

from dataclasses import Field, FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen:
    """Base of classes whose annotated attributes are fields, given by keyword and never changed."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass a frozen dataclass. One that has a decorator besides may have it."""
        super().__init_subclass__(**kwargs)
        if "__dataclass_fields__" not in vars(cls):  # as in the copy that `slots=True` makes of a class
            # each method that dataclass writes is compiled anew: of 360 classes that was a tenth of a session's start
            dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
            del cls.__setattr__, cls.__delattr__  # a decorator refuses a class that has them; those below do

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(other) == _values(self)

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        values = zip(fields(self), _values(self), strict=True)
        return f"{type(self).__qualname__}({', '.join(f'{field.name}={value!r}' for field, value in values)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(frozen: Any) -> tuple[object, ...]:
    return tuple(getattr(frozen, field.name) for field in fields(frozen))


class Record(Frozen):
    """Base of everything that a trace may hold."""
