"""A node's session as an answer: the few numbers of each run that are compared between nodes."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tunecheck.checks.telemetry import busy_host, samples
from tunecheck.core.errors import MissingEvidence, SuiteError
from tunecheck.core.evidence import TRAINING_PHASES, AttemptCause, Dataset, Evaluation, Setup, Step, Weights
from tunecheck.core.trace import Trace, read
from tunecheck.history.entry import device, figures_of, history_entry
from tunecheck.results import Report, RunReport
from tunecheck.results.fleet import Answer, RunAnswer
from tunecheck.results.fleet.outliers import FIGURES
from tunecheck.results.rejudge import session_report

NUMERICS = ("deterministic", "tf32_matmul", "tf32_cudnn", "attention_kernel", "attention_kernel_masked")
"""Numeric modes that choose other arithmetic; how long OpenMP spins, say, chooses none."""
FROM_OUTSIDE = (AttemptCause.KILLED, AttemptCause.START)
"""Causes of an end that another process or the kernel brings about."""
VARIABLES = ("BNB_CUDA_VERSION", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")
"""Of the environment, likewise."""


def condensed(own: Path, new: Iterable[Path], begun: Answer) -> Answer:
    """Return the answer with the last session of these folders; without one, unchanged.

    A session that was killed has no verdict: its traces are judged again.
    """
    folders = sorted(path for path in new if path.is_dir() and any(path.glob("*.json*")))
    if not folders:
        return begun
    folder = folders[-1]
    report = session_report(folder)
    traces: dict[str, Trace] = {}
    for row in report.runs:
        with suppress(SuiteError):  # the row says so
            traces |= {row.name: read(folder / row.trace_file)} if row.trace_file else {}
    runs = tuple(_run(row, traces.get(row.name), report) for row in report.runs)
    about = {"session": f"{own.parents[1].name}/{begun.place}", "started_at": report.started_at}
    entries = (history_entry(row, traces[row.name], **about) for row in report.runs if row.name in traces)
    setups = (setup for trace in traces.values() if (setup := _setup(trace)))
    return replace(
        begun,
        uuid=next((str((setup.cuda or {}).get("uuid") or "") for setup in setups), ""),
        commit=((report.environment.get("git") or {}).get("commit") or ""),
        session=str(folder.relative_to(own.parents[1])),
        runs=runs,
        history=tuple(asdict(entry) for entry in entries if entry is not None),
    )


def _run(row: RunReport, trace: Trace | None, report: Report) -> RunAnswer:
    setup, end = _setup(trace) if trace else None, None
    with suppress(MissingEvidence):
        end = trace.main.end if trace else None
    told = RunAnswer(
        run=row.name,
        outcome=row.outcome,
        reason=row.reason,
        domain=row.domain,
        stopped=row.interrupted or (end is not None and end.cause in FROM_OUTSIDE),
        passed=len(row.passed),
        failed=tuple(row.failed),
        unjudged=tuple(finding for finding in row.unjudged if not finding.expected),
        fingerprint=row.fingerprint,
    )
    if trace is None or setup is None:
        return told
    finished = trace.main.finished
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


def _setup(trace: Trace) -> Setup | None:
    """Return what the training resolved; None where it never got so far."""
    with suppress(MissingEvidence):
        return trace.one(Setup)
    return None
