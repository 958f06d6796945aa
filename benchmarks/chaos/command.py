"""`python -m benchmarks.chaos`: inject every fault, compare what came of it, and write docs/reliability.md."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.chaos.card_faults import card_faults
from benchmarks.chaos.driver import there_is_a_card
from benchmarks.chaos.faults import Fault, faults
from benchmarks.chaos.rehearsed import REHEARSED
from benchmarks.chaos.session import Ended
from benchmarks.chaos.sweeps import lines as sweeps
from tunecheck.core.paths import project_folder
from tunecheck.core.text import one_line

PAGE = "docs/reliability.md"
RESULTS = "reports/chaos.json"
HEAD = """\
<!-- Written by scripts/chaos.sh; do not edit by hand. -->
# Reliability

tunecheck never reports a machine fault as a failed training. Either the run goes on and is judged, or it counts as not
judged (status 6), and the report names the domain of the fault. Everything recorded before it is kept. tunecheck
leaves no process, traceback or temporary folder behind.

We injected each fault below into a real run of a tiny model, from outside the session. `scripts/chaos.sh` repeats all
of them on your machine; `scripts/chaos.sh SIGKILL` repeats only those whose name contains that word.
[`reports/chaos.json`](../reports/chaos.json) has the reason that each report gave.

Measured {date}: {machine}.
Other work ran on the machine. Seconds count from the fault to the end of the session, or from the start of the session
if the fault was there from the start.

| fault | outcome | domain | status | steps kept | seconds | as expected |
|---|---|---|--:|--:|--:|---|
"""
AFTER = """
*No verdict* means that the session was killed, that no run started, or that the reports folder could not be written.
In the last case tunecheck prints the verdict to stderr. After a kill, `tunecheck judge` still judges the trace, as an
interrupted session.
"""
CARDS = """
## GPU faults

These faults are simulated; none has happened on a real GPU yet. A small C library (`benchmarks/chaos/libnvidia_ml.c`)
replaces NVML and answers as a faulty GPU would. The training computes on the CPU under a fake `torch.cuda`
(`tests/fake_cuda.py`), which counts memory, runs out of it and raises CUDA's errors. On a machine with a GPU, the run
without a fault, the killed sampler and the visible neighbours are real.

*Fails* names the check that must fail. It is then a finding about the GPU, not about the training.

| fault | outcome | domain | fails | status | steps kept | seconds | as expected |
|---|---|---|---|--:|--:|--:|---|
"""
REHEARSAL = """
## Faults covered by tests

These tests use a fake NVML, a fake torch or a fake session.

| fault | expected | test | passes |
|---|---|---|---|
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a fault, as it is kept between two calls."""

    fault: str
    right: bool
    status: int
    outcome: str
    domain: str
    reason: str
    steps_kept: int
    files: tuple[str, ...]
    seconds: float
    problems: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when every fault got the right word."""
    parser = argparse.ArgumentParser(prog="benchmarks.chaos", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose name contains one of these")
    parser.add_argument("--missing", action="store_true", help="only faults that did not get the right word yet")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE} from what is known")
    options = parser.parse_args(arguments)
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if (
            signal.getsignal(number) is signal.SIG_IGN
        ):  # by nohup, or a shell's background: the sessions would inherit it
            signal.signal(number, handler)
    kept = _read()
    for fault in every_fault():
        if options.missing and fault.name in kept and kept[fault.name].right:
            continue
        if options.words and not any(word in fault.name for word in options.words):
            continue
        if reason := fault.lacking():
            print(f"left out: {fault.name}: {reason}")
            continue
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            result = _judged(fault, fault.inject(Path(folder)))
        kept[fault.name] = result
        _keep(kept)
        print(
            f"{'right' if result.right else 'WRONG'}: {fault.name}: {'; '.join(result.problems) or _words(result)}",
            flush=True,
        )
    if options.write:
        (project_folder() / PAGE).write_text(_page(kept, _rehearse()), encoding="utf-8")
    known = [kept[fault.name] for fault in every_fault() if fault.name in kept]
    return 0 if known and all(result.right for result in known) else 1


def every_fault() -> tuple[Fault, ...]:
    """Return the faults of the machine, then those of a GPU."""
    return (*faults(), *card_faults())


