"""Faults of a GPU in real runs: on the machine's card where there is one and it can have them, else by a driver and a
card that are not there. NVML is asked by the code that asks it on a card, in the processes that do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.driver import GIB, MIB, TOTAL_BYTES, UUID, Card, Driver, there_is_a_card
from benchmarks.chaos.session import RUN, Ended, Session
from tunecheck.core.paths import shipped_folder
from tunecheck.history.baseline import AcceptedBaseline, baseline_file
from tunecheck.history.store import Key
from tunecheck.results.baseline import FigureBaseline
from tunecheck.results.stored import write_record

SITE = Path(__file__).with_name("card")
ON_THE_CARD = (
    "device=cuda",
    "vram=null",
    "training.precision=fp32",
    "training.max_steps=16",
    "checks.device_as_configured=off",  # the fake card's tensors say that they are on the CPU, where they are
    "checks.memory_returned=off",  # and bitsandbytes' code tables may be 1 % of so small a model
)
XID = 8
MIG = (
    "nvmlDeviceGetMigMode 1",
    "nvmlDeviceGetMaxMigDeviceCount 1",
    "nvmlDeviceGetMigDeviceHandleByIndex 0",
    f"mig:nvmlDeviceGetUUID {UUID.replace('GPU-0', 'MIG-1')}",  # torch may tell that of the whole card
    "mig:nvmlDeviceGetName Made-up Card MIG 1g.12gb",
    f"mig:nvmlDeviceGetMemoryInfo {TOTAL_BYTES // 2} {100 * MIB}",
    "mig:nvmlDeviceGetHandleByUUID 0",
    "mig:* ! 3",
    "nvmlDeviceGetTotalEccErrors ! 3",
    "nvmlDeviceGetRemappedRows ! 3",
)
CONSUMER = tuple(
    f"{function} ! 3"
    for function in (
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetCurrentClocks*",
        "nvmlDeviceGetSupportedEventTypes",
    )
)
HIDDEN = "nvmlDeviceGetComputeRunningProcesses_v3 1"
ILLEGAL = "CUDA error: an illegal memory access was encountered"

Act = Callable[[Session, Any], object]


def nothing(*_: Any) -> None:
    """Leave all as it is."""


def on_card(
    *settings: str,
    prepare: Callable[[Any], Any] = nothing,
    act: Act | None = None,
    card: bool = True,
    real: bool = False,
    variables: dict[str, str] | None = None,
) -> Callable[[Path], Ended]:
    """Return a function that trains on the card, after `prepare`, and does `act` after the first recorded steps.

    `prepare` may return variables of the environment. Without `card` torch sees none, whatever the driver says. What is
    `real` is done to the machine's own card, if it has one.
    """

    def on_the_real_card(folder: Path) -> Ended:
        own = Card()
        prepare(own)
        try:
            chosen = ("device=cuda", "vram=null", *settings)
            session = Session(folder, chosen if act else (*chosen, "training.max_steps=16"), variables)
            since = time.monotonic()
            if act is not None and session.wait_for_steps(1):
                since = time.monotonic()
                act(session, own)
            return session.end(since)
        finally:
            own.end_neighbours()

    def inject(folder: Path) -> Ended:
        if real and there_is_a_card():
            return on_the_real_card(folder)
        driver = Driver(folder / "driver")
        path = [str(SITE), str(shipped_folder() / "tests")] if card else []
        given = {
            "PYTHONPATH": os.pathsep.join(path),
            "TUNECHECK_CACHE": str(folder / "cache"),  # else it would wait for another session's lease on this card
            **driver.environment,
            **(variables or {}),
            **(prepare(driver) or {}),
        }
        waiting = driver.folder / "wait"
        if act is not None:
            waiting.touch()
        try:
            since = time.monotonic()
            session = Session(folder, (*ON_THE_CARD, *settings), given)
            if act is not None and session.wait_for_steps(1):
                since = time.monotonic()
                act(session, driver)
                waiting.unlink()
            return session.end(since)
        finally:
            driver.end_neighbours()

    return inject


def kill_sampler(session: Session, _card: Card) -> None:
    """Kill the process that samples the GPU."""
    for child in psutil.Process(session.process.pid).children():
        if any("monitor.sampler" in argument for argument in child.cmdline()):
            child.send_signal(signal.SIGKILL)


def answer(*lines: str) -> Callable[..., None]:
    """Return a function that has the driver answer so; it is given the driver last."""
    return lambda *given: given[-1].say(*lines)


def happen(xid: int) -> Act:
    """Return a function that lets this Xid happen."""
    return lambda _session, driver: driver.happen(XID, xid)


def lose(_session: Session, driver: Driver) -> None:
    """Let the card fall off the bus."""
    driver.happen(XID, 79)
    driver.say("nvmlDeviceGetCount_v2 1", "nvmlDevice* ! 15")
    driver.order("error CUDA error: unspecified launch failure")


def order(words: str) -> Act:
    """Return a function that breaks the training on the card."""
    return lambda _session, driver: driver.order(words)


def both(*acts: Callable[..., object]) -> Act:
    """Return a function that does all of these."""

    def act(session: Session, driver: Driver) -> None:
        for one in acts:
            one(session, driver)

    return act


def neighbour(leaves: int, seconds: float = 3600) -> Callable[..., object]:
    """Return a function that lets another process hold all of the card's memory but so many bytes."""
    return lambda *given: given[-1].start_neighbour(leaves, seconds)


def growing_neighbour(_session: Session, driver: Driver) -> None:
    """Let the process that was there before hold more."""
    driver.hold(driver.neighbours[0].pid, 6 * GIB)


def accept_baseline(driver: Driver) -> dict[str, str]:
    """Accept a baseline of another card, which no run can meet; return where it lies."""
    folder = driver.folder / "baselines"
    key = Key(fingerprint="0", device="Another Card, 80 GiB", majors="torch 2")
    figure = FigureBaseline(median=1e9, deviation=0.0, sessions=8)
    figures = {"tokens_per_second": figure}
    accepted = AcceptedBaseline(run=RUN, key=key, accepted_at="2026-01-01", versions={}, figures=figures)
    write_record(accepted, baseline_file(folder, RUN, key.device))
    return {"TUNECHECK_BASELINES": str(folder)}


def throttle(seconds: float) -> Act:
    """Return a function that has the driver report heat for this long."""

    def act(_session: Session, driver: Driver) -> None:
        driver.say("nvmlDeviceGetCurrentClocksEventReasons 0x40")
        time.sleep(seconds)
        driver.say()

    return act
