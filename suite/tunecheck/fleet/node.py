"""What runs on a node: one session of the tier in a process of its own, condensed to the numbers that are compared."""

import contextlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import tunecheck
from tunecheck.checks.telemetry import busy_host, samples
from tunecheck.core.errors import SuiteError
from tunecheck.core.evidence import TRAINING_PHASES, AttemptCause, Dataset, Evaluation, LayerCalls, Setup, Step, Weights
from tunecheck.core.files import last_lines
from tunecheck.core.helper import die_with_parent, helper_environment
from tunecheck.core.text import human_seconds, one_line
from tunecheck.core.trace import Trace, read
from tunecheck.core.unexpected import described
from tunecheck.fleet.request import Request, read_request
from tunecheck.history.store import device, figures_of, history_entry
from tunecheck.results import Report, RunReport
from tunecheck.results.fleet import ANSWER_FILE, OVERDUE, Answer, Place, RunAnswer
from tunecheck.results.fleet.kinds import FIGURES
from tunecheck.results.rejudge import session_report
from tunecheck.results.stored import plain, write_record

LOG_FILE = "output.log"
GRACE_SECONDS = 10.0
"""Between asking a session to end, which then writes its report, and killing it."""
POLL_SECONDS = 0.2
STOPPED = "stopped early: its fleet or its job was cancelled, preempted or out of time"
NUMERICS = ("deterministic", "tf32_matmul", "tf32_cudnn")
"""Numeric modes that choose other arithmetic; how long OpenMP spins, say, chooses none."""

