"""The command `tunecheck`: its signals are handled before anything else is imported."""

from __future__ import annotations

from collections.abc import Sequence

from tunecheck.core import interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one command and return its exit status; without arguments those of the process, which then ends."""
    listening = interrupts.listen()
    try:
        from tunecheck.cli.commands import execute

        return execute(arguments)
    finally:
        interrupts.close()
        if listening:
            interrupts.stop(at_exit=arguments is None)
