"""The README of a folder of evidence: scripts/evidence-tables.py DIR. Reads what scripts/gpu-evidence.sh left there.

Nothing is measured here: sessions' verdicts and traces are put together, and each attempt on a GPU is set beside the
prediction of its own configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tunecheck.config.schema import Run
from tunecheck.core.errors import SuiteError
from tunecheck.core.evidence import Phase, Setup, Weights
from tunecheck.core.trace import Attempt, Trace, read
from tunecheck.memory import predict
from tunecheck.memory.constants import CUBLAS_WORKSPACE
from tunecheck.runner.fallback_chain import variant

MIB = 2**20
TRAINS = ("train", "compare", "fallback step")
TRAINING = ("first step", "steady")
STATUS = {0: "pass", 1: "fail", 2: "ended early", 4: "wrong request", 6: "could not be judged", 7: "too small"}


@dataclass(frozen=True, slots=True)
class Peak:
    """One attempt's peak of requested memory while it trained, in bytes: predictions know tensors, and no blocks."""

    name: str
    how: str
    measured: int
    predicted: int | None
    """None where no prediction could be made."""
    rounding: int
    """What the allocator's blocks take beyond that."""

    @property
    def error(self) -> float | None:
        """Signed, as a share of what was measured."""
        return None if self.predicted is None else self.predicted / self.measured - 1


def main(folder: Path) -> None:
    """Write the folder's README.md."""
    traces = [read(path) for path in sorted(folder.glob("*/*/*.jsonl"))]
    constants = _json(folder / "constants.json")
    peaks = list(peaks_of(traces, _workspace_bytes(constants)))
    (folder / "README.md").write_text(document(folder, traces, constants, peaks), encoding="utf-8")
    print(f"{folder / 'README.md'}: {len(traces)} runs, {len(peaks)} peaks measured on a GPU")


def document(folder: Path, traces: Sequence[Trace], constants: dict[str, Any], peaks: Sequence[Peak]) -> str:
    """All of it, as Markdown."""
    cards = sorted({str((setup.cuda or {})["name"]) for setup in _setups(traces) if setup.cuda})
    title = f"Evidence of {', '.join(cards)}" if cards else "Nothing of this was measured on a GPU: no evidence"
    parts = [f"<!-- Written by scripts/evidence-tables.py; do not edit by hand. -->\n# {title}", _environment(traces)]
    parts += ["## Parts", _parts(folder), "## Down the ladder", _ladders(traces)]
    if constants:
        parts += ["## The card's own share", f"```json\n{json.dumps(constants, indent=2)}\n```"]
    parts += ["## Predictions beside measurements", _predictions(peaks)]
    return "\n\n".join(parts) + "\n"


def peaks_of(traces: Sequence[Trace], workspace_bytes: int) -> Iterator[Peak]:
    """Every configuration that finished a training on a GPU, once: its largest peak, without probes where it has one.

    What probes keep from step to step (samples, moments of their own) counts as the training's where they listen.
    """
    found: dict[str, tuple[tuple[bool, int], int, str, Run]] = {}
    for trace in traces:
        for attempt in trace.attempts:
            phases = [phase for phase in attempt.all(Phase) if phase.name in TRAINING]
            allocated = max((phase.peak_allocated_bytes or 0 for phase in phases), default=0)
            measured = max((phase.peak_requested_bytes or 0 for phase in phases), default=0) or allocated
            if not measured or not attempt.finished or attempt.start.purpose not in TRAINS:
                continue
            run = _configured(trace, attempt)
            how = attempt.start.configuration
            how += ", random weights" if any(not weights.pretrained for weights in attempt.all(Weights)) else ""
            how += " (with probes)" if attempt.start.purpose == "train" else ""
            rank = (attempt.start.purpose != "train", measured)
            if run.fingerprint not in found or rank > found[run.fingerprint][0]:
                found[run.fingerprint] = rank, allocated - measured, how, run
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each prediction is a process of its own
        predicted = pool.map(lambda row: _predicted(row[-1], workspace_bytes), found.values())
        for ((_, measured), rounding, how, run), size in zip(found.values(), predicted, strict=True):
            yield Peak(f"{run.name}{_settings(run)}", how, measured, size, rounding)


def _configured(trace: Trace, attempt: Attempt) -> Run:
    asked = {key: value for key, value in trace.header.run.items() if key != "features"}
    return variant(Run.model_validate(asked), attempt.start.changes)


