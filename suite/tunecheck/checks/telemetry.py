"""What the GPU's telemetry shows: other GPU processes, throttling, faults of the hardware.

Pure functions of a trace, shared by the checks and by the attribution of failures. No sign of a fault is no proof of
health: where nothing was sampled they find nothing, and `telemetry` says how much was.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import wraps

from tunecheck.core.evidence import TRAINING_PHASES, DeviceSample, Health, Phase, Setup, Telemetry
from tunecheck.core.text import bare_uuid
from tunecheck.core.trace import Attempt, Trace

XIDS = {
    13: "graphics engine exception",
    31: "memory page fault: an illegal access",
    32: "corrupted push buffer",
    43: "the GPU stopped processing",
    45: "preemptive cleanup, after an earlier error",
    46: "the GPU timed out",
    48: "double-bit memory error",
    62: "micro-controller halt",
    63: "a memory row or page was retired",
    64: "retiring a memory row or page failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
    154: "the recovery action changed",
}
HARDWARE_XIDS = frozenset({46, 48, 62, 64, 74, 79, 94, 95, 109, 119, 120, 140, 143})
"""Those that put the GPU or its driver at fault. The sources disagree on many: DCGM's health watch, GCM, Azure's and
Imbue's health checks and gpud's catalogue, read in November 2026. These are the ones that gpud's catalogue answers with
a reset or worse, and memory errors with lost data; 13, 31, 32, 43 and 45 also come from programs, as one that is not in
the table may; 63, 92 and 154 alone invalidate no result."""
FATAL_EVENTS = frozenset({"DRAM retirement failure", "fatal poison", "GPU unavailable", "recovery action"})
"""NVML's other events that mean failing hardware; the rest are warnings."""

MIB, GIB = 2**20, 2**30
WINDOWS_BYTES = GIB
"""More than the windows of a desktop take: a process that draws and takes more is a renderer or a game."""
CONTEXT_BYTES = 3 * GIB // 2
"""More than CUDA's context, kernels and workspaces take beside the allocator: growth beyond it is another process's."""
THROTTLES = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
THROTTLED_SHARE, THROTTLED_READINGS = 0.05, 3
"""Of the readings: a single hardware slowdown may come with a change of the power state (nvml.h)."""
BUSY_SHARE_ON_CPU, BUSY_SHARE_ON_GPU = 0.1, 0.5
"""Share of the processor time, used by other processes, from which on a step's time means nothing: a training on the
CPU needs all of it, one on a GPU a core or two."""
CLOCK_FALL = 0.03
"""Smallest fall of the mean clock, first to last third of the steady part, that explains a slower run."""


def on_gpu(trace: Trace) -> bool:
    return trace.one(Setup).device.startswith("cuda")


def telemetry(attempt: Attempt) -> Telemetry | None:
    """Return how completely the attempt's GPU was sampled; None for an attempt without telemetry, as on the CPU.

    Telemetry of another GPU than the one that torch used says nothing about this attempt. Of a MIG instance torch may
    tell the UUID of the whole GPU.
    """
    if not (found := attempt.all(Telemetry)):
        return None
    used = next((str((setup.cuda or {}).get("uuid") or "") for setup in reversed(attempt.all(Setup))), "")
    if used and found[-1].uuid.startswith("GPU-") and bare_uuid(used) != bare_uuid(found[-1].uuid):
        return Telemetry(uuid=used, complete=False, problem=f"{found[-1].uuid} was sampled, torch used {used}")
    return found[-1]


def unwatched(attempt: Attempt) -> str:
    """Return why a GPU of the attempt's was not watched to its end; empty when all were."""
    watched = [telemetry(attempt.of_rank(rank)) for rank in (0, *attempt.of_ranks)]
    if any(seen is None for seen in watched):
        return "there are no samples"
    return next((seen.problem or "reason unknown" for seen in watched if seen and not seen.complete), "")


def samples(trace: Trace, phases: Collection[str] = ()) -> list[DeviceSample]:
    """Return the samples of the attempt's GPU, only those that overlap these phases when any are named."""
    if (seen := telemetry(trace.main)) is None or not seen.readings:
        return []
    named = [phase for phase in trace.records(Phase) if phase.name in phases]
    return _during(trace.main, named) if phases else trace.records(DeviceSample)


