"""The command `watch`: listen to a training that is not ours, and judge it."""

import argparse
import logging
import os
from pathlib import Path
from typing import Any

from tunecheck.cli.parser import COUNT, as_json
from tunecheck.config import with_limits
from tunecheck.config.answers import read_ignored, settings_for
from tunecheck.core import interrupts
from tunecheck.core.errors import ConfigError
from tunecheck.core.files import write_whole
from tunecheck.core.log import log
from tunecheck.core.paths import session_folder
from tunecheck.core.redaction import shown
from tunecheck.listen.expectations import EXPECTATIONS, read_expectations
from tunecheck.listen.options import Options
from tunecheck.results import Report, exit_code
from tunecheck.results.stored import plain, without_secrets, write_verdict
from tunecheck.session import written
from tunecheck.session.options import IGNORE, REPEATED


def add_commands(commands: Any) -> None:
    """Add `watch` to the command line."""
    watch = commands.add_parser(
        "watch",
        help="check your own training: tunecheck watch -- python train.py",
        usage="tunecheck watch [OPTION ...] -- COMMAND ...",
    )
    watch.add_argument("--steps", **COUNT, help="optimizer steps to record (default 10)")
    after = watch.add_mutually_exclusive_group()
    after.add_argument("--passive", action="store_true", help="let the training run to its end (default)")
    after.add_argument("--stop", action="store_true", help="end the training after these steps")
    after.add_argument(
        "--stop-on-fail", action="store_true", help="end the training after these steps if a check failed"
    )
    declares = f"declare what tunecheck cannot read from your objects: {', '.join(EXPECTATIONS)}"
    watch.add_argument("--expect", **REPEATED, metavar="KEY=VALUE", help=declares)
    add_answers(watch)
    watch.add_argument(
        "--twice", action="store_true", help="also repeat the first steps, and resume from a checkpoint, and compare"
    )
    watch.add_argument(
        "--keep-status", action="store_true", help="exit with the command's status instead of the verdict's"
    )
    watch.add_argument("training", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="your command, unchanged")
    watch.executes(_watch, leaves_files=True, begins_itself=True)


def _watch(options: argparse.Namespace) -> int:
    command = options.training[1:] if options.training[:1] == ["--"] else options.training
    if not command:
        raise ConfigError(["watch: no command; for example: tunecheck watch -- python train.py"])
    from rich.console import Console

    from tunecheck.listen.launch import run_name, watch
    from tunecheck.report.page import PAGE_FILE, page_html
    from tunecheck.report.summary import workflow_commands
    from tunecheck.report.terminal import print_changes, print_report

    script = next((word for word in command if word.endswith(".py")), command[0])
    settings = settings_for(script, Path.cwd())
    steps = next(number for number in (options.steps, settings.steps, 10) if number is not None)
    if steps < 2:
        where = "[tool.tunecheck] or tunecheck.toml: steps" if options.steps is None else "--steps"
        raise ConfigError([f"{where}: should be at least 2, because one step shows little (got {steps})"])
    of_file = [f"{key}={value}" for key, value in settings.expect.items()]
    expected = {**read_expectations(of_file), **read_expectations(options.expect)}
    interrupts.work()
    folder = session_folder()
    listening = Options(
        folder=str(folder),
        name=run_name(command),
        steps=steps,
        ignore={**settings.ignore, **read_ignored(options.ignore)},
        strict=options.strict or settings.strict,
        limits=with_limits({}, options.set),
        stop=options.stop,
        twice=options.twice,
        expect=expected,
        command=shown(command),
    )

    said: list[Report] = []

    def early(so_far: Report) -> bool:
        """Print what the steps say while the training goes on, and return whether it is to end."""
        report = without_secrets(so_far)
        write_verdict(report, folder)
        write_whole(folder / PAGE_FILE, page_html(report, folder))
        ends: bool = options.stop or (options.stop_on_fail and report.verdict == "fail")
        if log.isEnabledFor(logging.INFO):
            said.append(report)
            console = Console(stderr=True)
            goes = "ends" if ends else "continues"
            console.print()  # a progress bar may hold the line
            print_report(report, console, so_far=True)
            console.print(f"after {steps} steps; the training {goes}. report: {folder}", soft_wrap=True)
        return ends

    report, status = watch(command, listening, early)
    report = written(report, folder)
    if said:
        print_changes(report, said[0], Console())
    else:
        print_report(report, Console())
    print("".join(f"{line}\n" for line in workflow_commands(report, os.environ)), end="")
    as_json(options, plain(report), indent=None)
    print(f"report: {folder}")
    own = 128 - status if status < 0 else status  # killed by a signal: as a shell says it
    return own if options.keep_status else exit_code(report)


def add_answers(command: argparse.ArgumentParser) -> None:
    """Add `--ignore`, `--strict` and `--set`, by which a user answers to findings."""
    command.add_argument("--ignore", **IGNORE)
    command.add_argument("--strict", action="store_true", help="exit with 1 on suspicions too")
    command.add_argument("--set", **REPEATED, metavar="checks.NAME.LIMIT=VALUE", help="change a limit; may be repeated")
