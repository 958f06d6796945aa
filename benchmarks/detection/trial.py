"""One run, trained and judged: what failed, what could not be judged, and whether a smoke test would have failed."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detection.bugs import Bug
from tunecheck.config import find_run, load_run
from tunecheck.core.errors import MissingEvidence, SuiteError
from tunecheck.core.evidence import Evaluation
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Trace, spelled

QUICK, CONVERGENCE = "quick/smollm2-135m-qlora", "convergence/smollm2-135m-qlora"
DEVICES, PRECISIONS = ("cpu", "cuda"), ("fp32", "bf16", "fp16")
TINY = ("model=tiny-llama", "data.max_length=512", "training.max_steps=5")
"""A model of two layers, trained for a minute so that its logits are far from uniform: about two seconds a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all trials of a study share: model, device, precision and the user's overrides."""

    real: bool = False
    """The run's own weights instead of two layers."""
    device: str = "cpu"
    precision: str = "fp32"
    overrides: tuple[str, ...] = ()
    """As for --set; they win over a bug's or a variant's settings."""

    @property
    def name(self) -> str:
        """What result files are called: tiny, real, tiny-bf16, tiny-bf16-cuda, ...; fp32 and the CPU go unnamed."""
        parts = ["real" if self.real else "tiny"]
        parts += [self.precision] * (self.precision != "fp32") + [self.device] * (self.device != "cpu")
        return "-".join(parts)

    def settings(self, *own: str) -> tuple[str, ...]:
        """Return a run's settings with these of its own, which win over the study's model and precision."""
        tiny = () if self.real else TINY
        return (f"device={self.device}", f"training.precision={self.precision}", *tiny, *own, *self.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of one run."""

    outcome: str
    """finished, or how the training ended: failed, crashed, hung, out_of_memory, unavailable."""
    findings: tuple[Finding, ...]
    """In the order of a training: the first that failed is the nearest to the cause."""
    smoke_test_failed: bool
    """Whether "it ran to the end, losses are finite, the loss fell" is false."""
    seconds: float

    @property
    def failed(self) -> tuple[str, ...]:
        """Checks that failed."""
        return tuple(f.check for f in self.findings if f.status is Status.FAILED)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Checks that lacked their evidence, apart from those that random weights leave unjudged by design."""
        return tuple(f.check for f in self.findings if f.status is Status.UNJUDGED and not f.expected)

    @property
    def flagged(self) -> bool:
        """Whether anything was reported against the run."""
        return self.outcome != "finished" or bool(self.failed or self.unjudged)

    @property
    def numbers(self) -> dict[str, tuple[float, float]]:
        """Measured value and limit by check, where both are numbers."""
        return {f.check: numbers for f in self.findings if (numbers := _numbers(f)) is not None}


def try_run(name: str, setup: Setup, settings: Sequence[str] = (), bug: Bug | None = None) -> Trial:
    """Train the run of this name in a fresh process, with the bug injected if one is given, and judge it.

    Raises ConfigError for settings that contradict each other, SuiteError for cuda without a GPU. Whatever goes wrong
    in the training is in the outcome.
    """
    from tunecheck.runner import Runner

    run = load_run(find_run(name), setup.settings(*settings))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tunecheck-") as folder:
        bugs = (bug,) if bug else ()
        runner = Runner(folder=Path(folder), faults=bugs, **_hardware(setup.device))
        trace = runner.execute(run)
    ends = [attempt.end.outcome if attempt.end else "killed" for attempt in trace.attempts]
    return Trial(
        outcome=next((end for end in ends if end != "finished"), "finished"),
        findings=tuple(check(trace) for check in run.resolved_checks().values()),
        smoke_test_failed=smoke_test_failed(trace),
        seconds=time.monotonic() - started,
    )


def _hardware(device: str) -> dict[str, Any]:
    """Return the runner's arguments for this device. A CPU study is not told of its machine: it must not matter."""
    if device == "cpu":
        return {"environment": {}, "gpu": False}
    from tunecheck.hardware import probe

    hardware = probe()
    if not hardware.visible_gpus:
        raise SuiteError("--device cuda needs a GPU that CUDA shows to this process; `tunecheck doctor` says why not")
    return {"environment": spelled(hardware), "gpu": True, "cards": (hardware.visible_gpus[0].uuid,)}


def smoke_test_failed(trace: Trace) -> bool:
    """Return whether the usual smoke test fails: it ran to the end, every loss is finite, and the loss fell.

    It is given more than it usually has: the loss is that of fixed rows in eval mode, free of sampling noise, and any
    fall suffices.
    """
    try:
        losses = [step.loss for step in trace.steps]
        probe = [seen.loss for seen in trace.all(Evaluation) if seen.split == "probe"]
    except MissingEvidence:
        return True
    fell = len(probe) > 1 and probe[-1] < probe[0]
    return not (trace.main.finished and all(map(math.isfinite, [*losses, *probe])) and fell)


def _numbers(finding: Finding) -> tuple[float, float] | None:
    measured, limit = finding.measured, finding.limit
    if isinstance(measured, int | float) and isinstance(limit, int | float):
        return float(measured), float(limit)
    return None
