"""Commands about previous sessions: history, compare, baseline, prune."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from tunecheck.cli.parser import COUNT, FLAG, answer, as_json
from tunecheck.config import find_single_run
from tunecheck.core.log import log
from tunecheck.core.paths import baselines_folder, reports_folder
from tunecheck.core.text import counted, human_bytes
from tunecheck.history.baseline import accepted_from, baseline_file, read_baseline
from tunecheck.history.compare import compare
from tunecheck.history.remember import compare_to_history, plan, prune, rebuild
from tunecheck.history.store import RECENT, Store, history_file
from tunecheck.results import Exit
from tunecheck.results.stored import plain, write_record


def add_commands(commands: Any) -> None:
    """Add `history`, `compare`, `baseline` and `prune` to the command line."""
    history = commands.add_parser("history", help="show figures of a run's sessions, or of every run's last session")
    history.add_argument("run", nargs="?", help="a run, such as quick/smollm2-135m-qlora (default: every run)")
    history.add_argument("--rebuild", **FLAG, help="rebuild the history from the session folders first")
    history.executes(_history)

    compare = commands.add_parser(
        "compare",
        help="compare two sessions or traces: figures that differ by more than their scatter",
        epilog="example: tunecheck compare reports/runs/BEFORE reports/runs/AFTER",
    )
    compare.add_argument("a", type=Path, help="session folder or trace (.jsonl) before the change")
    compare.add_argument("b", type=Path, help="session folder or trace (.jsonl) after it")
    compare.executes(_compare)

    baseline = commands.add_parser("baseline", help="manage accepted baselines, small files for your repository")
    actions = baseline.add_subparsers(required=True, metavar="ACTION")
    accept = actions.add_parser(
        "accept",
        help="accept the sessions so far as the baseline",
        epilog="example: tunecheck baseline accept quick/smollm2-135m-qlora",
    )
    accept.add_argument("run", help="a run, such as quick/smollm2-135m-qlora")
    accept.executes(_accept)
    show = actions.add_parser("show", help="list the accepted baselines")
    show.add_argument("run", nargs="?", help="only baselines of this run")
    show.executes(_show)
    diff = actions.add_parser(
        "diff",
        help="compare a run's last session with its baseline",
        epilog="example: tunecheck baseline diff quick/smollm2-135m-qlora",
    )
    diff.add_argument("run", help="a run, such as quick/smollm2-135m-qlora")
    diff.add_argument("--file", type=Path, metavar="FILE", help="baseline file (default: that of its device)")
    diff.executes(_diff)

    prune = commands.add_parser("prune", help="remove old session folders; their figures stay in the history")
    prune.add_argument("--keep", **COUNT, default=30, help="number of sessions to keep (default 30)")
    prune.add_argument("--dry-run", **FLAG, help="only list what would be removed")
    prune.executes(_prune)


def _history(options: argparse.Namespace) -> None:
    from tunecheck.report.history_tables import print_entries, print_last

    if options.rebuild:
        path, sessions = rebuild(reports_folder())
        log.info(f"{path}: rebuilt from {counted(sessions, 'session')}")
    run = options.run and _full_name(options.run)
    store = Store(history_file())
    names = [run] if run else store.runs()
    entries = [entry for name in names for entry in store.entries(run=name, last=None if options.json else RECENT)]
    if run and not entries:
        _none_yet(run, options)
        return
    show = partial(print_entries, run, entries) if run else partial(print_last, entries)
    answer(options, entries, show)


def _compare(options: argparse.Namespace) -> int:
    from tunecheck.report.history_tables import print_comparisons

    found = compare(options.a, options.b, Store(history_file()))
    answer(options, found, partial(print_comparisons, found))
    return Exit.FAIL if any(comparison.worse for comparison in found) else Exit.PASS


def _accept(options: argparse.Namespace) -> None:
    run = _full_name(options.run)
    accepted = accepted_from(Store(history_file()).entries(run=run, last=RECENT), run=run)
    path = write_record(accepted, baseline_file(baselines_folder(), run, accepted.key.device))
    if not as_json(options, {"file": path, **plain(accepted)}):
        print(path)


def _show(options: argparse.Namespace) -> None:
    from tunecheck.report.history_tables import print_baselines

    held = {path: read_baseline(path) for path in sorted(baselines_folder().glob("*.json"))}
    run = options.run and _full_name(options.run)
    chosen = {path: baseline for path, baseline in held.items() if run in (None, baseline.run)}
    of = f"{f'of {run} ' if run else ''}in {baselines_folder()}"
    answer(options, {path.name: one for path, one in chosen.items()}, partial(print_baselines, chosen, of))


def _diff(options: argparse.Namespace) -> int:
    from tunecheck.report.history_tables import print_figures

    store, run = Store(history_file()), _full_name(options.run)
    if options.file:
        read_baseline(options.file)  # raises where it is none, also when there is nothing to compare it with
    entries = store.entries(run=run, last=1)
    if not entries:
        _none_yet(run, options)
        return Exit.PASS
    comparisons, note = compare_to_history(entries[-1], store, options.file)
    if note:
        log.warning(note)
    answer(options, comparisons, partial(print_figures, entries[-1], comparisons))
    return Exit.FAIL if any(comparison.status == "worse" for comparison in comparisons) else Exit.PASS


def _prune(options: argparse.Namespace) -> None:
    what = plan(reports_folder(), keep=options.keep)
    freed = None if options.dry_run else prune(what, Store(history_file()))
    if as_json(options, {**plain(what), "freed_bytes": freed}):
        return
    for session in what.running:
        print(f"kept, because it may be running: {session.name}")
    kept = f"{counted(len(what.kept) + len(what.running), 'session')} kept in {reports_folder()}"
    if freed is None:
        for session in what.removed:
            print(f"would be removed: {session.name}")
        print(f"{kept}, {len(what.removed)} would be removed")
    else:
        print(f"{kept}, {len(what.removed)} removed, {human_bytes(freed)} freed")


def _full_name(run: str) -> str:
    """Return tier and id of a run named by its id or path; a name with a tier needs no configuration any more."""
    return run if "/" in run and not run.endswith((".yaml", ".yml")) else find_single_run(run).name


def _none_yet(run: str, options: argparse.Namespace) -> None:
    """Report that a run has no history yet, as JSON by an empty list. Raises ConfigError for a name that no run has."""
    find_single_run(run)
    if not as_json(options, []):
        print(f"{run}: no baseline, because {history_file()} has no session of it; train it first")