def _during(attempt: Attempt, phases: Sequence[Phase]) -> list[DeviceSample]:
    spans = [(p.started_at, p.started_at + p.seconds) for p in phases if p.started_at is not None]
    return [s for s in attempt.all(DeviceSample) if any(s.at < end and s.at + s.seconds > at for at, end in spans)]


def _by_rank(look: Callable[[Trace], str]) -> Callable[[Trace], str]:
    """Ask each rank, which has a GPU of its own; of several, each answer has the rank before it."""

    @wraps(look)
    def of_ranks(trace: Trace) -> str:
        seen = {rank: words for rank in trace.ranks if (words := look(trace.of_rank(rank)))}
        return "; ".join(f"rank {rank}: {words}" if len(trace.ranks) > 1 else words for rank, words in seen.items())

    return of_ranks


@_by_rank
def other_gpu_processes(trace: Trace) -> str:
    """Return which other processes used a GPU of the attempt's, in words; empty when none was seen."""
    seen, during = telemetry(trace.main), samples(trace)
    if seen is None or not during:
        return ""
    busy = [p for sample in during for p in sample.others if not p.graphics or (p.used_bytes or 0) > WINDOWS_BYTES]
    before = {process.pid for process in seen.processes_before}
    strangers = list({process.pid: process for process in busy}.values())
    if not any(sample.process_seen for sample in during):
        newcomers = sorted((p for p in strangers if p.pid not in before), key=lambda p: p.used_bytes or 0)
        # The training is listed under the host's number, so one newcomer, the largest, is taken for it.
        strangers = [p for p in strangers if p.pid in before] + newcomers[:-1]
    if strangers:
        sizes = ("memory unknown" if p.used_bytes is None else f"{p.used_bytes / MIB:,.0f} MiB" for p in strangers)
        named = zip(strangers, sizes, strict=True)
        return ", ".join(f"process {p.pid} ({p.name or 'name unknown'}, {size})" for p, size in named)
    return "" if busy or seen.processes_before else _unnamed(trace, seen, during)


def others_busy_share(trace: Trace) -> float | None:
    """Return the share of the machine's processor time that other processes used while it trained; None if unknown."""
    phases = [p for p in trace.records(Phase) if p.name in TRAINING_PHASES and p.others_busy_share is not None]
    seconds = sum(phase.seconds for phase in phases)
    return sum(p.seconds * (p.others_busy_share or 0.0) for p in phases) / seconds if seconds > 0 else None


def busy_host(trace: Trace) -> str:
    """Return that other processes used so much of the CPU that a step's time means nothing, in words; else empty."""
    share = others_busy_share(trace)
    limit = BUSY_SHARE_ON_GPU if on_gpu(trace) else BUSY_SHARE_ON_CPU
    return busy_words(share) if share is not None and share > limit else ""


def busy_words(share: float) -> str:
    return f"other processes used {share:.0%} of the CPU time while it trained"


@_by_rank
def throttled(trace: Trace) -> str:
    """Return why a GPU was throttled during the steady part, in words; empty when no reading says so."""
    during = samples(trace, TRAINING_PHASES)
    readings = sum(sample.readings for sample in during)
    counts = {name: sum((s.clock_reasons or {}).get(name, 0) for s in during) for name in THROTTLES}
    least = max(THROTTLED_READINGS, THROTTLED_SHARE * readings)
    found = [f"{name} in {count} of {readings} readings" for name, count in counts.items() if count >= least]
    hottest = max((s.temperature_celsius for s in during if s.temperature_celsius is not None), default=None)
    if found and hottest is not None:
        found.append(f"up to {hottest:.0f} degrees Celsius")
    clocks = [s.sm_clock_mhz for s in samples(trace, {"steady"}) if s.sm_clock_mhz is not None]
    if third := len(clocks) // 3:
        first, last = sum(clocks[:third]) / third, sum(clocks[-third:]) / third
        if last < (1 - CLOCK_FALL) * first:
            found.append(f"the SM clock fell from {first:.0f} to {last:.0f} MHz")
    return ", ".join(found)


