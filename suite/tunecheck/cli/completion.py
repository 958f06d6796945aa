"""The command `completion`: a script by which a shell completes commands, options, runs and files."""

import argparse
from pathlib import Path
from typing import Any

from tunecheck.config import TIERS, run_sources
from tunecheck.core.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")


def add_commands(commands: Any) -> None:
    """Add `completion` to the command line."""
    completion = commands.add_parser("completion", help="print a script that completes commands, options and runs")
    completion.add_argument("shell", choices=SHELLS, help="your shell; load the script at its start")
    completion.set_defaults(command=_completion)


def _completion(options: argparse.Namespace) -> int:
    """Print the script, with the runs that there are now. Raises ConfigError without shtab."""
    try:
        import shtab
    except ImportError:
        needed = "completion: needs the package shtab, which is not installed; run: pip install 'tunecheck[completion]'"
        raise ConfigError([needed]) from None
    _describe(options.parser, [file.name for file in run_sources()], shtab.FILE)
    print(shtab.complete(options.parser, options.shell), end="")
    return 0


def _describe(command: argparse.ArgumentParser, runs: list[str], file: Any) -> None:
    """Say of each argument, in these commands too, what completes it."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _describe(below, runs, file)
        elif action.type is Path:
            action.complete = file  # type: ignore[attr-defined]
        elif action.dest in ("run", "what"):
            action.choices = [*TIERS, *runs] if action.dest == "what" else runs
