"""The argument parser of all commands, and the place where errors become messages and exit statuses."""

import argparse
import contextlib
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tunecheck.core import interrupts
from tunecheck.core.errors import BadRow, ConfigError, DataError, SuiteError, WeightsUnavailable
from tunecheck.core.log import log, on_terminal
from tunecheck.core.redaction import redacted
from tunecheck.core.spelling import nearest
from tunecheck.core.text import one_line, printable
from tunecheck.core.unexpected import unexpected
from tunecheck.core.units import count_option, seconds_option
from tunecheck.results import Exit
from tunecheck.session import FLAG as FLAG

if TYPE_CHECKING:
    from rich.console import Console

COUNT: dict[str, Any] = {"type": count_option, "metavar": "N"}
TIME: dict[str, Any] = {"type": seconds_option, "metavar": "TIME"}
"""Keywords of `add_argument` for an option that takes a whole number, and for one that takes a time."""
NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)
"""Errors of a path that was named, wherever it is looked at first: another user's session, for one."""
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors of a disk, whatever a command line says."""


class Parser(argparse.ArgumentParser):
    """A parser whose usage errors end with 4: argparse's 2 means interrupted here."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        super().exit(Exit.MISCONFIGURED if status == 2 else status, message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse here what no option of this command is: argparse would show the usage of all commands."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = nearest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Answer a misspelt command or choice with the nearest one; argparse's own answer is the list of all alone."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            command = isinstance(action, argparse._SubParsersAction)
            told = f"`{self.prog} --help` lists all" if command else f"choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{nearest(str(value), known)}; {told}")

    def error(self, message: str) -> NoReturn:
        super().error(redacted(f"{message}\n{self.epilog}" if self.epilog else message))

    def executes(self, command: Callable[[argparse.Namespace], int | None], **defaults: bool) -> None:
        """Have this function execute the command and return its status, None for 0; its result can be had as JSON."""
        self.add_argument("--json", **FLAG, help="print the result as JSON, and all else to stderr")
        told = self.add_mutually_exclusive_group()
        told.add_argument("-v", "--verbose", **FLAG, help="print details, such as a line for every check")
        told.add_argument("-q", "--quiet", **FLAG, help="print no progress, only warnings and the result")
        self.set_defaults(command=command, **defaults)


def as_json(options: argparse.Namespace, result: Any, *, indent: int | None = 1) -> bool:
    """Return whether the command is to print JSON; then this result is what it prints when it ends."""
    if options.json:
        from tunecheck.core.trace import spelled

        options.document = json.dumps(spelled(result), allow_nan=False, indent=indent, default=str)
    return bool(options.json)


def answer(options: argparse.Namespace, result: Any, show: "Callable[[Console], None]") -> None:
    """Print the command's result as JSON when it ends, if that is asked for, else now, by this function."""
    if not as_json(options, result):
        from rich.console import Console

        show(Console())


def run_command(parser: Parser, arguments: Sequence[str] | None) -> int:
    """Parse the arguments, execute their command and return its status. Errors become messages, never tracebacks."""
    options = argparse.Namespace(verbose=False, quiet=False)
    with guarded() as lost, on_terminal():
        try:
            status = _executed(parser, arguments, options)
        except SystemExit as ended:  # by --help, --version and the parser's own errors
            ended.code = _delivered(int(ended.code or 0), options, lost())
            raise
        if document := getattr(options, "document", ""):
            print(document)
        return _delivered(status, options, lost())


def _executed(parser: Parser, arguments: Sequence[str] | None, options: argparse.Namespace) -> int:
    try:
        parser.parse_args(arguments, options)
        if not hasattr(options, "command"):
            parser.print_help(sys.stderr)
            return Exit.MISCONFIGURED
        if configs := getattr(options, "configs", None):
            os.environ["TUNECHECK_CONFIGS"] = configs  # child processes and pytest's workers read it too
        log.setLevel(logging.DEBUG if options.verbose else logging.WARNING if options.quiet else logging.INFO)
        if not getattr(options, "begins_itself", False):
            interrupts.work()
        with set_aside() if getattr(options, "json", False) else contextlib.nullcontext():
            return int(options.command(options) or 0)
    except ConfigError as error:
        print(printable(str(error)), file=sys.stderr)
        return Exit.MISCONFIGURED
    except SuiteError as error:
        log.error(error)
        machine = isinstance(error.__cause__, OSError) and error.__cause__.errno in OF_THE_MACHINE
        missing = isinstance(error, WeightsUnavailable | DataError) and not isinstance(error, BadRow)
        return Exit.UNJUDGED if machine or missing else Exit.MISCONFIGURED
    except OSError as error:
        removed = error.errno == errno.ENOENT and error.filename is None  # os.getcwd alone names none
        if error.errno not in NO_PATH and not removed:
            log.error(unexpected(error))
            return Exit.UNJUDGED
        path = "the current folder" if removed else one_line(str(error.filename), 100)
        log.error(f"{path}: {error.strerror}; use another path")
        return Exit.MISCONFIGURED
    except KeyboardInterrupt:
        log.error("interrupted")
        return Exit.INTERRUPTED
    except Exception as error:
        log.error(unexpected(error))
        return Exit.UNJUDGED


def _delivered(status: int, options: argparse.Namespace, error: OSError | None) -> int:
    """Return the status, UNJUDGED in the place of success where the result was printed and did not arrive."""
    if error is None:
        return status
    if not isinstance(error, BrokenPipeError):  # else the reader (head, less) has seen enough
        log.error(f"standard output cannot be written: {error.strerror}")
    return status if getattr(options, "leaves_files", False) else status or Exit.UNJUDGED


class _Unbroken(io.FileIO):
    """A standard stream whose writes succeed; what the first error was is kept."""

    def __init__(self, number: int, *, closed: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.lost: OSError | None = None
        self._was_closed = closed

    def write(self, data: Any, /) -> int:
        """Write, and return the number of bytes that need not be written any more."""
        try:
            if self._was_closed:
                raise OSError(errno.EBADF, "it is closed")
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            self.lost = self.lost or error
            return len(data)


@contextlib.contextmanager
def guarded() -> Iterator[Callable[[], OSError | None]]:
    """Guard the process's own standard streams, not a test's; yield what returns why output did not arrive, or None."""
    closed = set()  # the next file that is opened would have its number, and get what libraries and children print
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
            closed.add(number)
    before, taken = {}, dict[str, _Unbroken]()

    def lost() -> OSError | None:
        sys.stdout.flush()
        return taken["stdout"].lost if "stdout" in taken else None

    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not (stream is None or isinstance(stream, io.TextIOWrapper)):
            continue
        before[name], taken[name] = stream, _Unbroken(number, closed=number in closed)
        encoding = stream.encoding if stream else "utf-8"  # what it lacks (an arrow, an emoji) is spelled out
        text = io.TextIOWrapper(io.BufferedWriter(taken[name]), encoding, "backslashreplace", line_buffering=True)
        setattr(sys, name, text)
    try:
        yield lost
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Send to standard error what this process, a library or a child prints to standard output in this block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
