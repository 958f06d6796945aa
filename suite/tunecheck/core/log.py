"""The logger `tunecheck`: what a command, or a session of tiers, says beside its result.

Progress is INFO, what the reader should know is WARNING, details are DEBUG. A program that imports tunecheck sets its
own handlers, or gets the warnings from Python.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tunecheck.core.redaction import redacted
from tunecheck.core.text import printable

log = logging.getLogger("tunecheck")


@contextmanager
def on_terminal(write: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hand the line of each record to `write`, by default to standard error, while the block is executed.

    Errors go to standard error in any case. The innermost block has all of them, and no handler has any: pytest
    attaches its own to every logger, and would show the lines once more under each failure.
    """

    def shown(record: logging.LogRecord) -> bool:
        line = printable(redacted(record.getMessage()))
        if record.levelno >= logging.ERROR or write is None:
            print(f"{'tunecheck: ' if record.levelno >= logging.ERROR else ''}{line}", file=sys.stderr, flush=True)
        else:
            write(line)
        return False

    before, log.filters = log.filters, [shown]
    log.setLevel((level := log.level) or logging.INFO)
    try:
        yield
    finally:
        log.filters = before
        log.setLevel(level)
