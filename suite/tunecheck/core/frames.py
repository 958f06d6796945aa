"""Frames of tunecheck between a script and a library."""

from collections.abc import Callable
from typing import Any


def unblamed(function: Callable[..., Any]) -> None:
    """Have warnings count no frame of this function: they name the script's line as without it.

    Python leaves out the frames of its own imports, by these two words of their file. No other way suits Python 3.11.
    """
    code: Any = function.__code__
    function.__code__ = code.replace(co_filename=f"{code.co_filename} (no importlib._bootstrap)")  # type: ignore[attr-defined]
