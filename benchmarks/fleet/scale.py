"""Ten thousand nodes made from one real session, disturbed: gathered, judged and shown; and a history of a million.

`python -m benchmarks.fleet.scale SESSION` takes a folder of `tunecheck fleet`, whose first answer is copied. Limits: a
minute and 1 GiB for the fleet, 2 MB for its page, a second for a question to the history.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import human_bytes
from tunecheck.core.typed import build
from tunecheck.fleet.request import EngineOptions, Request, write_request
from tunecheck.fleet.session import FleetSession, gathered, read_answers
from tunecheck.history.store import RECENT, HistoryEntry, Store
from tunecheck.report.fleet import FLEET_PAGE, fleet_html
from tunecheck.results.fleet import ANSWER_FILE, NODES_FOLDER, Answer, Heard, Place, RunAnswer
from tunecheck.results.fleet.judge import judge_fleet
from tunecheck.results.stored import write_record

NODES, ENTRIES = 10_000, 1_000_000
MOST_SECONDS, MOST_BYTES, MOST_PAGE_BYTES, MOST_HISTORY_SECONDS = 60.0, 2**30, 2_000_000, 1.0
SCATTER = 0.03
"""Relative standard deviation of the speed of healthy nodes."""


def main() -> int:
    """Measure, print a line each and return 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("session", type=Path, help="folder of a fleet, whose first answer is the model of all")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--page", type=Path, help="only write the page of 64 nodes, three of them sick, to this file")
    options = parser.parse_args()
    model = next(iter(read_answers(options.session).values()))
    if options.page:
        options.page.write_text(page_of_64(model), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory(prefix="fleet-scale-") as folder:
        kept = [_fleet(Path(folder), model, options.nodes), _history(Path(folder), model, options.entries)]
    return int(not all(kept))


def wrong_bits(run: RunAnswer, number: int) -> RunAnswer:
    """Return the run of a node that computes wrongly in a way of its own."""
    first, *others = run.numbers["loss of step"]
    return dataclasses.replace(run, numbers={**run.numbers, "loss of step": (first + 1e-7 * (1 + number), *others)})


def slow(run: RunAnswer, number: int) -> RunAnswer:
    """Return the run of a node at 40 % of its speed."""
    speed = 0.4 * run.figures["tokens_per_second"]
    return dataclasses.replace(run, figures={**run.figures, "tokens_per_second": speed})


def failing(run: RunAnswer, number: int) -> RunAnswer:
    """Return the run of a node on which a check of its own fails."""
    failed = Finding(check="memory_returned", status=Status.FAILED, measured=2.0, limit=1.0, detail="2 MiB are left")
    return dataclasses.replace(run, outcome="fail", passed=run.passed - 1, failed=(failed,))


SICK = (wrong_bits, slow, failing)


def disturbed(model: Answer, number: int, draw: random.Random) -> Answer:
    """Return the answer of one more node: its speed scatters, one in a thousand is sick in some way."""
    name = f"node{number:05}"
    run = model.runs[0]
    speed = run.figures.get("tokens_per_second", 1000.0) * (1 + draw.gauss(0, SCATTER))
    run = dataclasses.replace(run, figures={**run.figures, "tokens_per_second": speed}, disturbed="")
    sick = draw.randrange(len(SICK) * 1000)
    if sick < len(SICK):
        run = SICK[sick](run, number)
    session = f"{NODES_FOLDER}/{name}/{Path(model.session).name}"
    status = 1 if run.failed else 0
    return dataclasses.replace(model, place=name, node=name, session=session, status=status, runs=(run,))


def page_of_64(model: Answer) -> str:
    """Return the page of a fleet in which one node computes wrongly, one is slow and one failed while it was asked."""
    draw = random.Random(1)
    answers = {one.place: one for one in (disturbed(model, number, draw) for number in range(64))}
    for number, sick in ((17, wrong_bits), (42, slow)):
        one = answers[f"node{number:05}"]
        answers[one.place] = dataclasses.replace(one, runs=(sick(one.runs[0], number),))
    heard = {name: Heard(Place(name=name, node=name), answer=one) for name, one in answers.items()}
    failed = heard["node00055"]
    failed.answer, failed.missing, failed.gone = None, "the node failed while the job ran (Slurm: NODE_FAIL)", True
    report = judge_fleet(
        heard.values(),
        started_at="2026-11-22T12:00:00+00:00",
        seconds=75.0,
        engine="slurm",
        command="tunecheck fleet --engine slurm quick",
    )
    return fleet_html(report)


def _fleet(folder: Path, model: Answer, nodes: int) -> bool:
    draw = random.Random(0)
    request = Request(
        id="fleet-scale",
        folder=str(folder / "fleet-scale"),
        engine="slurm",
        options=EngineOptions(),
        arguments=("quick",),
        command="tunecheck fleet --engine slurm quick",
        started_at="2026-11-22T12:00:00+00:00",
        working_folder=str(folder),
    )
    write_request(request)
    for number in range(nodes):
        one = disturbed(model, number, draw)
        write_record(one, request.place_folder(one.place) / ANSWER_FILE, indent=None)
    session = FleetSession(request, at_once=None, wait_seconds=1e9)
    report, seconds = _timed(lambda: session.judged(gathered(session.folder, "all", 0.0)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    page = (session.folder / FLEET_PAGE).stat().st_size
    odd = sum(row.odd for row in report.rows)
    print(
        f"{nodes:,} nodes gathered, judged, shown and remembered: {seconds:.1f} s of CPU, {human_bytes(peak)} at most, "
        f"page {page / 1e6:.2f} MB, {odd} odd, {len(report.notes)} notes"
    )
    return seconds < MOST_SECONDS and peak < MOST_BYTES and page < MOST_PAGE_BYTES


def _history(folder: Path, model: Answer, entries: int) -> bool:
    store = Store(folder / "history.sqlite")
    first = build(HistoryEntry, model.history[0])
    for start in range(0, entries, 100_000):
        store.add(_entries(first, range(start, min(entries, start + 100_000))))
    questions: dict[str, Callable[[], Any]] = {
        "the last of a run and its like": lambda: store.entries(
            key=first.key, before="2027", outcome=first.outcome, last=RECENT
        ),
        "a run by name": lambda: store.entries(run=first.run, last=RECENT),
        "the names of the runs": store.runs,
    }
    kept = True
    for words, ask in questions.items():
        found, seconds = _timed(ask)
        print(f"history of {entries:,}: {words}: {len(found)} entries in {seconds:.3f} s of CPU")
        kept &= seconds < MOST_HISTORY_SECONDS
    print(f"the store has {human_bytes(store.path.stat().st_size)}")
    return kept


def _entries(first: HistoryEntry, numbers: range) -> Iterator[HistoryEntry]:
    for number in numbers:
        day = f"2026-{1 + number // 28 % 12:02}-{1 + number % 28:02}T{number % 24:02}:00:00+00:00"
        yield dataclasses.replace(first, session=f"fleet-{number // 1000}/node{number % 1000:04}", started_at=day)


def _timed(act: Callable[[], Any]) -> tuple[Any, float]:
    before = time.process_time()
    found = act()
    return found, time.process_time() - before


if __name__ == "__main__":
    sys.exit(main())
