"""A night: the figures of one finished run of one session, with what makes nights comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.config.units import GIB
from suite.errors import MissingEvidence, SuiteError
from suite.evidence import Setup
from suite.history.figures import figures_of, needed_bytes
from suite.trace import Trace, read

if TYPE_CHECKING:
    from suite.report import Report, RunReport

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")
"""Whose major version makes another baseline: a smaller step is what a comparison shall find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Nights of one key can be compared."""

    fingerprint: str
    device: str
    """Name and memory of the card, with its cap if it had one; model and cores of the CPU."""
    majors: str
    """Such as "torch 2, transformers 5, peft 0, bitsandbytes 0"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One run of one session, if its training finished."""

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
    """Only nights that passed are held for usual."""
    figures: dict[str, float]
    card: str = ""
    """Name of the card; empty on the CPU and under --vram-cap."""
    needed_bytes: int | None = None
    """Of the card, by the allocator's count; None on the CPU."""


def nights_of(report: Report, folder: Path, say: Callable[[str], None]) -> list[Night]:
    """The nights of this session; `say` hears of a run whose trace cannot be read, which has none."""
    nights = []
    for row in report.runs:
        if not row.trace_file:
            continue
        try:
            night = night_of(row, read(folder / row.trace_file), session=folder.name, started_at=report.started_at)
        except SuiteError as error:
            say(f"{row.name} is not in the history: {error}")
            continue
        nights += [night] if night else []
    return nights


def night_of(row: RunReport, trace: Trace, *, session: str, started_at: str) -> Night | None:
    """The run's night; None when its training did not finish."""
    try:
        main = trace.main
        setup = trace.one(Setup)
    except MissingEvidence:
        return None
    if not main.finished:
        return None
    environment = trace.header.environment
    return Night(
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


def device(setup: Setup, environment: dict[str, Any]) -> str:
    """What computed, in the words of Key.device."""
    if setup.device == "cpu":
        cpu = environment.get("cpu") or {}
        return f"{cpu.get('model') or 'a CPU without a name'}, {cpu.get('usable_cores') or setup.threads} cores"
    total_bytes = (setup.cuda or {}).get("total_bytes")
    memory = f", {total_bytes / GIB:.0f} GiB" if total_bytes else ""
    cap = "" if setup.vram_cap_bytes is None else f", capped at {setup.vram_cap_bytes / GIB:.1f} GiB"
    return f"{setup.device_name or 'a GPU without a name'}{memory}{cap}"


def majors(setup: Setup) -> str:
    """The major versions, in the words of Key.majors."""
    held = {name: setup.versions[name].partition(".")[0] for name in LIBRARIES if setup.versions.get(name)}
    return ", ".join(f"{name} {version}" for name, version in held.items())


def changed(before: Night, after: Night) -> str:
    """Versions in which two nights differ: "torch 2.13.0 → 2.13.1, commit 65d9651 → a0012b6"; empty for none."""
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
