"""What every record of a trace is."""

from __future__ import annotations

from tunecheck.core.frozen import Frozen


class Record(Frozen):
    """Base of everything that a trace may hold."""
