"""Have calls of a function told to somebody for a while, whatever holds the function by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def told(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] = lambda *_, **__: None,
    after: Callable[..., None] = lambda *_, **__: None,
) -> Callable[[], None]:
    """Have a function of a class or a module tell its arguments before it runs, its result and they after it.

    Modules that imported a module's function by name hold the new one, too. Return what undoes it. `before` and `after`
    must not raise.
    """
    function = getattr(owner, name)

    @functools.wraps(function)
    def telling(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = function(*args, **kwargs)
        after(result, *args, **kwargs)
        return result

    holders = [owner]
    if not isinstance(owner, type):
        holders += [m for m in list(sys.modules.values()) if m is not owner and vars(m).get(name) is function]
    for holder in holders:
        setattr(holder, name, telling)

    def undo() -> None:
        for holder in holders:
            setattr(holder, name, function)

    return undo
