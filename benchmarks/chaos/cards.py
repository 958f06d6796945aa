"""Faults of a GPU in real runs: on the machine's card where it can have them, else by a driver and a card that are not
there. NVML is always asked by the code that asks it on a card, in the processes that do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.driver import GIB, MIB, TOTAL_BYTES, UUID, Driver, lacking
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.session import RUN, Ended, Session
from suite.core.paths import shipped_folder
from suite.history.baseline import AcceptedBaseline, write_baseline
from suite.history.entry import Key
from suite.results.baseline import FigureBaseline

CARD = Path(__file__).with_name("card")
ON_THE_CARD = (
    "device=cuda",
    "vram=null",
    "training.precision=fp32",
    "training.max_steps=16",
    "checks.device_as_asked=off",  # the fake card's tensors say that they are on the CPU, where they are
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
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetPower*",
    )
)
HIDDEN = "nvmlDeviceGetComputeRunningProcesses_v3 1"
ILLEGAL = "CUDA error: an illegal memory access was encountered"

Act = Callable[[Session, Driver], object]


def nothing(*_: Any) -> None:
    """Leave all as it is."""


def on_card(
    *settings: str,
    prepare: Callable[[Driver], Any] = nothing,
    act: Act | None = None,
    card: bool = True,
    variables: dict[str, str] | None = None,
) -> Callable[[Path], Ended]:
    """Return a function that trains on the card, after `prepare`, and does `act` after the first recorded steps.

    `prepare` may return variables of the environment. Without `card` torch sees none, whatever the driver says.
    """

    def inject(folder: Path) -> Ended:
        driver = Driver(folder / "driver")
        path = [str(CARD), str(shipped_folder() / "tests")] if card else []
        given = {
            "PYTHONPATH": os.pathsep.join(path),
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


def kill_sampler(session: Session, _driver: Driver) -> None:
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


def neighbour(held_bytes: int, seconds: float = 3600) -> Callable[..., object]:
    """Return a function that lets another process hold so much of the card."""
    return lambda *given: given[-1].start_neighbour(held_bytes, seconds)


def growing_neighbour(_session: Session, driver: Driver) -> None:
    """Let the process that was there before hold more."""
    driver.hold(driver.neighbours[0], 6 * GIB)


def accept_baseline(driver: Driver) -> dict[str, str]:
    """Accept a baseline of another card, which no run can meet; return where it lies."""
    folder = driver.folder / "baselines"
    key = Key(fingerprint="0", device="Another Card, 80 GiB", majors="torch 2")
    figure = FigureBaseline(median=1e9, deviation=0.0, sessions=8)
    figures = {"tokens_per_second": figure}
    write_baseline(AcceptedBaseline(run=RUN, key=key, accepted_at="2026-01-01", versions={}, figures=figures), folder)
    return {"TUNECHECK_BASELINES": str(folder)}


def throttle(seconds: float) -> Act:
    """Return a function that has the driver report heat for this long."""

    def act(_session: Session, driver: Driver) -> None:
        driver.say("nvmlDeviceGetCurrentClocksEventReasons 0x40")
        time.sleep(seconds)
        driver.say()

    return act


def card_faults() -> Sequence[Fault]:
    """Return every fault of a GPU, in the order of the report."""
    hardware, environment, workload, unknown = "hardware", "environment", "workload", "unknown"
    squeezed = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    fault = partial(Fault, lacking=lacking, status=6)
    fine = partial(fault, status=0, outcome="pass")
    never = partial(fault, keeps=0)
    return (
        fine(name="no fault on the card", inject=on_card()),
        fault(
            name="GPU lost during the run (NVML 15, Xid 79)",
            inject=on_card(act=lose),
            domain=hardware,
            fails="hardware_healthy",
            says="Xid 79",
        ),
        fault(
            name="GPU lost to its container during the run (NVML 999)",
            inject=on_card(act=answer("nvmlDevice* ! 999")),
            outcome="inconclusive",
            says="999",
        ),
        never(
            name="GPU lost before the run (NVML 15)",
            inject=on_card(prepare=answer("nvmlDeviceGetCount_v2 1", "nvmlDevice* ! 15")),
            domain=hardware,
            says="the GPU is lost",
        ),
        never(
            name="GPU lost before a run for any device (NVML 15)",
            inject=on_card("device=auto", prepare=answer("nvmlDeviceGetCount_v2 1", "nvmlDevice* ! 15")),
            domain=hardware,
            says="the GPU is lost",
        ),
        never(
            name="driver and library disagree (NVML 18)",
            inject=on_card(prepare=answer("nvmlInit* ! 18")),
            domain=environment,
            says="different versions",
        ),
        never(
            name="driver not loaded (NVML 9)",
            inject=on_card(prepare=answer("nvmlInit* ! 9")),
            status=7,
            outcome="skipped",
            says="kernel module is not loaded",
        ),
        never(
            name="NVML hangs before the run",
            inject=on_card(prepare=answer("nvmlInit* hangs")),
            domain=unknown,
            says="did not answer within",
        ),
        never(
            name="NVML crashes before the run",
            inject=on_card(prepare=answer("nvmlInit* crashes")),
            domain=unknown,
            says="killed by SIGSEGV",
        ),
        fault(
            name="NVML hangs during the run",
            inject=on_card(act=answer("nvmlDeviceGetTemperature hangs")),
            outcome="inconclusive",
            says="NVML hung during the attempt",
        ),
        fault(
            name="NVML sampler killed (SIGKILL)",
            inject=on_card(act=kill_sampler),
            outcome="inconclusive",
            says="sampling process was killed by SIGKILL",
        ),
        never(
            name="neighbour holds the card before the run, and stays",
            inject=on_card("vram=20GiB", prepare=neighbour(20 * GIB)),
            domain=environment,
            says=r"20\.0 GiB held by process \d+ \(python3\)",
        ),
        fine(
            name="orphan holds the card before the run, and ends",
            inject=on_card("vram=20GiB", prepare=neighbour(20 * GIB, seconds=4)),
        ),
        never(
            name="neighbour leaves the run too little memory to load",
            inject=on_card("fallback=lean", prepare=neighbour(TOTAL_BYTES), variables=squeezed),
            domain=environment,
            says=r"other GPU processes: process \d+ \(python3, 24,576 MiB\)",
        ),
        fault(
            name="neighbour takes the card's memory during the run",
            inject=on_card("fallback=lean", act=neighbour(TOTAL_BYTES), variables=squeezed),
            domain=environment,
            says=r"other GPU processes: process \d+ \(python3, 24,576 MiB\)",
        ),
        fine(
            name="neighbour takes the card's memory during the run, CPU in the fallback chain",
            inject=on_card("probes.reference=true", act=neighbour(TOTAL_BYTES), variables=squeezed),
            says="out of memory on the GPU",
        ),
        fault(
            name="hidden neighbour takes the card's memory during the run",
            inject=on_card(
                "fallback=lean",
                prepare=answer(HIDDEN),
                act=answer(HIDDEN, f"nvmlDeviceGetMemoryInfo {TOTAL_BYTES} {TOTAL_BYTES}"),
                variables=squeezed,
            ),
            domain=environment,
            says="processes that the driver does not list",
        ),
        fine(name="neighbour comes during the run and leaves room", inject=on_card(act=neighbour(2 * GIB))),
        fine(
            name="neighbour grows during the run and leaves room",
            inject=on_card(prepare=neighbour(GIB), act=growing_neighbour),
        ),
        fault(
            name="hidden neighbour comes during the run and leaves room",
            inject=on_card(
                prepare=answer(HIDDEN),
                act=answer(HIDDEN, f"nvmlDeviceGetMemoryInfo {TOTAL_BYTES} {4 * GIB}"),
            ),
            outcome="inconclusive",
            says="card_returns_to_baseline",
        ),
        fine(name="throttling in one reading", inject=on_card(act=throttle(0.2))),
        fine(name="throttling in three readings", inject=on_card(act=throttle(0.6))),
        fault(
            name="throttling, and the run gets slow",
            inject=on_card(
                "training.max_steps=100",
                act=both(answer("nvmlDeviceGetCurrentClocksEventReasons 0x40"), order("slow 0.001")),
            ),
            domain=environment,
            fails="throughput_steady",
            says="hardware thermal slowdown in",
        ),
        fault(
            name="ECC error that cannot be corrected",
            inject=on_card(act=answer("nvmlDeviceGetTotalEccErrors 0 1")),
            domain=hardware,
            fails="hardware_healthy",
            says="uncorrected memory errors: 0 before, 1 after",
        ),
        fine(name="storm of corrected ECC errors", inject=on_card(act=answer("nvmlDeviceGetTotalEccErrors 900000 0"))),
        fault(
            name="remapping of a row becomes pending",
            inject=on_card(act=answer("nvmlDeviceGetRemappedRows 0 0 1")),
            domain=hardware,
            fails="hardware_healthy",
            says="remapping a row of memory became pending",
        ),
        fault(
            name="Xid 48: a double-bit memory error",
            inject=on_card(act=happen(48)),
            domain=hardware,
            fails="hardware_healthy",
            says="Xid 48",
        ),
        fine(name="Xid 63: a row was retired", inject=on_card(act=happen(63)), says="Xid 63"),
        fine(name="Xid 31, and the run goes on", inject=on_card(act=happen(31)), says="Xid 31"),
        fault(
            name="CUDA error: an illegal access, and Xid 31",
            inject=on_card(act=both(happen(31), order(f"error {ILLEGAL}"))),
            domain=unknown,
            says="Xid 31",
        ),
        fault(
            name="CUDA error: an illegal access, and no sign of the GPU",
            inject=on_card(act=order(f"error {ILLEGAL}")),
            domain=unknown,
            says="illegal memory access",
        ),
        fault(
            name="CUDA error: an assertion of a kernel",
            inject=on_card(act=order("error CUDA error: device-side assert triggered")),
            domain=workload,
            says="device-side assert",
        ),
        fine(
            name="out of GPU memory in the forward pass, CPU in the fallback chain",
            inject=on_card("probes.reference=true", act=order("forward")),
            says="out of memory on the GPU",
        ),
        fine(
            name="out of GPU memory in the backward pass, CPU in the fallback chain",
            inject=on_card("probes.reference=true", act=order("backward")),
            says="out of memory on the GPU",
        ),
        fault(
            name="NaN in what is trained, and no sign of the GPU",
            inject=on_card(act=order("nan")),
            status=1,
            outcome="fail",
            fails="finite",
            says="the GPU was watched to the end and reported no fault",
        ),
        fault(
            name="NaN in what is trained, and an ECC error",
            inject=on_card(act=both(answer("nvmlDeviceGetTotalEccErrors 0 1"), order("nan"))),
            domain=hardware,
            fails="finite",
            says="uncorrected memory errors",
        ),
        fine(name="MIG instance that reports little", inject=on_card(prepare=answer(*MIG), act=answer(*MIG))),
        fine(name="card without ECC, clock reasons and events", inject=on_card(prepare=answer(*CONSUMER))),
        fine(name="another card than the accepted baseline's", inject=on_card(prepare=accept_baseline)),
        never(
            name="torch sees no GPU, the driver lists one",
            inject=on_card(card=False),
            domain=environment,
            says="torch sees no GPU",
        ),
        never(
            name="torch sees no GPU, the driver lists one, a run for any device",
            inject=on_card("device=auto", card=False),
            domain=environment,
            says="torch sees no GPU",
        ),
    )
