"""The command `tunecheck`: its signals are handled before anything else is imported."""

import sys
from collections.abc import Sequence

from tunecheck.core import interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one command and return its exit status; without arguments those of the process, which then ends."""
    listening = interrupts.listen()
    try:
        from tunecheck.core.errors import ConfigError

        try:
            from tunecheck.cli.commands import parser
            from tunecheck.cli.parser import run_command
        except ConfigError as error:  # of another package's checks
            print(f"tunecheck: {error}", file=sys.stderr)
            return 4
        return run_command(parser(), arguments)
    finally:
        interrupts.close()
        if listening:
            interrupts.stop(at_exit=arguments is None)