VARIABLES = ("BNB_CUDA_VERSION", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


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
        here = f"tunecheck {tunecheck.__version__} is installed here, but the fleet's is {version}: their checks differ"
        return plain(replace(begun, problem=f"{here}. What to do: install {version} on this node"))
    try:
        if (request := read_request(Path(folder))).id != fleet:
            raise SuiteError(f"it holds {request.id}, not {fleet}")
    except SuiteError as error:
        here = f"{folder} is another folder here than on the machine that started the fleet ({error})"
        remedy = "What to do: set TUNECHECK_REPORTS to a folder that all nodes share"
        return plain(replace(begun, problem=f"{here}. {remedy}"))
    own = request.place_folder(place.name)
    try:
        own.mkdir(parents=True, exist_ok=True)
        before = set(own.iterdir())
        status, problem = _run(request, place, own, device, stop)
        found = condensed(own, set(own.iterdir()) - before, begun)
        problem = problem or ("" if found.session else f"ended with status {status}: {_tail(own / LOG_FILE)}")
        found = replace(found, status=status, ended_at=time.time(), problem=problem)
        write_record(found, own / ANSWER_FILE, indent=None)
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
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        session = subprocess.Popen(command, cwd=where, env=environment, preexec_fn=die_with_parent, **streams)
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
        return one_line("; ".join(last_lines(log, 3)), 500) or "it printed nothing"
    return "its output cannot be read"


def condensed(own: Path, new: Iterable[Path], begun: Answer) -> Answer:
    """Return the answer with the last of these sessions, if any; one that was killed is judged from its traces."""
    if not (folders := sorted(path for path in new if path.is_dir() and any(path.glob("*.json*")))):
        return begun
    folder = folders[-1]
    report = session_report(folder)
    traces: dict[str, Trace] = {}
    for row in report.runs:
        with contextlib.suppress(SuiteError):  # the row says so
            traces |= {row.name: read(folder / row.trace_file)} if row.trace_file else {}
    about = {"session": f"{own.parents[1].name}/{begun.place}", "started_at": report.started_at}
    entries = (history_entry(row, traces[row.name], **about) for row in report.runs if row.name in traces)
    setups = (setup for trace in traces.values() for setup in trace.records(Setup)[-1:])
    return replace(
        begun,
        uuid=next((str((setup.cuda or {}).get("uuid") or "") for setup in setups), ""),
        commit=((report.environment.get("git") or {}).get("commit") or ""),
        session=str(folder.relative_to(own.parents[1])),
        runs=tuple(_run_answer(row, traces.get(row.name), report) for row in report.runs),
        history=tuple(asdict(entry) for entry in entries if entry is not None),
    )


def _run_answer(row: RunReport, trace: Trace | None, report: Report) -> RunAnswer:
    end = trace.main.end if trace and trace.trainings else None
    told = RunAnswer(
        run=row.name,
        outcome=row.outcome,
        reason=row.reason,
        domain=row.domain,
        stopped=row.interrupted or (end is not None and end.cause in (AttemptCause.KILLED, AttemptCause.START)),
        passed=len(row.passed),
        failed=tuple(row.failed),
        unjudged=tuple(finding for finding in row.unjudged if not finding.expected),
        fingerprint=row.fingerprint,
    )
    if trace is None or not (setups := trace.records(Setup)):
        return told
    setup, finished = setups[-1], trace.main.finished
    return replace(
        told,
        kind=kind(trace, setup, report.environment),
        deterministic=bool(setup.numerics.get("deterministic")),
        numbers=numbers(trace) if finished else {},
        figures=figures(row, trace) if finished else {},
        disturbed=busy_host(trace) if finished else "",
    )


def kind(trace: Trace, setup: Setup, environment: dict[str, Any]) -> dict[str, str]:
    """Return what must be the same where a deterministic run shall give the same bits."""
    driver = next((gpu.get("driver_version") for gpu in environment.get("gpus") or () if gpu.get("driver_version")), "")
    on_card = setup.device != "cpu"
    held: dict[str, Any] = {
        "device": device(setup, environment),
        "commit of tunecheck": (environment.get("git") or {}).get("commit"),
        "driver": driver if on_card else "",
        "CUDA": (setup.cuda or {}).get("cuda"),
        "cuDNN": (setup.cuda or {}).get("cudnn"),
        "platform": environment.get("platform"),
        "python": environment.get("python"),
        **setup.versions,
        # threads share a sum between them, and instruction sets choose kernels: both decide in which order it is added
        "threads": "" if on_card else setup.threads,
        "instruction sets": "" if on_card else (environment.get("cpu") or {}).get("flags"),
        "precision": setup.precision,
        "attention": setup.attention,
        **{name: setup.numerics.get(name) for name in NUMERICS},
        **{name: (environment.get("environment") or {}).get(name) for name in VARIABLES},
    }
    for calls in trace.main.all(LayerCalls):
        held["attention_kernels"] = " ".join(calls.attention_kernels)
    for weights in trace.main.all(Weights):
        held["weights"] = weights.sha256
    for data in trace.main.all(Dataset):
        held["rows"] = data.sha256
    return {name: str(value) for name, value in held.items() if value not in (None, "")}


def numbers(trace: Trace) -> dict[str, tuple[float, ...]]:
    """Return every number that the training computed and recorded, by name, in order."""
    steps, evaluations = trace.main.all(Step), trace.main.all(Evaluation)
    found = {
        "loss of step": tuple(step.loss for step in steps),
        "gradient norm of step": tuple(step.gradient_norm for step in steps),
        "evaluation": tuple(evaluation.loss for evaluation in evaluations),
    }
    return {name: values for name, values in found.items() if values}


def figures(row: RunReport, trace: Trace) -> dict[str, float]:
    """Return the figures that are compared between nodes, without what was not measured."""
    during = samples(trace, TRAINING_PHASES)
    hot = [sample.temperature_celsius for sample in during if sample.temperature_celsius is not None]
    clocks = [sample.sm_clock_mhz for sample in during if sample.sm_clock_mhz is not None]
    measured = {
        **figures_of(row, trace),
        **({"tokens_per_second": row.tokens_per_second} if row.tokens_per_second else {}),
        **({"temperature_celsius": max(hot)} if hot else {}),
        **({"sm_clock_mhz": fmean(clocks)} if clocks else {}),
    }
    return {name: value for name, value in measured.items() if name in FIGURES}
