"""Commands that read a finished session: judge a trace again, show its rows, write its page again, and others."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from tunecheck.checks import CHECKS
from tunecheck.cli.parser import as_json
from tunecheck.cli.watch import add_answers
from tunecheck.core.errors import ConfigError
from tunecheck.core.redaction import shown
from tunecheck.core.spelling import nearest


def add_commands(commands: Any) -> None:
    """Add `explain`, `judge`, `rows`, `page` and `fallback-table` to the command line."""
    explain = commands.add_parser(
        "explain", help="print the page of a check: rule, reason, limits, causes, example, how to accept a finding"
    )
    explain.add_argument("check", help="a check's name, such as loss_falls")
    explain.executes(_explain)

    judge = commands.add_parser("judge", help="judge a trace again, optionally with other limits")
    judge.add_argument("trace", type=Path, nargs="+", help="a .jsonl file of a session folder; may be repeated")
    add_answers(judge)
    judge.executes(_judge)

    rows = commands.add_parser("rows", help="show rows as the model received them, supervised tokens in colour")
    rows.add_argument("trace", type=Path, help="a .jsonl file of a session folder, or the folder for its first one")
    rows.executes(_rows)

    page = commands.add_parser("page", help="rewrite a session's report.html from its folder")
    page.add_argument("session", type=Path, help="session folder, such as reports/runs/20261121T040430Z-9776")
    page.executes(_page, leaves_files=True)

    table = commands.add_parser("fallback-table", help="show memory and speed by strategy and fallback step")
    table.add_argument("session", type=Path, help="session folder; probes.rungs=true tries every fallback step")
    table.executes(_fallback_table)


def _explain(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markdown import Markdown

    from tunecheck.report.view import check_page

    if options.check not in CHECKS:
        hint = nearest(options.check, CHECKS)
        raise ConfigError(
            [f"explain: no check is called {options.check!r}{hint}; `tunecheck watch --explain` lists all"]
        )
    page = check_page(options.check)
    if not as_json(options, {"check": options.check, "page": page}):
        Console().print(Markdown(page))
    return 0


def _judge(options: argparse.Namespace) -> int:
    from tunecheck.core.trace import read
    from tunecheck.results import Report, exit_code, verdict_of
    from tunecheck.results.answers import Answers, read_ignored
    from tunecheck.results.rejudge import judged_again
    from tunecheck.results.verdict import verdict_payload

    traces = [read(path) for path in options.trace]
    answers = Answers(ignore=read_ignored(options.ignore), strict=options.strict)
    runs = [
        judged_again(trace, options.set, trace_file=str(path), answers=answers)
        for trace, path in zip(traces, options.trace, strict=True)
    ]
    # as the session itself said: a run that was interrupted, or killed with its session, is no run that failed
    interrupted = any(run.interrupted for run in runs)
    report = Report(
        started_at=traces[0].header.started_at,
        seconds=sum(run.seconds for run in runs),
        verdict=verdict_of(runs, interrupted),
        interrupted=interrupted,
        environment=traces[0].header.environment,
        command=shown(["tunecheck", "judge", *map(str, options.trace)]),
        runs=tuple(runs),
    )
    if not as_json(options, verdict_payload(report)):
        from rich.console import Console

        from tunecheck.report.terminal import print_report

        print_report(report, Console())
    return exit_code(report)


def _rows(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tunecheck.core.errors import TraceError
    from tunecheck.core.trace import read
    from tunecheck.report.rows import print_rows, problem_of, rows_of

    path = options.trace
    if path.is_dir() and (path := min(path.glob("*.jsonl"), default=None)) is None:
        raise TraceError(f"{options.trace}: holds no trace (*.jsonl)")
    trace = read(path)
    if problem := problem_of(trace):
        raise TraceError(f"{path}: {problem}")
    if not as_json(options, {"run": trace.run.name, "rows": [dataclasses.asdict(row) for row in rows_of(trace)]}):
        print_rows(trace, Console())
    return 0


def _page(options: argparse.Namespace) -> int:
    from tunecheck.report.page import write_page
    from tunecheck.results.rejudge import session_report

    path = write_page(session_report(options.session), options.session)
    if not as_json(options, {"page": path}):
        print(path)
    return 0


def _fallback_table(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tunecheck.report.fallback_table import print_rows, session_rows

    rows = session_rows(options.session)
    if not as_json(options, {"attempts": [dataclasses.asdict(row) for row in rows]}):
        print_rows(rows, Console())
    return 0
