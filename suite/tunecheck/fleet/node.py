"""What runs on a node: one session of the tier in a process of its own, condensed to an answer."""

import contextlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import tunecheck
from tunecheck.core.errors import SuiteError
from tunecheck.core.helper import die_with_parent, helper_environment
from tunecheck.core.text import human_seconds, one_line
from tunecheck.core.unexpected import described
from tunecheck.fleet.condense import condensed
from tunecheck.fleet.request import Request, read_request
from tunecheck.results.fleet import OVERDUE, Answer, Place, write_answer
from tunecheck.results.stored import plain

LOG_FILE = "output.log"
GRACE_SECONDS = 10.0
"""Between asking a session to end, which then writes its report, and killing it."""
POLL_SECONDS = 0.2
TAIL_LINES = 3
STOPPED = "stopped before its end: its fleet or its job was cancelled, preempted or out of time"


def answer(
    folder: str, fleet: str, version: str, place: Place, stop: threading.Event | None = None, **device: str
) -> dict[str, Any]:
    """Run the session of this place, write its answer beside it, and return it as plain data; never raise an error.

    `fleet` and `version` are what the asking machine knows: a folder of that name that holds something else is not
    shared, and another tunecheck is not asked. `stop` ends the session early; `device` is the environment that shows
    the place's card.
    """
    now = time.time()
    begun = Answer(place=place.name, node=place.node, card=place.card, host=platform.node(), began_at=now, ended_at=now)
    if version != tunecheck.__version__:
        problem = (
            f"tunecheck {tunecheck.__version__} is installed here, and {version} asks: their checks differ. "
            f"What to do: install {version} on this node"
        )
        return plain(replace(begun, problem=problem))
    try:
        request = read_request(Path(folder))
        if request.id != fleet:
            raise SuiteError(f"it holds {request.id}, not {fleet}")
    except SuiteError as error:
        problem = (
            f"{folder} is another folder here than on the machine that asks ({error}). What to do: set "
            "TUNECHECK_REPORTS to a folder that all nodes share"
        )
        return plain(replace(begun, problem=problem))
    own = request.place_folder(place.name)
    try:
        own.mkdir(parents=True, exist_ok=True)
        before = set(own.iterdir())
        status, problem = _run(request, place, own, device, stop)
        found = condensed(own, set(own.iterdir()) - before, begun)
        problem = problem or ("" if found.session else f"ended with status {status}: {_tail(own / LOG_FILE)}")
        found = replace(found, status=status, ended_at=time.time(), problem=problem)
        write_answer(found, own)
    except (SuiteError, OSError) as error:
        found = replace(begun, ended_at=time.time(), problem=str(error))
    except Exception as error:  # one node's surprise must not end the others' session
        found = replace(begun, ended_at=time.time(), problem=f"an error of tunecheck itself: {described(error)}")
    return plain(found)


def _run(
    request: Request, place: Place, own: Path, device: dict[str, str], stop: threading.Event | None
) -> tuple[int | None, str]:
    """Run the session to its end; return its exit status, and why it was stopped, if it was."""
    on_card = place.card is not None and "device=cpu" not in request.arguments  # else the CPU would pass in its place
    required = ["--require-gpu"] if on_card and "--require-gpu" not in request.arguments else []
    command = [sys.executable, "-m", "tunecheck.cli", "run", *request.arguments, *required]
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as Slurm and Ray count cards; else an index may be another card's
        **helper_environment(),
        "TUNECHECK_REPORTS": str(own),
        "TUNECHECK_HISTORY": str(own / "history.sqlite"),  # SQLite over a network file system would be torn
        **device,
    }
    where = request.working_folder if os.path.isdir(request.working_folder) else str(own)
    with (own / LOG_FILE).open("ab") as log:
        session = subprocess.Popen(
            command,
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    deadline = time.monotonic() + request.options.seconds
    try:
        while session.poll() is None:
            if stop is not None and stop.is_set():
                return _ended(session), STOPPED
            if time.monotonic() > deadline:
                _ended(session)
                return OVERDUE, f"not done after {human_seconds(request.options.seconds)} (--time)"
            time.sleep(POLL_SECONDS)
    except BaseException:  # Slurm's SIGTERM, Ray's cancelling: the session writes what it has
        _ended(session)
        raise
    return session.returncode, ""


def _ended(session: subprocess.Popen[bytes]) -> int | None:
    """Ask the session to end, which lets it write its report; kill it if it does not."""
    with contextlib.suppress(ProcessLookupError):
        session.send_signal(signal.SIGTERM)
    try:
        return session.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        session.kill()
        return session.wait()


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
        return one_line("; ".join(lines), 500) or "it printed nothing"
    return "its output cannot be read"
