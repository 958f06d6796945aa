"""The console commands about earlier nights: history, compare, baseline, prune."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from suite.core.units import count_option

KEPT_SESSIONS = 30
WORSE = 1
"""Exit status of a comparison that found something worse."""


def add_commands(commands: Any) -> None:
    """The parser knows these commands; their modules are imported when one is carried out."""
    history = commands.add_parser("history", help="the nights of a run, or the last one of every run, by their figures")
    history.add_argument("run", nargs="?", help="a run, such as quick/smollm2-135m-qlora; all of them without it")
    history.add_argument(
        "--rebuild", action="store_true", help="make the store again from the sessions' folders, first"
    )
    history.add_argument("--json", action="store_true", help="machine-readable")
    history.set_defaults(command=_history)

    compare = commands.add_parser(
        "compare", help="two sessions or traces: which figures differ by more than they scatter"
    )
    compare.add_argument("a", type=Path, help="folder of a session, or a trace (.jsonl): before")
    compare.add_argument("b", type=Path, help="the same: after")
    compare.add_argument("--json", action="store_true", help="machine-readable")
    compare.set_defaults(command=_compare)

    baseline = commands.add_parser("baseline", help="small files with what is usual, made for committing")
    actions = baseline.add_subparsers(required=True, metavar="ACTION")
    accept = actions.add_parser("accept", help="the nights so far are what is usual from now on")
    accept.add_argument("run", help="a run, such as quick/smollm2-135m-qlora")
    accept.set_defaults(command=_accept)
    show = actions.add_parser("show", help="the accepted baselines")
    show.add_argument("run", nargs="?", help="only those of this run")
    show.add_argument("--json", action="store_true", help="machine-readable")
    show.set_defaults(command=_show)
    diff = actions.add_parser("diff", help="the last night of a run against its baseline")
    diff.add_argument("run", help="a run, such as quick/smollm2-135m-qlora")
    diff.add_argument("--file", type=Path, metavar="FILE", help="this baseline; by default that of the night's device")
    diff.set_defaults(command=_diff)

    prune = commands.add_parser("prune", help="remove old sessions' folders; their figures stay in the history")
    prune.add_argument(
        "--keep", type=count_option, default=KEPT_SESSIONS, metavar="N", help="last sessions to keep; 30"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.set_defaults(command=_prune)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _history(options: argparse.Namespace) -> int:
    from rich.console import Console

    from suite.core.paths import reports_folder
    from suite.core.text import counted
    from suite.history.remember import rebuild
    from suite.history.store import Store, history_file
    from suite.report.history_tables import print_last, print_nights

    if options.rebuild:
        path, sessions = rebuild(reports_folder(), _say)
        _say(f"{path}: made from {counted(sessions, 'session')}")
    run = options.run and _full_name(options.run)
    nights = Store(history_file()).nights(run=run)
    if run and not nights:
        return _none_yet(run)
    if options.json:
        print(json.dumps([dataclasses.asdict(night) for night in nights], indent=1))
    elif run:
        print_nights(run, nights, Console())
    else:
        print_last(nights, Console())
    return 0


def _compare(options: argparse.Namespace) -> int:
    from rich.console import Console

    from suite.history.compare import compare
    from suite.history.store import Store, history_file
    from suite.report.history_tables import print_comparison

    found = compare(options.a, options.b, Store(history_file()), _say)
    if options.json:
        print(json.dumps([comparison.to_json() for comparison in found], indent=1))
    else:
        for comparison in found:
            print_comparison(comparison, Console())
    return WORSE if any(comparison.worse for comparison in found) else 0


def _accept(options: argparse.Namespace) -> int:
    from suite.core.paths import baselines_folder
    from suite.history.baseline import accepted_from, write_baseline
    from suite.history.store import Store, history_file

    run = _full_name(options.run)
    accepted = accepted_from(Store(history_file()).nights(run=run), run=run)
    print(write_baseline(accepted, baselines_folder()))
    return 0


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console

    from suite.core.paths import baselines_folder
    from suite.history.baseline import read_baseline
    from suite.report.history_tables import print_baseline

    held = {path: read_baseline(path) for path in sorted(baselines_folder().glob("*.json"))}
    run = options.run and _full_name(options.run)
    asked = {path: baseline for path, baseline in held.items() if run in (None, baseline.run)}
    if options.json:
        print(json.dumps({path.name: dataclasses.asdict(one) for path, one in asked.items()}, indent=1))
        return 0
    if not asked:
        of = f" of {run}" if run else ""
        print(f"no baseline{of} in {baselines_folder()}; `tunecheck baseline accept RUN` makes one")
    for path, baseline in asked.items():
        print_baseline(path.name, baseline, Console())
    return 0


def _diff(options: argparse.Namespace) -> int:
    from rich.console import Console

    from suite.history.remember import against_file
    from suite.history.store import Store, history_file
    from suite.report.history_tables import print_standings
    from suite.results.baseline import regressions

    store, run = Store(history_file()), _full_name(options.run)
    nights = store.nights(run=run)
    if not nights:
        return _none_yet(run)
    standings = against_file(nights[-1], store, options.file, _say)
    print_standings(nights[-1], standings, Console())
    return WORSE if regressions(standings) else 0


def _prune(options: argparse.Namespace) -> int:
    from suite.core.paths import reports_folder
    from suite.core.text import counted, human_bytes
    from suite.history.prune import plan, prune
    from suite.history.store import Store, history_file

    what = plan(reports_folder(), keep=options.keep)
    for session in what.running:
        print(f"kept, since it may still be running: {session.name}")
    kept = f"{counted(len(what.kept) + len(what.running), 'session')} kept in {reports_folder()}"
    if options.dry_run:
        for session in what.removed:
            print(f"would be removed: {session.name}")
        print(f"{kept}, {len(what.removed)} would go")
        return 0
    freed = prune(what, Store(history_file()), _say)
    print(f"{kept}, {len(what.removed)} removed, {human_bytes(freed)} freed")
    return 0


def _full_name(run: str) -> str:
    """Tier and id of a run that is named by its id alone; a run of the past need not have a configuration any more."""
    if "/" in run:
        return run
    from suite.config import find_run

    return find_run(run).name


def _none_yet(run: str) -> int:
    """ "No baseline" is an answer; a name that no run has is a wrong request. Raises ConfigError."""
    from suite.config import find_run
    from suite.history.store import history_file

    find_run(run)
    print(f"{run}: no baseline: no night of it is in {history_file()}; each session adds one")
    return 0
