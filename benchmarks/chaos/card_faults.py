"""The faults of a GPU, and the word that each has to get."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.chaos.driver import GIB, TOTAL_BYTES, lacking
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.on_card import (
    CONSUMER,
    HIDDEN,
    ILLEGAL,
    MIG,
    accept_baseline,
    answer,
    both,
    growing_neighbour,
    happen,
    kill_sampler,
    lose,
    neighbour,
    on_card,
    order,
    throttle,
)


def card_faults() -> Sequence[Fault]:
    """Return every fault of a GPU, in the order of the report."""
    hardware, environment, workload, unknown = "hardware", "environment", "workload", "unknown"
    squeezed = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    fault = partial(Fault, lacking=lacking, status=6)
    fine = partial(fault, status=0, outcome="pass")
    never = partial(fault, keeps=0)
    return (
        fine(name="no fault on the card", inject=on_card(real=True)),
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
            inject=on_card(act=kill_sampler, real=True),
            outcome="inconclusive",
            says="sampling process was killed by SIGKILL",
        ),
        never(
            name="neighbour holds the card before the run, and stays",
            inject=on_card("vram=2GiB", prepare=neighbour(GIB), real=True),
            domain=environment,
            says=r"GiB held by process \d+ \(python",
        ),
        fine(
            name="orphan holds the card before the run, and ends",
            inject=on_card("vram=2GiB", prepare=neighbour(GIB, seconds=4), real=True),
        ),
        never(
            name="neighbour leaves the run too little memory to load",
            inject=on_card("fallback=lean", prepare=neighbour(0), variables=squeezed, real=True),
            domain=environment,
            says=r"other GPU processes: process \d+ \(python",
        ),
        fault(
            name="neighbour takes the card's memory during the run",
            inject=on_card("fallback=lean", act=neighbour(0), variables=squeezed, real=True),
            domain=environment,
            says=r"other GPU processes: process \d+ \(python",
        ),
        fine(
            name="neighbour takes the card's memory during the run, CPU in the fallback chain",
            inject=on_card("probes.reference=true", act=neighbour(0), variables=squeezed, real=True),
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
        fine(name="neighbour comes during the run and leaves room", inject=on_card(act=neighbour(4 * GIB), real=True)),
        fine(
            name="neighbour grows during the run and leaves room",
            inject=on_card(prepare=neighbour(22 * GIB), act=growing_neighbour),
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
                act=both(answer("nvmlDeviceGetCurrentClocksEventReasons 0x40"), order("slow 3e-6")),
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