def card_memory(trace: Trace, phases: Collection[str]) -> str:
    """Return the GPU memory that the training held in these phases, and by which counter; empty when unknown."""
    seen, held = telemetry(trace.main), card_bytes(trace, [p for p in trace.records(Phase) if p.name in phases])
    if seen is None or held is None:
        return ""
    by_process = "by NVML's figure for the process"
    by_card = "by the GPU's total less what was used before (the driver hides process ids)"
    return f"{held / MIB:,.0f} MiB of the GPU {by_process if seen.memory_source == 'process' else by_card}"


def card_bytes(trace: Trace, phases: Sequence[Phase]) -> int | None:
    """Return the most GPU memory that the training held during these phases; None when unknown."""
    if (seen := telemetry(trace.main)) is None or not seen.readings:
        return None
    during = _during(trace.main, phases)
    if seen.memory_source == "process":
        return max((sample.process_bytes for sample in during if sample.process_bytes is not None), default=None)
    before = seen.used_bytes_before or 0
    return max((sample.used_bytes - before for sample in during if sample.used_bytes is not None), default=None)


def hardware_faults(trace: Trace) -> list[str]:
    """Return every sign of a failing GPU in any attempt of the run, in words. Throttling is none."""
    return [fault for seen in _on_each_card(trace) for fault in dict.fromkeys(_faults(seen))]


def _on_each_card(trace: Trace) -> list[Attempt]:
    return [attempt.of_rank(rank) for attempt in trace.attempts for rank in (0, *attempt.of_ranks)]


def unclear_signs(trace: Trace) -> list[str]:
    """Return Xids that a program can cause as well as a GPU, and warnings of the driver, in words."""
    during = [sample for attempt in _on_each_card(trace) for sample in attempt.all(DeviceSample)]
    xids = dict.fromkeys(xid for sample in during for xid in sample.xids if xid not in HARDWARE_XIDS)
    events = dict.fromkeys(event for sample in during for event in sample.events if event not in FATAL_EVENTS)
    return [*(_xid(number) for number in xids), *events]


COUNTERS = {
    "uncorrected_ecc": "uncorrected memory errors",
    "remapped_rows_uncorrected": "rows of memory remapped after uncorrected errors",
    "remap_pending": "remapping a row of memory became pending",
    "retired_pages_pending": "retiring a page of memory became pending",
}
"""Counters that show a fault where they grow during an attempt; one that a reading lacks is neither good nor bad."""


def _faults(attempt: Attempt) -> Iterator[str]:
    health = attempt.all(Health)
    yield from (record.fault for record in health if record.fault)
    for sample in attempt.all(DeviceSample):
        yield from (_xid(number) for number in sample.xids if number in HARDWARE_XIDS)
        yield from (event for event in sample.events if event in FATAL_EVENTS)
    if not health:
        return
    before, after = health[0], health[-1]
    if after.recovery_action:
        yield f"the driver requests recovery action {after.recovery_action}"
    if after.remap_failed:
        yield "remapping a row of memory failed"
    for name, words in COUNTERS.items():
        first, last = getattr(before, name), getattr(after, name)
        if first is not None and last is not None and last > first:
            yield f"{words}: {first:d} before, {last:d} after"


def _unnamed(trace: Trace, seen: Telemetry, during: list[DeviceSample]) -> str:
    """Return memory taken during the run, more than by the training. What was there before may be a desktop's."""
    first = next((known for attempt in trace.attempts if (known := telemetry(attempt))), seen)
    before = first.used_bytes_before if seen.used_bytes_before is not None else None  # of the run, not of a fallback
    reserved = [p.peak_reserved_bytes for p in trace.records(Phase) if p.peak_reserved_bytes is not None]
    used = [sample.used_bytes for sample in during if sample.used_bytes is not None]
    if before is None or not reserved or not used:
        return ""
    extra = max(used) - before - max(reserved) - CONTEXT_BYTES
    return f"processes that the driver does not list ({extra / MIB:,.0f} MiB or more)" if extra > 0 else ""


def _xid(number: int) -> str:
    return f"Xid {number}: {XIDS.get(number, 'not in the table')}"
