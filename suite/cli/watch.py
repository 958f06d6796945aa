"""The command `watch`: listen to a training that is not ours, and judge it."""

from __future__ import annotations

import argparse
from typing import Any

from suite.core.errors import ConfigError


def add_commands(commands: Any) -> None:
    """Add `watch` to the command line."""
    watch = commands.add_parser(
        "watch",
        help="judge a training of your own: tunecheck watch -- python train.py",
        usage="tunecheck watch [--steps N] [--stop] [--keep-status] -- COMMAND ...",
    )
    watch.add_argument("--steps", type=int, default=10, metavar="N", help="optimizer steps to listen to (default 10)")
    watch.add_argument("--stop", action="store_true", help="end the training after them")
    watch.add_argument(
        "--keep-status", action="store_true", help="end with the command's exit status, not the verdict's"
    )
    watch.add_argument("training", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run, unchanged")
    watch.set_defaults(command=_watch)


def _watch(options: argparse.Namespace) -> int:
    """Run the command, print the report and return the exit status."""
    command = options.training[1:] if options.training[:1] == ["--"] else options.training
    if not command:
        raise ConfigError(["watch: no command was given; for example: tunecheck watch -- python train.py"])
    if options.steps < 2:
        raise ConfigError(
            [f"--steps: should be at least 2, since the first step alone shows little (got {options.steps})"]
        )
    from rich.console import Console

    from suite.report.terminal import print_report
    from suite.results import exit_code
    from suite.session import written
    from suite.watch.launch import new_folder, run_name, shown, watch
    from suite.watch.options import Options

    folder = new_folder()
    listening = Options(
        folder=str(folder), name=run_name(command), steps=options.steps, stop=options.stop, command=shown(command)
    )
    try:
        report, status = watch(command, listening)
    except FileNotFoundError as error:
        raise ConfigError([f"watch: the command cannot be started: {error.strerror}: {error.filename}"]) from error
    report = written(report, folder)
    print_report(report, Console())
    print(f"report: {folder}")
    return status if options.keep_status else exit_code(report)
