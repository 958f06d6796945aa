"""Start a command that trains, listen to every Python process of it, and judge what was heard."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO

from tunecheck.core import interrupts
from tunecheck.core.errors import ConfigError, SuiteError, TraceError
from tunecheck.core.evidence import AttemptEnd, AttemptOutcome, FileWritten, PremisesOpen, ProbeFailed, WindowEnded
from tunecheck.core.files import hide_secrets
from tunecheck.core.paths import python_path
from tunecheck.core.premises import Premise, Source
from tunecheck.core.redaction import hidden_words
from tunecheck.core.trace import Trace, TraceWriter, encode, read
from tunecheck.listen.options import HEARD, Options, trace_file
from tunecheck.listen.problems import PROBLEMS
from tunecheck.listen.twice import SCRATCH, Runs, append_to, rehearse
from tunecheck.results import Report, RunReport, reporting
from tunecheck.results.rejudge import judged_again

BOOTSTRAP = Path(__file__).parent / "bootstrap"
INTERRUPTED = {code for number in interrupts.SIGNALS + interrupts.NOTICES for code in (-number, 128 + number)}
"""Statuses of a command that a signal has ended, and of a shell that had run it."""
GRACE_SECONDS = 60.0
"""Between the signals of a command that is to end: SIGINT, by which a script may save, SIGTERM, SIGKILL."""


def watch(
    command: Sequence[str], options: Options, early: Callable[[Report], bool] = lambda report: False
) -> tuple[Report, int]:
    """Run the command to its end; return the report and the command's exit status.

    `early` gets the report of the first steps while the command goes on; if it returns True, the command is ended.
    """
    reported = reporting(f"tunecheck watch -- {options.command}")
    folder = Path(options.folder)
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # it holds what the command printed
    except OSError as error:
        way_out = "set $TUNECHECK_REPORTS to another folder; the command was not started"
        raise SuiteError(f"{folder}: cannot be created ({error.strerror}): {way_out}") from error
    asked, runs = _rehearse(command, options) if options.twice else (options, {})
    kept: dict[str, bytes] = {}
    """The traces of a command that is ended after its first steps: what comes later is its end by a signal."""

    def tell(so_far: Path) -> None:
        traces = list(so_far.glob("*.jsonl"))
        # a Trainer that is to stop ends by itself, and its script may save then
        by_itself = options.stop and any(read(file).holds(Premise.STEP_DECLARED) for file in traces)
        if early(reported(rows_of(so_far, options, 0), interrupted=False)) and not by_itself:
            (folder / HEARD).unlink(missing_ok=True)  # by which no process prints the interrupt that ends it
            kept.update((file.name, file.read_bytes()) for file in traces)

    look_early = once_over(options, tell)

    def look() -> bool:
        with contextlib.suppress(Exception):  # the answer at the end says what is wrong
            look_early()
        return bool(kept)

    status = _run(command, asked, look=look)
    for path in folder.glob("watch-*.jsonl") if not status else ():
        if _is_over(trace := path.read_bytes()):  # its process ended by os._exit, or became another program
            path.write_bytes(_ended(trace))
    if not options.twice:  # what ran beforehand was heard by the first process alone
        merge_ranks(options)
    append_to(trace_file(options, 1, 0), runs)
    for name, trace in kept.items():
        (folder / name).write_bytes(trace)
    rows = rows_of(folder, options, 0 if kept else status)
    problems = _problems(folder) if any(row.trace_file for row in rows) else ""  # else the reason says it
    return reported(rows, interrupted=status in INTERRUPTED and not kept, problems=problems), status


def run_name(command: Sequence[str]) -> str:
    """Return a name for the command: its script's, its module's, that of its program and first words, or `inline`."""
    command = hidden_words(command)
    python = re.fullmatch(r"(python|pypy)[0-9.]*", Path(command[0]).name) is not None
    options = [word for word in command[1:3] if word in ("-c", "-m")]
    if scripts := [Path(word).stem for word in command if re.search(r"\.(py|ya?ml)$", word)]:
        name = scripts[0]
    elif python and options == ["-c"]:
        name = "inline"
    elif python and options == ["-m"]:
        name = next((word for word in command[command.index("-m") + 1 :]), "")
    else:
        name = "-".join(Path(word).stem for word in command[:2] if not word.startswith("-"))
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:60] or "training"


def _run(
    command: Sequence[str], options: Options, log: IO[bytes] | None = None, look: Callable[[], bool] | None = None
) -> int:
    """Run the command until its end, or until `look` returns True; return its status."""
    path = os.pathsep.join(filter(None, (str(BOOTSTRAP), os.environ.get("PYTHONPATH"), *python_path())))
    environment = {**os.environ, **options.to_environment(), "PYTHONPATH": path}
    try:
        with _passing_on() as started:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            started(process)
            return process.wait() if look is None else _wait(process, look)
    except OSError as error:  # no such program, no program, a folder
        with contextlib.suppress(OSError):
            Path(options.folder).rmdir()
        raise ConfigError([f"watch: the command cannot be started: {error.strerror}: {command[0]}"]) from error


def _wait(process: subprocess.Popen[bytes], look: Callable[[], bool]) -> int:
    """Return the process's status; where it is to end, signal it, more strongly each time."""
    signals, since = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], -GRACE_SECONDS
    while True:
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            if look() and signals and time.monotonic() - since >= GRACE_SECONDS:
                process.send_signal(signals.pop(0))
                since = time.monotonic()


