"""Commands that read finished sessions: judge a trace again, show its rows, compare figures with previous ones."""

import argparse
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from tunecheck.checks import CHECKS
from tunecheck.cli.parser import COUNT, FLAG, answer, as_json
from tunecheck.cli.run import add_answers
from tunecheck.config import find_single_run
from tunecheck.config.answers import read_ignored
from tunecheck.core.errors import ConfigError, TraceError
from tunecheck.core.evidence import RowShown
from tunecheck.core.files import listed, write_whole
from tunecheck.core.log import log
from tunecheck.core.paths import baselines_folder, reports_folder
from tunecheck.core.redaction import shown
from tunecheck.core.spelling import nearest
from tunecheck.core.text import counted, human_bytes, printable
from tunecheck.core.trace import read
from tunecheck.history.baseline import accepted_from, baseline_file, read_baseline
from tunecheck.history.compare import compare
from tunecheck.history.remember import compare_to_history, plan, prune, rebuild
from tunecheck.history.store import RECENT, Store, history_file
from tunecheck.listen.explain import afterwards, beforehand, lines
from tunecheck.results import Exit, exit_code
from tunecheck.results.rejudge import judged_again, report_on, session_report
from tunecheck.results.stored import plain, write_record

LAST = "default: the last session of ./reports/runs"


def add_commands(commands: Any) -> None:
    """Add `explain`, `judge`, `rows`, `page`, `fallback-table`, `history`, `compare`, `baseline` and `prune`."""
    told = "explain a check, or list every check: judged or not, and how to enable it"
    explain = commands.add_parser("explain", help=told)
    told = "a check's name; or a trace or session folder, whose checks are listed (default: list all checks)"
    explain.add_argument("what", nargs="?", metavar="CHECK|TRACE", help=told)
    explain.executes(_explain)

    judge = commands.add_parser("judge", help="judge traces again, optionally with other limits")
    judge.add_argument("trace", type=Path, nargs="*", help=f"a .jsonl file or a session folder; {LAST}")
    add_answers(judge)
    judge.executes(_judge)

    rows = commands.add_parser("rows", help="show rows as the model received them, supervised tokens in colour")
    rows.add_argument("trace", type=Path, nargs="?", help=f"a .jsonl file, or a session folder for its first; {LAST}")
    rows.executes(_rows)

    page = commands.add_parser("page", help="rewrite a session's report.html from its folder")
    page.add_argument("session", type=Path, nargs="?", help=f"a session folder; {LAST}")
    page.executes(_page, leaves_files=True)

    table = commands.add_parser("fallback-table", help="show memory and speed by strategy and fallback step")
    table.add_argument("session", type=Path, nargs="?", help=f"a session folder; {LAST}")
    table.executes(_fallback_table)

    history = commands.add_parser("history", help="show figures of a run's sessions, or of every run's last session")
    history.add_argument("run", nargs="?", help="a run, such as quick/smollm2-135m-qlora (default: every run)")
    history.add_argument("--rebuild", **FLAG, help="rebuild the history from the session folders first")
    history.executes(_history)

    example = "example: tunecheck compare reports/runs/BEFORE reports/runs/AFTER"
    told = "compare two sessions or traces: figures that differ by more than their scatter"
    compare = commands.add_parser("compare", help=told, epilog=example)
    compare.add_argument("a", type=Path, help="session folder or trace (.jsonl) before the change")
    compare.add_argument("b", type=Path, help="session folder or trace (.jsonl) after it")
    compare.executes(_compare)

    baseline = commands.add_parser("baseline", help="manage accepted baselines, small files for your repository")
    actions = baseline.add_subparsers(required=True, metavar="ACTION")
    example = "example: tunecheck baseline accept quick/smollm2-135m-qlora"
    accept = actions.add_parser("accept", help="accept the sessions so far as the baseline", epilog=example)
    accept.add_argument("run", help="a run, such as quick/smollm2-135m-qlora")
    accept.executes(_accept)
    show = actions.add_parser("show", help="list the accepted baselines")
    show.add_argument("run", nargs="?", help="only baselines of this run")
    show.executes(_show)
    example = "example: tunecheck baseline diff quick/smollm2-135m-qlora"
    diff = actions.add_parser("diff", help="compare a run's last session with its baseline", epilog=example)
    diff.add_argument("run", help="a run, such as quick/smollm2-135m-qlora")
    diff.add_argument("--file", type=Path, metavar="FILE", help="baseline file (default: that of its device)")
    diff.executes(_diff)

    prune = commands.add_parser("prune", help="remove old session folders; their figures stay in the history")
    prune.add_argument("--keep", **COUNT, default=30, help="number of sessions to keep (default 30)")
    prune.add_argument("--dry-run", **FLAG, help="only list what would be removed")
    prune.executes(_prune)


