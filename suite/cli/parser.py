"""The argument parser of all commands, and the place where errors become messages and exit statuses."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from suite.core.errors import ConfigError, DataError, SuiteError, WeightsUnavailable
from suite.core.text import one_line
from suite.core.unexpected import unexpected

INTERRUPTED, USAGE_ERROR, INCONCLUSIVE = 2, 4, 6
"""pytest's statuses of an interrupt and of a usage error, and a session's in which nothing could be judged."""

NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
"""Errors that nothing but the name of a path causes, wherever it is looked at first."""


class Parser(argparse.ArgumentParser):
    """A parser whose usage errors end with 4: argparse's 2 means interrupted here."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the process with this status."""
        super().exit(USAGE_ERROR if status == 2 else status, message)


def run_command(parser: Parser, arguments: Sequence[str] | None) -> int:
    """Parse the arguments, execute their command and return its exit status.

    Errors become messages on standard error, never tracebacks.
    """
    for stream in (sys.stdout, sys.stderr):  # of a locale without an arrow, an emoji or a user's own letters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parser.parse_args(arguments)
        if not hasattr(options, "command"):
            parser.print_help(sys.stderr)
            return USAGE_ERROR
        if configs := getattr(options, "configs", None):
            os.environ["TUNECHECK_CONFIGS"] = configs  # child processes and pytest's workers read it too
        return int(options.command(options))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    except SuiteError as error:
        print(f"tunecheck: {error}", file=sys.stderr)
        return INCONCLUSIVE if isinstance(error, WeightsUnavailable | DataError) else USAGE_ERROR
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in NO_PATH:
            print(f"tunecheck: {unexpected(error)}", file=sys.stderr)
            return INCONCLUSIVE
        print(f"tunecheck: {one_line(str(error.filename), 100)}: {error.strerror}; name another path", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("tunecheck: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        print(f"tunecheck: {unexpected(error)}", file=sys.stderr)
        return INCONCLUSIVE