@contextlib.contextmanager
def _passing_on() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass this process's signals on to the command; yield the function that takes the process."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        elif number not in (signal.SIGINT, signal.SIGQUIT) or not _at_terminal():  # whose keys reach the whole group
            process.send_signal(number)

    def started(command: subprocess.Popen[bytes]) -> None:
        nonlocal process
        process = command
        for number in early:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in interrupts.to_pass_on()}
    try:
        yield started
    finally:
        interrupts.close()  # what was heard is judged
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_terminal() -> bool:
    """Return whether this process is in the foreground of a terminal."""
    with contextlib.suppress(OSError), open("/dev/tty") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _rehearse(command: Sequence[str], options: Options) -> tuple[Options, Runs]:
    """Run the command beforehand; raises KeyboardInterrupt where a signal ends it, and nothing was heard yet."""
    folder = Path(options.folder)

    def run(beforehand: Options) -> int:
        if (status := _run(command, beforehand, log)) in INTERRUPTED:
            raise KeyboardInterrupt
        interrupts.work()
        return status

    try:
        with (folder / "twice.log").open("ab") as log:
            return rehearse(options, run)
    finally:
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)  # it holds a checkpoint
        hide_secrets(folder / "twice.log")


def rows_of(
    folder: Path, options: Options, status: int, unheard: str = "", earlier: Collection[Path] = ()
) -> list[RunReport]:
    """Return a row for each training that was heard, judged; one with the reason where there was none.

    `unheard` is that reason, else what the status tells. `earlier` are traces that others have left in the folder.
    """
    rows = []
    for path in sorted({*folder.glob("watch-*.jsonl")}.difference(earlier), key=lambda path: path.stem):
        try:
            if "features" not in (trace := read(path)).header.run:
                raise TraceError(_why_unheard(trace))
            rows.append(judged_again(trace, [], trace_file=path.name))
        except TraceError as error:
            name = path.stem.removeprefix("watch-")
            rows.append(RunReport(run=name, tier="watch", outcome="error", reason=str(error), trace_file=path.name))
    if not rows:
        why = unheard or _why_silent(folder, status)
        return [RunReport(run=options.name, tier="watch", outcome="error", reason=why)]
    if status and status not in INTERRUPTED:
        ended = f"the command ended with status {status}"
        return [replace(row, outcome="error", reason=ended) if row.outcome == "pass" else row for row in rows]
    return rows


def _why_silent(folder: Path, status: int) -> str:
    if status in INTERRUPTED:
        return "the command was interrupted before it trained anything"
    how = f"ended with status {status} and " if status else ""
    unheard = "no transformers Trainer and no torch optimizer made a step"
    if not (folder / HEARD).exists():
        unheard = "no Python process of it loaded tunecheck: keep the set $PYTHONPATH, and remove -E, -I and -S"
    return f"the command {how}trained nothing that tunecheck can watch: {_problems(folder) or unheard}"


