"""The charts of a trace, and of the sessions before it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunecheck.core.check import grouped
from tunecheck.core.errors import HistoryError
from tunecheck.core.evidence import DeviceSample, Evaluation, Gradients, LiveTensors, Phase, Step
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Attempt, Trace
from tunecheck.history.store import HistoryEntry, Store, history_entry, history_file
from tunecheck.report.page.chart import Chart, Point, Series
from tunecheck.report.view import STATUS_TITLES, baseline_source
from tunecheck.results import Report, RunReport
from tunecheck.results.baseline import FIGURES, MOST_SESSIONS, Figure, FigureComparison

MIB, GIB = 2**20, 2**30


def charts(trace: Trace, findings: Sequence[Finding]) -> list[Chart]:
    """Return the charts of the main attempt, without those of which nothing was recorded."""
    if not trace.trainings:
        return []
    main = trace.main
    limits = {finding.check: finding.limit for finding in findings}
    opened, steps = trace.why({Premise.CAUSAL_LM, Premise.TOKEN_MEAN_LOSS}), main.all(Step)
    rates = {"learning rate": [(s.step, s.learning_rate) for s in steps]}
    speeds = {"tokens/s": [(s.step, s.tokens / s.seconds) for s in steps if s.seconds > 0]}
    memory = {  # a leak rises here long before it reaches a ceiling
        "allocated on the GPU": [(s.step, s.allocated_bytes / MIB) for s in steps if s.allocated_bytes is not None],
        "tensors alive in the process": [(found.step, found.bytes / MIB) for found in main.all(LiveTensors)],
    }
    made = [
        _loss(main, limits.get("loss_falls"), "as the training computes it" if opened else "nats per supervised token"),
        _over_steps("Learning rate", "read from the optimizer", rates),
        _norms(main, trace.settings.get("training", {}).get("max_grad_norm")),
        _over_steps("Throughput", "tokens per second", speeds),
        _card_memory(main, limits.get("vram_ceiling")),
        _over_steps("Memory after each step", "MiB", memory),
    ]
    return [chart for chart in made if chart.series]


def _over_steps(title: str, unit: str, curves: Mapping[str, Sequence[Point]], **more: Any) -> Chart:
    """Chart curves over the optimizer steps, without those of which nothing was recorded."""
    series = tuple(Series(name=name, points=tuple(points)) for name, points in curves.items() if points)
    return Chart(title=title, x_name="optimizer step", unit=unit, series=series, **more)


def _loss(main: Attempt, min_fall: float | str | None, unit: str) -> Chart:
    losses = grouped((found.split, (found.step, found.loss)) for found in main.all(Evaluation))
    probe, heldout = losses.get("probe", []), losses.get("heldout", [])
    limits = {}
    if isinstance(min_fall, int | float) and probe and math.isfinite(probe[0][1]):
        limits["loss_falls: the probe batch must end at or below"] = probe[0][1] * (1 - min_fall)
    note = "The training loss scatters with its rows; the probe batch is always the same." if probe else ""
    curves = {"training": [(s.step, s.loss) for s in main.all(Step)], "probe batch": probe, "held-out rows": heldout}
    return _over_steps("Loss", unit, curves, limits=limits, note=note)


def _norms(main: Attempt, clip: float | None) -> Chart:
    norms = [(found.step, found.norms) for found in main.all(Gradients)]
    names = dict.fromkeys(name for _, by_name in norms for name in by_name)
    titles = {name: name.replace("lora_", "") if len(names) > 1 else "measured" for name in names}
    curves = {title: [(s, held[name]) for s, held in norms if name in held] for name, title in titles.items()}
    curves["as reported"] = [(step.step, step.gradient_norm) for step in main.all(Step)]
    limits = {"clipped to": clip} if clip else {}
    note = "A has no gradient while B is zero: before the first step that changes B, and in it."
    note = note if "lora_A" in names else ""
    return _over_steps("Gradient norms", "norm before clipping", curves, limits=limits, note=note)


def _card_memory(main: Attempt, ceiling_mib: float | str | None) -> Chart:
    """Chart the monitor's samples and the phases over the time since the first of them."""
    samples = main.all(DeviceSample)
    phases = [(phase.started_at, phase) for phase in main.all(Phase) if phase.started_at is not None]
    begin = min([*(sample.at for sample in samples), *(at for at, _ in phases)], default=0.0)
    used = [(s.at - begin, s.used_bytes / GIB) for s in samples if s.used_bytes is not None]
    own = [(s.at - begin, s.process_bytes / GIB) for s in samples if s.process_bytes is not None]
    reserved = [end for at, phase in phases for end in _bar(at - begin, phase.seconds, phase.peak_reserved_bytes)]
    live = [end for at, phase in phases for end in _bar(at - begin, phase.seconds, phase.peak_allocated_bytes)]
    curves = (
        Series(name="whole GPU", points=tuple(used)),
        Series(name="training process on the GPU", points=tuple(own)),
        Series(name="reserved by the allocator", points=tuple(reserved), steps=True),
        Series(name="live tensors, peak", points=tuple(live), steps=True),
    )
    series = tuple(found for found in curves if found.points)
    limits = {}
    if isinstance(ceiling_mib, int | float):
        limits["vram_ceiling, of the live tensors while training:"] = ceiling_mib * MIB / GIB
    note = "Bars are the peaks of a phase; GPU and process are sampled by the driver, five times a second."
    return Chart(title="GPU memory", x_name="seconds", unit="GiB", series=series, limits=limits, note=note)