def _judged(fault: Fault, ended: Ended) -> Result:
    outcome, domain = str(ended.row.get("outcome", "")), str(ended.row.get("domain", ""))
    failed = [finding["check"] for finding in ended.row.get("findings", ()) if finding["status"] == "failed"]
    problems = [
        f"{name} is {found!r}, should be {wanted!r}"
        for name, found, wanted in (
            ("the status", ended.status, fault.status),
            ("the outcome", outcome, fault.outcome),
            ("the domain", domain, fault.domain),
            ("what failed", failed if fault.fails not in failed else [], []),
            ("tracebacks", ended.tracebacks, 0),
            ("processes left", ended.processes_left, ()),
        )
        if found != wanted
    ]
    if fault.fails and fault.fails not in failed:
        problems.append(f"{fault.fails} does not fail")
    if not re.search(fault.says, json.dumps(ended.row)):
        problems.append(f"the report does not say {fault.says!r}")
    if ended.steps_kept < fault.keeps:
        problems.append(f"{ended.steps_kept} steps are kept, should be {fault.keeps} or more")
    return Result(
        fault=fault.name,
        right=not problems,
        status=ended.status,
        outcome=outcome,
        domain=domain,
        reason=re.sub(r"\S*/chaos-\w+", "FOLDER", one_line(str(ended.row.get("reason", "")), 200)),
        steps_kept=ended.steps_kept,
        files=tuple(sorted({name.rpartition(".")[2] for name in ended.files})),
        seconds=round(ended.seconds, 1),
        problems=tuple(problems),
    )


def _words(result: Result) -> str:
    return f"{result.outcome or 'no verdict'} {result.domain}, status {result.status}, {result.seconds} s"


def _read() -> dict[str, Result]:
    path = project_folder() / RESULTS
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    return {row["fault"]: Result(**{name: _held(value) for name, value in row.items()}) for row in rows}


def _held(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _keep(kept: dict[str, Result]) -> None:
    known = [dataclasses.asdict(kept[fault.name]) for fault in every_fault() if fault.name in kept]
    payload = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": _machine(), "results": known}
    (project_folder() / RESULTS).write_text(json.dumps(payload, indent=1) + "\n", encoding="utf-8")


def _machine() -> str:
    gpu = "a GPU" if there_is_a_card() else "no GPU"
    return f"{platform.system()}, {os.cpu_count()} cores, {gpu}, Python {platform.python_version()}"


def _rehearse() -> dict[str, bool]:
    """Run the tests of the GPU's faults, and return which of them passed."""
    passed = {}
    for test in dict.fromkeys(test for _, test in REHEARSED.values()):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        done = subprocess.run(command, cwd=project_folder(), capture_output=True, text=True)
        passed[test] = done.returncode == 0
    return passed


def _page(kept: dict[str, Result], passed: dict[str, bool]) -> str:
    measured = json.loads((project_folder() / RESULTS).read_text(encoding="utf-8"))
    lines = HEAD.format(date=measured["date"], machine=measured["machine"]).splitlines()
    lines += [_row(fault, kept.get(fault.name)) for fault in faults()]
    lines += [*AFTER.splitlines(), *sweeps(), *CARDS.splitlines()]
    lines += [_row(fault, kept.get(fault.name), fault.fails or "-") for fault in card_faults()]
    lines += REHEARSAL.splitlines()
    lines += [
        f"| {name} | {wanted} | `{test.partition('::')[2]}` | {'yes' if passed[test] else '**no**'} |"
        for name, (wanted, test) in REHEARSED.items()
    ]
    return "\n".join(lines) + "\n"


def _row(fault: Fault, result: Result | None, *more: str) -> str:
    """Return the fault's row of a table; `more` are cells between its domain and its status."""
    if result is None:
        reason = fault.lacking()
        return f"| {fault.name} | not injected{': ' + reason if reason else ' yet'} |{' |' * (5 + len(more))}"
    right = "yes" if result.right else "**no**: " + "; ".join(result.problems)
    cells = [result.outcome or "no verdict", result.domain or "-", *more, result.status, result.steps_kept]
    return f"| {' | '.join(map(str, (fault.name, *cells, result.seconds, right)))} |"