def _problems(folder: Path) -> str:
    told = path.read_text(encoding="utf-8", errors="replace") if (path := folder / PROBLEMS).is_file() else ""
    return "; ".join(dict.fromkeys(told.splitlines()))


def _why_unheard(trace: Trace) -> str:
    if failed := trace.main.all(ProbeFailed):
        return f"this training cannot be watched: {failed[0].error}"
    detail = trace.main.end.detail if trace.main.end else ""
    return "the training ended before its first step" + (f": {detail}" if detail else "")


SETTLED_SECONDS = 1.0
"""A training that ends sooner after its window is judged once, at its end."""
_WINDOW_OVER, _TRAINING_OVER = (f'"kind": "{kind.__name__}"'.encode() for kind in (WindowEnded, AttemptEnd))


def _is_over(trace: bytes) -> bool:
    """Return whether the window of a training that has not told its end is over."""
    return _WINDOW_OVER in trace and _TRAINING_OVER not in trace


def _ended(trace: bytes) -> bytes:
    """Return this trace, less a line that was cut off, as that of a training that has ended."""
    end = AttemptEnd(outcome=AttemptOutcome.FINISHED, detail="", seconds=0.0)
    return trace.rpartition(b"\n")[0] + b"\n" + encode(end).encode() + b"\n"


def once_over(options: Options, tell: Callable[[Path], None]) -> Callable[[], None]:
    """Return what looks whether the window of the first training has been over for a moment in all its processes.

    It then calls `tell`, once, with a folder that holds the traces so far, and that is removed afterwards.
    """
    since, told = 0.0, False

    def look() -> None:
        nonlocal since, told
        files = [] if told else _traces_of(options, 1)
        traces = {file.name: file.read_bytes() for file in files}
        over = bool(traces) and all(map(_is_over, traces.values()))
        if not over or read(files[0]).header.environment.get("processes", 1) != len(files):
            return
        since = since or time.monotonic()
        if time.monotonic() - since < SETTLED_SECONDS:
            return
        told = True
        with TemporaryDirectory(prefix="tunecheck-early-") as folder:
            for name, trace in traces.items():
                (Path(folder) / name).write_bytes(_ended(trace))
            merge_ranks(replace(options, folder=folder))
            tell(Path(folder))

    return look


def _traces_of(options: Options, number: int) -> list[Path]:
    return list(takewhile(Path.exists, (trace_file(options, number, rank) for rank in count())))


def merge_ranks(options: Options) -> None:
    """Make one trace of each training whose processes were all heard to the same end; leave the others apart."""
    for number in count(1):
        if not (files := _traces_of(options, number)):
            return
        try:
            traces = [read(file) for file in files]
        except TraceError:
            continue  # told where the traces are judged
        ends = {(trace.main.outcome, tuple(trace.header.run.get("features", ()))) for trace in traces}
        whole = traces[0].header.environment.get("processes") == len(files)
        if len(files) > 1 and whole and len(ends) == 1 and "features" in traces[0].header.run:
            _merge(files, traces)


def _merge(files: list[Path], traces: list[Trace]) -> None:
    """Write the first one anew, with the records of the others behind their ranks, and remove these."""
    first = traces[0]
    features = sorted({*first.header.run["features"], "parallel"})
    run = {**first.header.run, "parallel": {"processes": len(traces)}, "features": features}
    beside = files[0].with_suffix(".merged")
    beside.unlink(missing_ok=True)
    whole = TraceWriter(beside)
    whole.write(replace(first.header, run=run), first.main.start, *first.main.records, *_files_written_later(first))
    for rank, trace in enumerate(traces[1:], start=1):
        left_open = {premise: told.where for premise, told in trace.run.premises.items() if told.source is Source.OPEN}
        own = PremisesOpen(reasons=left_open), *trace.main.records
        TraceWriter(beside, rank).write(*own, *_files_written_later(trace))
    whole.write(*filter(None, [first.main.end]))
    for saved in first.attempts[1:]:  # by the first process alone
        whole.write(saved.start, *saved.records, *filter(None, [saved.end]))
    beside.replace(files[0])
    for file in files[1:]:
        file.unlink()


def _files_written_later(trace: Trace) -> list[FileWritten]:
    return [seen for attempt in trace.attempts if attempt is not trace.main for seen in attempt.all(FileWritten)]
