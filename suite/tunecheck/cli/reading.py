"""Commands that read a finished session: judge a trace again, show its rows, write its page again, and others."""

import argparse
import shutil
from pathlib import Path
from typing import Any

from tunecheck.checks import CHECKS
from tunecheck.cli.parser import answer, as_json
from tunecheck.cli.run import add_answers
from tunecheck.config.answers import read_ignored
from tunecheck.core.errors import ConfigError, TraceError
from tunecheck.core.evidence import RowShown
from tunecheck.core.files import listed, write_whole
from tunecheck.core.paths import reports_folder
from tunecheck.core.redaction import shown
from tunecheck.core.spelling import nearest
from tunecheck.core.text import printable
from tunecheck.core.trace import read
from tunecheck.listen.explain import afterwards, beforehand, lines
from tunecheck.results import exit_code
from tunecheck.results.rejudge import judged_again, report_on, session_report

LAST = "default: the last session of ./reports/runs"


def add_commands(commands: Any) -> None:
    """Add `explain`, `judge`, `rows`, `page` and `fallback-table` to the command line."""
    explain = commands.add_parser(
        "explain", help="explain a check, or list every check: judged or not, and how to enable it"
    )
    explain.add_argument(
        "what",
        nargs="?",
        metavar="CHECK|TRACE",
        help="a check's name; or a trace or session folder, whose checks are listed (default: list all checks)",
    )
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


def _last_session() -> Path:
    """Return the folder of the last session that left a trace. Raises ConfigError where there is none."""
    folders = sorted({trace.parent for trace in listed(reports_folder(), "*/*.jsonl")})  # they are named by their time
    if not folders:
        raise ConfigError([f"{reports_folder()}: holds no session yet; for one: tunecheck watch -- python train.py"])
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
    if not as_json(options, [{"trace": name, "groups": groups} for name, groups in explained.items()]):
        for groups in explained.values():
            print(printable("\n".join(lines(groups, shutil.get_terminal_size().columns))))


def _judge(options: argparse.Namespace) -> int:
    from tunecheck.report.terminal import print_report

    files = [file for path in options.trace or [_last_session()] for file in _traces(path)]
    ignore = read_ignored(options.ignore)
    traces = [read(file).answered(ignore, strict=options.strict) for file in files]
    pairs = zip(traces, files, strict=True)
    runs = [judged_again(trace, options.set, trace_file=str(path)) for trace, path in pairs]
    # as the session itself said: a run that was interrupted, or killed with its session, is no run that failed
    interrupted = any(run.interrupted for run in runs)
    command = shown(["tunecheck", "judge", *map(str, files)])
    report = report_on(traces, runs, interrupted=interrupted, command=command)
    answer(options, report, lambda console: print_report(report, console))
    return exit_code(report)


def _rows(options: argparse.Namespace) -> None:
    from tunecheck.report.rows import print_rows, problem_of

    path = _traces(options.trace or _last_session())[0]
    trace = read(path)
    if problem := problem_of(trace):
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