def _predicted(run: Run, workspace_bytes: int) -> int | None:
    try:
        simulated = predict(run).simulation
    except SuiteError as error:
        print(f"{run.name}: {error}", file=sys.stderr)
        return None
    return max(simulated.first_step_bytes, simulated.steady_bytes) + workspace_bytes


def _workspace_bytes(constants: dict[str, Any]) -> int:
    return int(constants.get("default", {}).get("cublas_workspace_bytes", CUBLAS_WORKSPACE.bytes))


def _settings(run: Run) -> str:
    """What tells one configuration of a run from another."""
    return f" ({run.model.name}, {run.strategy}, {run.training.micro_batch_size} x {run.data.max_length})"


def _setups(traces: Sequence[Trace]) -> list[Setup]:
    return [setup for trace in traces for attempt in trace.attempts for setup in attempt.all(Setup)]


def _environment(traces: Sequence[Trace]) -> str:
    setups = _setups(traces)
    if not setups:
        return "No training got so far as to tell its versions."
    return ", ".join(f"{name} {version}" for name, version in sorted(setups[-1].versions.items())) + "."


def _parts(folder: Path) -> str:
    lines = ["| part | ended | seconds | runs | started | commit |", "|---|---|---:|---|---|---|"]
    table = folder / "parts.tsv"
    for line in table.read_text(encoding="utf-8").splitlines() if table.exists() else []:
        part, status, seconds = line.split("\t")
        verdicts = [_json(path) for path in sorted((folder / part).glob("*/verdict.json"))]
        outcomes = Counter(row["outcome"] for verdict in verdicts for row in verdict.get("runs", []))
        runs = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        started = ", ".join(verdict["started_at"] for verdict in verdicts)
        commits = ", ".join(dict.fromkeys(map(_commit, verdicts)))
        ended = STATUS.get(int(status), f"status {status}")
        lines.append(f"| {part} | {ended} | {seconds} | {runs or '-'} | {started or '-'} | {commits or '-'} |")
    return "\n".join(lines)


def _commit(verdict: dict[str, Any]) -> str:
    git = verdict["environment"].get("git") or {}
    return str(git.get("commit", "unknown"))[:12] + (" with changes" if git.get("dirty") else "")


def _ladders(traces: Sequence[Trace]) -> str:
    lines = ["| run | card capped at | attempts, each with its peak |", "|---|---:|---|"]
    for trace in traces:
        tried = [attempt for attempt in trace.attempts if attempt.start.purpose == "train"]
        cap = next((attempt.start.vram_cap_bytes for attempt in tried if attempt.start.vram_cap_bytes), None)
        if cap is None and len(tried) < 2:
            continue
        told = "; ".join(_attempt_words(attempt) for attempt in tried)
        lines.append(f"| {_configured(trace, tried[0]).name} | {f'{cap / 2**30:.1f} GiB' if cap else '-'} | {told} |")
    return "\n".join(lines) if len(lines) > 2 else "No run was capped, and none had to go down its ladder."


def _attempt_words(attempt: Attempt) -> str:
    peak = max((phase.peak_allocated_bytes or 0 for phase in attempt.all(Phase)), default=0)
    ended = attempt.end.outcome.replace("_", " ") if attempt.end else "cut off"
    return f"{attempt.start.configuration} on {attempt.start.device}: {ended}" + (
        f", {peak / MIB:,.0f} MiB" if peak else ""
    )


def _predictions(peaks: Sequence[Peak]) -> str:
    if not peaks:
        return "No attempt told its peak of allocated memory, as none does on a CPU."
    lines = [
        "| run | attempt | measured, MiB | blocks beyond it, MiB | predicted, MiB | error |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for peak in peaks:
        predicted = "-" if peak.predicted is None else f"{peak.predicted / MIB:,.0f}"
        error = "-" if peak.error is None else f"{peak.error:+.1%}"
        sizes = f"{peak.measured / MIB:,.0f} | {peak.rounding / MIB:,.0f}"
        lines.append(f"| {peak.name} | {peak.how} | {sizes} | {predicted} | {error} |")
    return "\n".join(
        [
            "What was requested of the allocator at the peak of the training steps. A prediction takes every row as",
            "long as `data.max_length`; the part `peaks` pads its rows to it, other runs have shorter ones and need",
            "less.\n",
            *lines,
        ]
    )


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
