"""What is seen while a fleet answers."""

from __future__ import annotations

import io

from fleets import answer
from rich.console import Console

from tunecheck.report.fleet import MOST_LIVE, watcher
from tunecheck.results.fleet import Heard, Place


def progress(**states):
    """Some places of a hundred, in these states."""
    answers = {"n1": answer(1), "n2": answer(2, problem="not shared")}
    heard = {
        name: Heard(Place(name=name, node=name), answer=answers.get(name)) for name in map("n{}".format, range(100))
    }
    for name, told in states.items():
        heard[name].state, _, heard[name].words = told.partition(": ")
    return heard


def test_a_log_has_a_line_for_each_change():
    """And none for what is as it was."""
    printed = io.StringIO()
    with watcher(Console(file=printed, width=100)) as watch:
        watch(progress(n0="queued: Slurm: Priority"))
        watch(progress(n0="queued: Slurm: Priority", n1="answered"))
        watch(progress(n0="running", n1="answered", n2="answered", n3="lost: Slurm preempted the job"))

    assert printed.getvalue().splitlines() == [
        "  n0: queued: Slurm: Priority",
        "  n1: quick/tiny pass, 46 passed, 0 failed, 1 min 00 s",
        "  n0: running",
        "  n2: problem: not shared",
        "  n3: lost: Slurm preempted the job",
    ]


def test_a_terminal_has_a_table_that_does_not_grow():
    """The counts of all, and the last changes."""
    printed = io.StringIO()
    console = Console(file=printed, width=100, height=50, force_terminal=True, color_system=None)
    with watcher(console) as watch:
        watch(progress(**{f"n{number}": "running" for number in range(50)}))

    last = printed.getvalue().rpartition("100 places")[2]
    assert last.startswith(": 50 running, 50 not asked")
    assert last.count("running") == MOST_LIVE + 1
