"""The faults: what is done to a session, and the word that it has to get. Numbers are those of docs/reliability.md."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos import hub as hubs
from benchmarks.chaos import inject as do
from benchmarks.chaos.cgroups import lacking
from benchmarks.chaos.session import Ended


def no_root() -> str:
    """Return why no small file system can be mounted here; "" when one can."""
    return "" if os.geteuid() == 0 else "only root can mount a small disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and what has to come of it."""

    name: str
    inject: Callable[[Path], Ended]
    """Run a session in this folder with the fault in it."""
    status: int
    outcome: str = "error"
    """Of the run; empty where no verdict can be written, or no run began."""
    domain: str = ""
    keeps: int = do.STEPS_BEFORE
    """Least number of optimizer steps that the trace must still have."""
    fails: str = ""
    """The check that must fail; empty where none may."""
    says: str = ""
    """What the report must say, as a regular expression; empty where the words above suffice."""
    lacking: Callable[[], str] = lambda: ""
    """Return why this machine cannot have the fault; "" when it can."""


def faults() -> Sequence[Fault]:
    """Return every fault that a machine without a GPU can have, in the order of the report."""
    environment, unknown, error = "environment", "unknown", 6
    return (
        Fault(
            name="training killed (SIGKILL)",
            inject=do.at_steps(do.send(signal.SIGKILL, "training")),
            status=error,
            domain=environment,
        ),
        Fault(
            name="training crashed (SIGSEGV)",
            inject=do.at_steps(do.send(signal.SIGSEGV, "training")),
            status=error,
            domain=unknown,
        ),
        Fault(
            name="training stopped until its deadline (SIGSTOP)",
            inject=do.at_steps(do.send(signal.SIGSTOP, "training"), "deadline=90s"),
            status=error,
            domain=unknown,
        ),
        Fault(name="training hung in C code, deaf to SIGTERM", inject=do.stuck, status=error, domain=unknown),
        Fault(
            name="training hung in the kernel, deaf to SIGKILL (frozen)",
            inject=do.frozen,
            status=error,
            domain=unknown,
            lacking=lambda: lacking("freezer"),
        ),
        Fault(
            name="out of memory by control group: the kernel kills",
            inject=do.killed_by_cgroup,
            status=error,
            domain=environment,
            lacking=lambda: lacking("memory"),
        ),
        Fault(
            name="fork server killed",
            inject=do.at_steps(do.send(signal.SIGKILL, "fork_server")),
            status=error,
            domain=environment,
        ),
        Fault(
            name="no more host memory (RLIMIT_AS)",
            inject=do.at_steps(do.limit_memory),
            status=error,
            domain=environment,
        ),
        Fault(name="session: Ctrl-C", inject=do.at_steps(do.send(signal.SIGINT, "session")), status=2),
        Fault(name="session: SIGTERM", inject=do.at_steps(do.send(signal.SIGTERM, "session")), status=2),
        Fault(name="session: SIGHUP", inject=do.at_steps(do.send(signal.SIGHUP, "session")), status=2),
        Fault(name="session: SIGKILL", inject=do.at_steps(do.send(signal.SIGKILL, "session")), status=-9, outcome=""),
        Fault(
            name="session: SIGKILL while one of two ranks hangs",
            inject=do.at_steps(do.kill_while_a_rank_hangs, "parallel={processes: 2}"),
            status=-9,
            outcome="",
        ),
        Fault(
            name="disk full while the trace is written (reports on 24 KiB)",
            inject=do.on_small_disk("TUNECHECK_REPORTS", "size=24k", *do.SHORT),
            status=error,
            outcome="",
            lacking=no_root,
        ),
        Fault(
            name="disk full when the verdict is written (reports on 48 KiB)",
            inject=do.on_small_disk("TUNECHECK_REPORTS", "size=48k", *do.SHORT),
            status=error,
            outcome="",
            lacking=no_root,
        ),
        Fault(
            name="disk full at the checkpoint (temporary folder on 64 KiB)",
            inject=do.on_small_disk("TMPDIR", "size=64k", *do.RESUMED),
            status=error,
            domain=environment,
            lacking=no_root,
        ),
        Fault(
            name="no room for a temporary folder (on 4 KiB)",
            inject=do.on_small_disk("TMPDIR", "size=4k", *do.RESUMED),
            status=error,
            domain=environment,
            keeps=0,
            lacking=no_root,
        ),
        Fault(
            name="no inode left for reports (on 3)",
            inject=do.on_small_disk("TUNECHECK_REPORTS", "size=1m,nr_inodes=3", *do.SHORT),
            status=error,
            outcome="",
            lacking=no_root,
        ),
        Fault(
            name="disk full for the history (on 4 KiB)",
            inject=do.on_small_disk("TUNECHECK_HISTORY", "size=4k", *do.SHORT),
            status=0,
            outcome="pass",
            lacking=no_root,
        ),
        Fault(
            name="reports folder is a file",
            inject=do.whole(*do.SHORT, prepare=do.reports_are_a_file),
            status=4,
            outcome="",
            keeps=0,
        ),
        Fault(
            name="checkpoint cut by a byte before it is read",
            inject=do.damaged_checkpoint("*.safetensors", do.cut),
            status=error,
            outcome="inconclusive",
        ),
        Fault(
            name="checkpoint emptied before it is read",
            inject=do.damaged_checkpoint("*.safetensors", do.empty),
            status=error,
            outcome="inconclusive",
        ),
        Fault(
            name="half of a checkpoint lost before it is read",
            inject=do.damaged_checkpoint("*.json", Path.unlink),
            status=error,
            outcome="inconclusive",
        ),
        Fault(
            name="weights half downloaded",
            inject=do.weights(do.cut_file("model.safetensors")),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(
            name="weights are an LFS pointer of 130 bytes",
            inject=do.weights(do.cut_file("model.safetensors", 130)),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(name="weights altered by a bit", inject=do.weights(do.alter), status=error, domain=environment, keeps=0),
        Fault(
            name="config.json lost",
            inject=do.weights(lambda copy: (copy / "config.json").unlink()),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(
            name="hub offline, cache empty",
            inject=do.whole(*do.HUB_ONLY, prepare=do.no_hub),
            status=error,
            domain=environment,
            keeps=0,
        ),
        *(
            Fault(name=name, inject=do.bad_hub(answer), status=error, domain=environment, keeps=0)
            for name, answer in (
                ("hub answers 503", hubs.unavailable),
                ("hub answers 429", hubs.too_many),
                ("hub answers with a page for people", hubs.wrong),
                ("hub breaks off in its answer", hubs.cut),
                ("hub takes the request and never answers", hubs.silent),
            )
        ),
        Fault(
            name="clock set back an hour during the run",
            inject=do.whole(*do.SHORT, prepare=do.clock_back),
            status=0,
            outcome="pass",
        ),
        Fault(name="two sessions at once, one reports folder", inject=do.two_sessions, status=0, outcome="pass"),
    )
