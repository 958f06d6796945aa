"""The charts of a trace."""

import math
from collections.abc import Iterator, Sequence

from tunecheck.core.evidence import DeviceSample, Evaluation, Gradients, LiveTensors, Phase, Step
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Attempt, Trace
from tunecheck.report.page.chart import Chart, Limit, Point, Series

MIB, GIB = 2**20, 2**30
STEP = "optimizer step"


def charts(trace: Trace, findings: Sequence[Finding]) -> list[Chart]:
    """Return the charts of the main attempt, without those of which nothing was recorded."""
    if not trace.trainings:
        return []
    main = trace.main
    limits = {finding.check: finding.limit for finding in findings}
    opened = trace.why({Premise.CAUSAL_LM, Premise.TOKEN_MEAN_LOSS})
    made = [
        _loss(main, limits.get("loss_falls"), "as the training computes it" if opened else "nats per supervised token"),
        _rate(main),
        _norms(main, trace.settings.get("training", {}).get("max_grad_norm")),
        _pace(main),
        _card_memory(main, limits.get("vram_ceiling")),
        _step_memory(main),
    ]
    return [chart for chart in made if chart.series]


def _loss(main: Attempt, min_fall: float | str | None, unit: str) -> Chart:
    probe = _evaluations(main, "probe")
    limits: tuple[Limit, ...] = ()
    if isinstance(min_fall, int | float) and probe and math.isfinite(probe[0][1]):
        limits = (Limit(name="loss_falls: the probe batch must end at or below", value=probe[0][1] * (1 - min_fall)),)
    return Chart(
        title="Loss",
        x_name=STEP,
        unit=unit,
        series=_known(
            Series(name="training", points=tuple((step.step, step.loss) for step in main.all(Step))),
            Series(name="probe batch", points=probe),
            Series(name="held-out rows", points=_evaluations(main, "heldout")),
        ),
        limits=limits,
        note="The training loss scatters with its rows; the probe batch is always the same." if probe else "",
    )


def _evaluations(main: Attempt, split: str) -> tuple[Point, ...]:
    return tuple((found.step, found.loss) for found in main.all(Evaluation) if found.split == split)


def _rate(main: Attempt) -> Chart:
    points = tuple((step.step, step.learning_rate) for step in main.all(Step))
    series = _known(Series(name="learning rate", points=points))
    return Chart(title="Learning rate", x_name=STEP, unit="read from the optimizer", series=series)


def _norms(main: Attempt, clip: float | None) -> Chart:
    norms = [(found.step, found.norms) for found in main.all(Gradients)]
    names = dict.fromkeys(name for _, by_name in norms for name in by_name)
    series = [
        Series(
            name=name.replace("lora_", "") if len(names) > 1 else "measured",
            points=tuple((s, held[name]) for s, held in norms if name in held),
        )
        for name in names
    ]
    total = Series(name="as reported", points=tuple((step.step, step.gradient_norm) for step in main.all(Step)))
    return Chart(
        title="Gradient norms",
        x_name=STEP,
        unit="norm before clipping",
        series=_known(*series, total),
        limits=(Limit(name="clipped to", value=clip),) if clip else (),
        note="A has no gradient while B is zero: before the first step that changes B, and in it."
        if "lora_A" in names
        else "",
    )


def _pace(main: Attempt) -> Chart:
    points = tuple((step.step, step.tokens / step.seconds) for step in main.all(Step) if step.seconds > 0)
    series = _known(Series(name="tokens/s", points=points))
    return Chart(title="Throughput", x_name=STEP, unit="tokens per second", series=series)


def _card_memory(main: Attempt, ceiling_mib: float | str | None) -> Chart:
    """Chart the monitor's samples and the phases over the time since the first of them."""
    samples = main.all(DeviceSample)
    phases = [phase for phase in main.all(Phase) if phase.started_at is not None]
    starts = [s.at for s in samples] + [p.started_at for p in phases if p.started_at is not None]
    begin = min(starts, default=0.0)
    series = _known(
        Series(name="whole GPU", points=tuple(_over_time(samples, "used_bytes", begin))),
        Series(name="training process on the GPU", points=tuple(_over_time(samples, "process_bytes", begin))),
        Series(name="reserved by the allocator", points=tuple(_bars(phases, "peak_reserved_bytes", begin)), steps=True),
        Series(name="live tensors, peak", points=tuple(_bars(phases, "peak_allocated_bytes", begin)), steps=True),
    )
    limits: tuple[Limit, ...] = ()
    if series and isinstance(ceiling_mib, int | float):
        limits = (Limit(name="vram_ceiling, of the live tensors while training:", value=ceiling_mib * MIB / GIB),)
    return Chart(
        title="GPU memory",
        x_name="seconds",
        unit="GiB",
        series=series,
        limits=limits,
        note="Bars are the peaks of a phase; GPU and process are sampled by the driver, five times a second.",
    )


def _over_time(samples: Sequence[DeviceSample], figure: str, begin: float) -> Iterator[Point]:
    for sample in samples:
        if (held := getattr(sample, figure)) is not None:
            yield sample.at - begin, held / GIB


def _bars(phases: Sequence[Phase], figure: str, begin: float) -> Iterator[Point]:
    for phase in phases:
        held = getattr(phase, figure)
        if held is not None and phase.started_at is not None:
            yield phase.started_at - begin, held / GIB
            yield phase.started_at - begin + phase.seconds, held / GIB


def _step_memory(main: Attempt) -> Chart:
    """Chart the memory after each step: a leak rises here long before it reaches a ceiling."""
    allocated = tuple(
        (step.step, step.allocated_bytes / MIB) for step in main.all(Step) if step.allocated_bytes is not None
    )
    live = tuple((found.step, found.bytes / MIB) for found in main.all(LiveTensors))
    return Chart(
        title="Memory after each step",
        x_name=STEP,
        unit="MiB",
        series=_known(
            Series(name="allocated on the GPU", points=allocated),
            Series(name="tensors alive in the process", points=live),
        ),
    )


def _known(*series: Series) -> tuple[Series, ...]:
    return tuple(found for found in series if found.points)