def _last_session() -> Path:
    """Return the folder of the last session that left a trace. Raises ConfigError where there is none."""
    folders = sorted({trace.parent for trace in listed(reports_folder(), "*/*.jsonl")})  # they are named by their time
    if not folders:
        raise ConfigError([f"{reports_folder()}: no session yet; start one: tunecheck watch -- python train.py"])
    return folders[-1]


def _traces(path: Path) -> list[Path]:
    """Return the traces of a session folder, the first one first; else this file. Raises TraceError without any."""
    if not path.is_dir():
        return [path]
    if traces := listed(path, "*.jsonl"):
        return traces
    raise TraceError(f"{path}: holds no trace (*.jsonl); name a session folder, such as one in {reports_folder()}")


def _explain(options: argparse.Namespace) -> None:
    from rich.markdown import Markdown

    from tunecheck.report.view import check_page

    if options.what in CHECKS:
        page = check_page(options.what)
        answer(options, {"check": options.what, "page": page}, lambda console: console.print(Markdown(page)))
        return
    if options.what and not Path(options.what).exists():
        unknown = f"explain: no check or file is called {options.what!r}{nearest(options.what, CHECKS)}"
        raise ConfigError([f"{unknown}; `tunecheck explain` lists all"])
    traces = _traces(Path(options.what)) if options.what else []
    explained = {str(file): afterwards(read(file)) for file in traces} or {"": beforehand()}
    if not as_json(options, [{"trace": name, "checks": told} for name, told in explained.items()]):
        for told in explained.values():
            print(printable("\n".join(lines(told, shutil.get_terminal_size().columns))))


def _judge(options: argparse.Namespace) -> int:
    from tunecheck.report.terminal import print_report

    files = [file for path in options.trace or [_last_session()] for file in _traces(path)]
    ignore = read_ignored(options.ignore)
    traces = [read(file).answered(ignore, strict=options.strict) for file in files]
    runs = [judged_again(trace, options.set, trace_file=str(path)) for trace, path in zip(traces, files, strict=True)]
    # as the session itself said: a run that was interrupted, or killed with its session, is no run that failed
    interrupted = any(run.interrupted for run in runs)
    report = report_on(traces, runs, interrupted=interrupted, command=shown(["tunecheck", "judge", *map(str, files)]))
    answer(options, report, lambda console: print_report(report, console))
    return exit_code(report)


def _rows(options: argparse.Namespace) -> None:
    from tunecheck.report.rows import print_rows, problem_of

    path = _traces(options.trace or _last_session())[0]
    if problem := problem_of(trace := read(path)):
        raise TraceError(f"{path}: {problem}")
    held = {"run": trace.run.name, "rows": trace.records(RowShown)}
    answer(options, held, lambda console: print_rows(trace, console))


def _page(options: argparse.Namespace) -> None:
    from tunecheck.report.page import PAGE_FILE, page_html

    session = options.session or _last_session()
    path = session / PAGE_FILE
    write_whole(path, page_html(session_report(session), session))
    if not as_json(options, {"page": path}):
        print(path)


def _fallback_table(options: argparse.Namespace) -> None:
    from tunecheck.report.history_tables import print_rows, rows_of

    rows = rows_of(read(file) for file in _traces(options.session or _last_session()))
    answer(options, {"attempts": rows}, lambda console: print_rows(rows, console))


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
    answer(options, entries, partial(print_entries, run, entries) if run else partial(print_last, entries))


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
    if not (entries := store.entries(run=run, last=1)):
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
