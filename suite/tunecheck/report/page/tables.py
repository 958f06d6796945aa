"""The page's tables of a run, as plain rows from its trace."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tunecheck.checks.telemetry import card_bytes
from tunecheck.core.evidence import DataSplit, Generation, Phase, ProbeTimes, Setup, StepTimes, Weights
from tunecheck.core.frozen import Frozen
from tunecheck.core.text import facts, human_bytes, human_seconds
from tunecheck.core.trace import Trace
from tunecheck.results import RunReport
from tunecheck.results.comparison import SideBySide


class Table(Frozen):
    """Rows under their headings; falsy without rows."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __bool__(self) -> bool:
        return bool(self.rows)


def said(comparison: SideBySide, traces: Mapping[str, Trace]) -> dict[str, Table]:
    """Return by prompt every run's continuation before and after; `traces` are by a run's name."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for run in comparison.runs:
        if run.entry is not None and run.name in traces:
            for text in texts(traces[run.name]):
                found.setdefault(text["prompt"], []).append((run.entry.name, text["before"], text["after"]))
    heads = (comparison.named_by, "before", "after")
    return {prompt: Table(heads=heads, rows=tuple(rows)) for prompt, rows in found.items()}


def phases(trace: Trace) -> Table:
    """Return time and largest memory of each phase of the main attempt, in order."""
    rows: list[tuple[str, ...]] = []
    for phase in trace.records(Phase):
        allocator = (phase.peak_allocated_bytes, phase.peak_reserved_bytes, phase.probes_peak_allocated_bytes)
        sizes = (*allocator, card_bytes(trace, [phase]), phase.process_bytes)
        rows.append((phase.name, human_seconds(phase.seconds), *map(human_bytes, sizes)))
    return _filled(("phase", "time", "live tensors", "reserved", "probes", "whole GPU", "resident"), rows)


def costs(trace: Trace) -> Table:
    """Return the time of each probe relative to the steps', the longest first; those below 0.1 % are left out."""
    steps = sum(second for times in trace.records(StepTimes) for second in times.seconds)
    spent = {name: second for times in trace.records(ProbeTimes) for name, second in times.seconds.items()}
    costly = {name: second for name, second in spent.items() if steps and second >= steps / 1000}
    told = sorted(costly.items(), key=lambda item: -item[1])
    told += [("all probes", sum(spent.values()))] if told else []
    rows = tuple((name, f"{second:.2f} s", f"{second / steps:.1%}") for name, second in told)
    return Table(heads=("probe", "time", "of the steps' own time"), rows=rows)


def attempts(trace: Trace, run: RunReport) -> Table:
    """Return every training process, in order."""
    rows: list[tuple[str, ...]] = []
    for attempt, row in zip(trace.attempts, run.attempts, strict=False):
        start, end = attempt.start, attempt.end
        peaks = [phase.peak_allocated_bytes for phase in attempt.all(Phase) if phase.peak_allocated_bytes is not None]
        device = f"{row.device}{f' ({start.card})' if start.card else ''}"
        seconds, peak = human_seconds(end.seconds) if end else "", human_bytes(max(peaks, default=None))
        rows.append((str(start.purpose), seconds, peak, device, start.explanation, attempt.ending))
    return _filled(("purpose", "time", "peak", "device", "why", "outcome"), rows)


def texts(trace: Trace) -> list[dict[str, str]]:
    """Return the continuations of each prompt before and after, with the answer that was trained if there is one."""
    found = trace.records(Generation)
    said = {(g.when, g.prompt, g.expected): g.text.strip() for g in found}
    return [
        {"prompt": prompt, "expected": expected}
        | {name: said.get((when, prompt, expected), "") for name, when in (("before", "start"), ("after", "end"))}
        for prompt, expected in dict.fromkeys((generation.prompt, generation.expected) for generation in found)
    ]


def provenance(trace: Trace, run: RunReport) -> list[tuple[str, str]]:
    """Return the sources of model and data, and the numeric modes of the training, as names and values."""
    held: dict[str, Any] = {"fingerprint": run.fingerprint, "started": trace.header.started_at}
    for record in (*trace.records(Weights), *trace.records(Setup)):
        held[type(record).__name__.lower()] = asdict(record)
    for data in trace.records(DataSplit):
        held["data"] = {"name": data.dataset, "sha256": data.dataset_sha256}
    return list(facts(held))


def settings(trace: Trace) -> list[tuple[str, str]]:
    """Return the resolved configuration without its checks, whose limits are in the table of all checks."""
    on_the_page = ("checks", "features", "id", "tier", "description")
    run = {key: value for key, value in trace.settings.items() if key not in on_the_page}
    in_its_files = ("architecture", "sources")  # they are long
    model = {key: value for key, value in run.pop("model", {}).items() if key not in in_its_files}
    return list(facts({"model": model, **run}))


def _filled(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """Return the table without its empty columns: on a CPU no allocator counts."""
    kept = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    shown = [tuple(row[place] for place in kept) for row in (heads, *rows)]
    return Table(heads=shown[0], rows=tuple(shown[1:]))
