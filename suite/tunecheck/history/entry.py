"""An entry of the history: the figures of one finished run of one session, and the key of comparable entries."""

from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from tunecheck.checks.telemetry import busy_host
from tunecheck.core.errors import SuiteError
from tunecheck.core.evidence import Evaluation, LiveTensors, Phase, Setup
from tunecheck.core.frozen import Frozen
from tunecheck.core.trace import Trace, read
from tunecheck.core.units import GIB
from tunecheck.results import Report, RunReport

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")
"""Libraries whose major version starts a new baseline; the effect of a minor one is what a comparison shall find."""


class Key(Frozen):
    """What comparable entries have in common."""

    fingerprint: str
    device: str
    """Name and memory of the GPU, with its cap if it had one; model and cores of the CPU."""
    majors: str
    """Such as "torch 2, transformers 5, peft 0, bitsandbytes 0"."""


class HistoryEntry(Frozen):
    """One run of one session whose training finished."""

    session: str
    """Name of the session's folder."""
    started_at: str
    """Of the session, UTC, ISO 8601."""
    run: str
    """Tier and id."""
    key: Key
    versions: dict[str, str]
    """Of the libraries, the driver and the checkout's commit."""
    outcome: str
    """Only entries with "pass" are part of a baseline."""
    figures: dict[str, float]
    card: str = ""
    """Name of the GPU; empty on the CPU and under --vram-cap."""
    needed_bytes: int | None = None
    """GPU memory that the run needed, as the allocator counted it; None on the CPU."""


def history_entries(report: Report, folder: Path) -> tuple[list[HistoryEntry], list[str]]:
    """Return the entries of this session, and a note on each run whose trace cannot be read."""
    entries, notes = [], []
    for row in (row for row in report.runs if row.trace_file):
        try:
            entry = history_entry(row, read(folder / row.trace_file), session=folder.name, started_at=report.started_at)
        except SuiteError as error:
            notes.append(f"{row.name} is not in the history: {error}")
        else:
            entries += [entry] if entry else []
    return entries, notes


def history_entry(row: RunReport, trace: Trace, *, session: str, started_at: str) -> HistoryEntry | None:
    """Return the run's entry; None when its training did not finish."""
    setups, environment = trace.records(Setup), trace.header.environment
    if not setups or not trace.main.finished:
        return None
    setup = setups[-1]
    return HistoryEntry(
        session=session,
        started_at=started_at,
        run=row.name,
        key=Key(fingerprint=trace.header.fingerprint, device=device(setup, environment), majors=majors(setup)),
        versions=dict(_versions(setup, environment)),
        outcome=row.outcome,
        figures=figures_of(row, trace),
        card=setup.device_name if setup.device != "cpu" and setup.vram_cap_bytes is None else "",
        needed_bytes=needed_bytes(trace),
    )


def figures_of(row: RunReport, trace: Trace) -> dict[str, float]:
    """Return the figures of a run whose training finished, by name, without those that were not measured.

    On a GPU the allocator's peak stands for the memory, on a CPU live tensors and the resident set do. A throughput
    that other processes slowed down is left out, as by the checks of speed. A watched training has no evaluation of
    fixed rows, so its later losses stand for it.
    """
    heldout = [found.loss for found in trace.main.all(Evaluation) if found.split == "heldout"]
    live = [found.bytes for found in trace.main.all(LiveTensors)]
    on_card = row.peak_kind == "allocator"
    measured: dict[str, float | None] = {
        "tokens_per_second": None if busy_host(trace) else row.tokens_per_second,
        "peak_allocated_bytes": row.peak_bytes if on_card else None,
        "live_tensor_bytes": live[-1] if live and not on_card else None,
        "resident_bytes": row.peak_bytes if row.peak_kind == "resident" else None,
        "probe_loss": row.probe_loss_end,
        "heldout_loss": heldout[-1] if heldout else None,
        "training_loss": mean(row.losses[len(row.losses) // 2 :]) if row.tier == "watch" and row.losses else None,
    }
    return {name: float(value) for name, value in measured.items() if value is not None}


def needed_bytes(trace: Trace) -> int | None:
    """Return the allocator's peak over all phases of every attempt that finished, probes included; None without one.

    A GPU must have this much memory: the row's peak is that of the training alone, and variants may need more.
    """
    phases = [phase for attempt in trace.attempts if attempt.finished for phase in attempt.all(Phase)]
    peaks = [phase.peak_allocated_bytes for phase in phases] + [phase.probes_peak_allocated_bytes for phase in phases]
    return max((peak for peak in peaks if peak is not None), default=None)


def device(setup: Setup, environment: dict[str, Any]) -> str:
    """Return the device in the words of Key.device."""
    if setup.device == "cpu":
        cpu = environment.get("cpu") or {}
        return f"{cpu.get('model') or 'a CPU without a name'}, {cpu.get('usable_cores') or setup.threads} cores"
    total_bytes = (setup.cuda or {}).get("total_bytes")
    memory = f", {total_bytes / GIB:.0f} GiB" if total_bytes else ""
    cap = "" if setup.vram_cap_bytes is None else f", capped at {setup.vram_cap_bytes / GIB:.1f} GiB"
    return f"{setup.device_name or 'a GPU without a name'}{memory}{cap}"


def majors(setup: Setup) -> str:
    """Return the major versions in the words of Key.majors."""
    held = {name: setup.versions[name].partition(".")[0] for name in LIBRARIES if setup.versions.get(name)}
    return ", ".join(f"{name} {version}" for name, version in held.items())


def changed(before: HistoryEntry, after: HistoryEntry) -> str:
    """Return the versions that differ: "torch 2.13.0 → 2.13.1, commit 65d9651 → a0012b6"; empty for none."""
    names = dict.fromkeys([*before.versions, *after.versions])
    pairs = [(name, before.versions.get(name, "none"), after.versions.get(name, "none")) for name in names]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in pairs if old != new)


def _versions(setup: Setup, environment: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from setup.versions.items()
    if setup.device != "cpu":
        drivers = [gpu.get("driver_version") for gpu in environment.get("gpus") or ()]
        yield from (("driver", driver) for driver in drivers[:1] if driver)
    if commit := (environment.get("git") or {}).get("commit"):
        yield "commit", commit[:12]