def _bar(at: float, seconds: float, held_bytes: int | None) -> list[Point]:
    return [] if held_bytes is None else [(at, held_bytes / GIB), (at + seconds, held_bytes / GIB)]


def trends(report: Report, run: RunReport, trace: Trace, folder: Path) -> tuple[list[Chart], str]:
    """Chart the last sessions of this run's key by figure; also return why not. Nothing for a run without a history."""
    if (entry := history_entry(run, trace, session=folder.name, started_at=report.started_at)) is None:
        return [], ""
    try:
        before = Store(history_file(folder.parent)).entries(key=entry.key, before=entry.started_at, last=MOST_SESSIONS)
    except HistoryError as error:
        return [], f"no previous sessions, since the history cannot be used: {error}"
    comparisons = {one.figure: one for one in report.figure_comparisons if one.run == run.name}
    shown = min(MOST_SESSIONS, 60 // max(1, len(report.runs)) + 1)  # a page of ten runs stays under 300 kB
    entries = [*before[-shown:], entry]
    held = {name: [one for one in entries if name in one.figures] for name in FIGURES if name in entry.figures}
    trending = {name: of_figure for name, of_figure in held.items() if len(of_figure) > 1}
    return [_trend(FIGURES[name], of_figure, comparisons.get(name)) for name, of_figure in trending.items()], ""


def _trend(figure: Figure, held: Sequence[HistoryEntry], comparison: FigureComparison | None) -> Chart:
    scale = MIB if figure.unit == "bytes" else 1
    points = tuple((place, entry.figures[figure.name] / scale) for place, entry in enumerate(held, start=1))
    series = [Series(name="each session", points=points)]
    better = "lower" if figure.lower_is_better else "higher"
    note = f"{held[0].started_at[:10]} to {held[-1].started_at[:10]}; {better} is better."
    limits = {}
    if comparison is not None and comparison.status != "steady":
        after = f", after {comparison.sessions} sessions" if comparison.status == "no baseline" else ""
        note += f" This session: {STATUS_TITLES.get(comparison.status, comparison.status).lower()}{after}."
    if comparison is not None and comparison.median is not None and comparison.limit is not None:
        median = comparison.median / scale
        series.append(Series(name=baseline_source(comparison), points=((1, median), (len(held), median))))
        limits["regression beyond"] = comparison.limit / scale
    return Chart(
        title=f"{figure.title[0].upper()}{figure.title[1:]} by session",
        x_name="session, the last one is this one",
        unit="MiB" if figure.unit == "bytes" else figure.unit,
        series=tuple(series),
        limits=limits,
        note=note,
        of_sessions=True,
    )
