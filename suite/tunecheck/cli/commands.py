"""The command line: all commands, by what they are about, and the one that prints their completion for a shell."""

import argparse
from pathlib import Path
from typing import Any

from tunecheck import __version__
from tunecheck.cli import reading, run, runs
from tunecheck.cli.parser import Parser
from tunecheck.config import TIERS, run_sources
from tunecheck.core.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")


def parser() -> Parser:
    """Return the parser of all commands."""
    told = "Check that LLM fine-tuning is correct: your own training, or reference runs on this machine."
    parser = Parser(prog="tunecheck", description=told)
    parser.add_argument("--version", action="version", version=f"tunecheck {__version__}")
    told = "folder with your runs, models and data (default: $TUNECHECK_CONFIGS, else ./configs)"
    parser.add_argument("--configs", metavar="FOLDER", help=told)
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in (run, runs, reading):
        group.add_commands(commands)
    completion = commands.add_parser("completion", help="print a script that completes commands, options and runs")
    completion.add_argument("shell", choices=SHELLS, help="your shell; load the script at its start")
    completion.set_defaults(command=_completion)
    return parser


def _completion(options: argparse.Namespace) -> None:
    try:
        import shtab
    except ImportError:
        needed = "completion: needs the package shtab, which is not installed; run: pip install 'tunecheck[completion]'"
        raise ConfigError([needed]) from None
    _describe(options.parser, [file.name for file in run_sources()], shtab.FILE)
    print(shtab.complete(options.parser, options.shell), end="")


def _describe(command: argparse.ArgumentParser, runs: list[str], file: Any) -> None:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _describe(below, runs, file)
        elif action.type is Path:
            action.complete = file  # type: ignore[attr-defined]
        elif action.dest in ("run", "what"):
            action.choices = [*TIERS, *runs] if action.dest == "what" else runs
