"""Slurm: one job on each node with all of its cards, a task a card, submitted by submitit.

A job array cannot name the node of each element; a job a node can, and begins as soon as that node is free. States come
from squeue, since sacct needs a database that not every cluster has.
"""

import contextlib
import io
import math
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tunecheck.core.errors import ConfigError, SuiteError
from tunecheck.core.files import last_lines
from tunecheck.core.text import one_line
from tunecheck.fleet import node
from tunecheck.fleet.request import EngineOptions, News, Request
from tunecheck.results.fleet import Place, State, of_nodes, places_of

UNUSABLE = ("down", "drain", "fail", "maint", "no_respond", "power", "unknown", "reboot", "inval", "future")
"""Beginnings of the states of a node that takes no job now, by `sinfo -o %T`."""
DRAINED = ("drain", "maint", "power", "future")
"""Of these, the beginnings of those that an administrator gave it."""
WAITING, RUNNING = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"), ("RUNNING", "COMPLETING", "STAGE_OUT")
ENDED = {
    "PREEMPTED": "Slurm preempted the job",
    "TIMEOUT": "the job's time limit is over (--time)",
    "NODE_FAIL": "the node failed while the job ran (Slurm: NODE_FAIL)",
    "BOOT_FAIL": "the node did not boot (Slurm: BOOT_FAIL)",
    "OUT_OF_MEMORY": "the job ran out of the memory that Slurm gives it",
    "CANCELLED": "the job was cancelled",
    "DEADLINE": "the job's deadline is over",
}
SICK = ("NODE_FAIL", "BOOT_FAIL")
POLLS_BEFORE_LOST = 4
"""How often a job that has ended is looked at before its answer counts as missing: shared folders lag."""

START_SECONDS, SIGNAL_SECONDS = 90, 30
"""What a job may take beside --time: for its imports, and after Slurm's signal, when answers are written."""


def task(folder: str, fleet: str, version: str, places: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answer for the card of this task: the local rank's, among those that Slurm gave the job."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGUSR2):  # submitit ignores the first and makes an error of the second
        signal.signal(number, lambda *_: stop.set())
    rank = int(os.environ.get("SLURM_LOCALID", "0"))
    if (place := Place(**places[min(rank, len(places) - 1)])).card is None:
        return node.answer(folder, fleet, version, place, stop)
    given = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(str(one["card"]) for one in places)).split(",")
    own = given[rank] if rank < len(given) else ""  # one that Slurm does not give is missing, not another one's
    return node.answer(folder, fleet, version, place, stop, CUDA_VISIBLE_DEVICES=own)


