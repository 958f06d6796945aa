"""What every record of a trace is."""

from tunecheck.core.frozen import Frozen


class Record(Frozen):
    """Base of everything that a trace may hold."""