class Slurm:
    """Jobs of one session, by their numbers."""

    summary = "a job on each node of a Slurm cluster, by submitit"
    options: tuple[str, ...] = ("partition", "account", "constraint", "qos")
    poll_seconds = 5.0

    def __init__(self, options: EngineOptions, folder: Path) -> None:
        """Raises ConfigError where Slurm's commands or submitit are missing."""
        if missing := [name for name in ("sinfo", "sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]:
            told = f"{', '.join(missing)} not found: run it where Slurm's commands are installed"
            raise ConfigError([f"--engine slurm: {told}"])
        try:
            import submitit
        except ModuleNotFoundError:
            needed = "--engine slurm: submitit is not installed here: pip install 'tunecheck[fleet]'"
            raise ConfigError([needed]) from None
        self._options, self._name = options, folder.name
        self._executor = submitit.SlurmExecutor(folder=str(folder / "slurm"))
        self._jobs: dict[str, tuple[Any, dict[str, Place]]] = {}
        """By number: submitit's job, and the places that have not answered yet."""
        self._ended: dict[str, int] = {}

    def places(self) -> list[Place]:
        """Return the cards of every node that sinfo lists."""
        limits = [f"--partition={self._options.partition}"] if self._options.partition else []
        limits += [f"--nodes={names}"] if (names := self._options.nodes) != "all" and not names.isdecimal() else []
        listed = _run("sinfo", "--noheader", "--Node", "--format=%N|%T|%G|%E", *limits)
        nodes = {line.partition("|")[0]: line.split("|", 3) for line in listed.splitlines() if line.count("|") >= 3}
        if not nodes:
            where = f" in partition {self._options.partition}" if self._options.partition else ""
            raise ConfigError([f"--nodes {names}: Slurm lists no such node{where}; `sinfo` shows them"])
        return of_nodes([place for name, held in nodes.items() for place in _listed(name, *held[1:])], names)

    def submit(self, request: Request, places: Sequence[Place]) -> None:
        options, cards = self._options, [place for place in places if place.card is not None]
        asked: dict[str, Any] = {
            "job_name": self._name,
            "nodelist": places[0].node,
            "nodes": 1,
            "ntasks_per_node": len(places),
            "cpus_per_task": options.cpus,
            "gres": f"gpu:{len(cards)}" if cards else None,
            "time": math.ceil((options.seconds + START_SECONDS + SIGNAL_SECONDS) / 60),  # Slurm counts minutes
            "signal_delay_s": SIGNAL_SECONDS,
            **{name: getattr(options, name) for name in self.options},
            "additional_parameters": {"no_requeue": True},  # a node that fails is a row, not a job that waits for it
        }
        self._executor.update_parameters(**asked)  # None, too: the last node's cards must not stay
        held = [{"name": p.name, "node": p.node, "card": p.card} for p in places]
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit repeats there what it raises
                job = self._executor.submit(task, request.folder, request.id, request.tunecheck, held)
        except Exception as error:  # submitit's own kinds, a TimeoutExpired, an OSError
            words = one_line(str(getattr(error, "stderr", "") or error), 500)
            raise SuiteError(f"Slurm refuses the job for {places[0].node}: {words}") from None
        self._jobs[job.job_id] = (job, {place.name: place for place in places})

    def poll(self) -> Iterator[News]:
        """Return the answers that are there, and what squeue says now of the other jobs."""
        for number, (job, waiting) in list(self._jobs.items()):
            yield from self._answers(job, waiting)
            if not waiting:
                del self._jobs[number]
        if not self._jobs:
            return
        states = self._states()
        for number, (job, waiting) in list(self._jobs.items()):
            state, reason = states.get(number, ("", ""))
            if state in WAITING or state in RUNNING:
                self._ended.pop(number, None)
                words = f"Slurm: {reason}" if state in WAITING and reason != "None" else ""
                now: State = "queued" if state in WAITING else "running"
                yield from (News(place=name, state=now, words=words) for name in waiting)
                continue
            self._ended[number] = self._ended.get(number, 0) + 1
            with contextlib.suppress(OSError):  # a network file system may remember that the answer was not there
                job.paths.folder.chmod(job.paths.folder.stat().st_mode)
            if self._ended[number] >= POLLS_BEFORE_LOST:
                words = _lost(state, job)
                yield from (News(place=name, state="lost", words=words, sick=state in SICK) for name in waiting)
                del self._jobs[number]

    def cancel(self) -> None:
        if self._jobs:
            with contextlib.suppress(SuiteError):  # those that have ended are no longer known
                _run("scancel", *self._jobs)

    def _answers(self, job: Any, waiting: dict[str, Place]) -> Iterator[News]:
        for number in range(job.num_tasks):
            if not waiting or not (part := job.task(number)).paths.result_pickle.exists():
                continue
            answer, words = None, ""
            try:
                answer = part.result()
            except Exception as error:  # what unpickling raises is what the node's own code lacks
                words = _raised(error)
            name = answer["place"] if answer else next(iter(waiting))
            if waiting.pop(name, None) is not None:
                yield News(place=name, state="answered" if answer else "lost", answer=answer, words=words)

    def _states(self) -> dict[str, tuple[str, str]]:
        """Return state and reason of this session's jobs by number; a job that Slurm has forgotten is missing."""
        listed = _run("squeue", "--noheader", "--states=all", f"--name={self._name}", "--format=%A|%T|%r")
        rows = (line.strip().split("|", 2) for line in listed.splitlines())
        return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def gpus(gres: str) -> int:
    """Return the cards in what sinfo calls generic resources: "gpu:a100:4(S:0-1),shard:8" are four."""
    held = (entry.split(":") for entry in re.findall(r"(?:^|,)gpu((?::[^:,(]+)*)", gres))  # a type may be a number
    return sum(int(parts[-1]) if parts[-1].isdecimal() else 1 for parts in held)


def _listed(name: str, state: str, gres: str, reason: str) -> list[Place]:
    gone = (bare := state.lower().rstrip("*~#!%$@^-+")).startswith(UNUSABLE) or "*" in state
    said = "" if reason.strip() in ("", "none") else f" ({reason.strip()})"
    problem = f"Slurm says: {state}{said}" if gone else ""
    return places_of(name, gpus(gres), problem=problem, drained=bare.startswith(DRAINED))


def _lost(state: str, job: Any) -> str:
    words = ENDED.get(state, f"the job ended without an answer (Slurm: {state})" if state else "Slurm forgot the job")
    if not (log := Path(str(job.paths.stderr))).exists():
        unshared = f"its log is not in {log.parent}: the node does not share this folder, or never started"
        return f"{words}; {unshared}" if state not in ENDED else words
    silent = "" if state in ENDED else f"its log is empty, perhaps because {log.parent} is full"
    with contextlib.suppress(OSError):
        words = ": ".join(filter(None, [words, one_line("; ".join(last_lines(log, 2)), 300) or silent]))
    return words


def _raised(error: Exception) -> str:
    last = str(error).strip().splitlines()
    words = one_line(next((line for line in last if "Error" in line), last[-1] if last else repr(error)), 300)
    kinds = ("ModuleNotFoundError", "AttributeError", "ImportError")
    other = "tunecheck" in words and any(kind in words for kind in kinds)
    return f"another tunecheck, or none, is installed there: {words}" if other else words


def _run(*command: str) -> str:
    """Return what one of Slurm's commands prints. Raises SuiteError with its own words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteError(f"{command[0]}: {error}; is slurmctld running? `scontrol ping` says") from None
    if done.returncode:
        raise SuiteError(f"{command[0]}: {one_line(done.stderr, 500) or f'ended with status {done.returncode}'}")
    return done.stdout
