"""A made-up run of 200 steps on a made-up card, and its parts. Nothing here was measured: the shapes of the series
follow from what the trainer keeps (unread losses, a window of tokens) and from the scatter that timing has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from traces import RUN, attempt, blank

from tunecheck.config.schema import Run
from tunecheck.core import evidence as e
from tunecheck.core.trace import SCHEMA, Attempt, Trace

METERED = (
    "hardware_healthy",
    "memory_flat",
    "vram_ceiling",
    "throughput_steady",
    "model_flops_utilization",
    "memory_order",
    "adapter_reads_back",
    "merge_keeps_function",
    "loss_keeps_falling",
)
"""Checks that need a card, a long run, or attempts of their own."""
MIB = 2**20
UUID = "GPU-ab12cd34-0000-0000-0000-000000000001"
PID = 4242
STEPS = 200
ASKED = {
    "vram_ceiling": {"ceiling_mib": 1000},
    "model_flops_utilization": {"min_utilization": 1e-6},
    "loss_keeps_falling": {},
}
VARIANT_MIB: dict[str, int | None] = {
    "as configured": 300,
    "checkpointing": 200,
    "no checkpointing": 300,
    "4 rows": 900,
    "lora": 450,
    "full": 2000,
}
PEAK_BYTES = 900 * MIB


@lru_cache
def long_run(steps: int = STEPS) -> Run:
    """The two-layer run of traces.py, longer, with the metered checks."""
    made = RUN.model_dump(mode="json")
    for key in ("data", "model"):
        made[key]["name"] = getattr(RUN, key).name
    return Run.model_validate(
        {
            **made,
            "training": {**made["training"], "max_steps": steps},
            "probes": {
                **made["probes"],
                "resume_from": None,
                "repeat_steps": 0,
                "memory_order": True,
                "read_back": True,
                "merge": True,
            },
            "checks": ASKED,
        }
    )


def step_seconds(rng: random.Random, step: int, tokens: int, scatter: float = 0.02) -> float:
    """A step's time: a part that is fixed, a part for each token, scatter, and a hiccup now and then."""
    hiccup = 4.0 if rng.random() < 0.01 else 1.0
    return (0.05 + 0.0002 * tokens) * math.exp(rng.gauss(0, scatter)) * hiccup


def allocated_bytes(rng: random.Random, step: int) -> int:
    """After a step: what stays, the losses and norms not yet read (2 x 512 bytes, up to ten), a window of tokens."""
    window = sum(-(-rng.randint(40, 128) * 8 // 512) * 512 * 3 for _ in range(2))
    return 700 * MIB + 1024 * (step % 10 + 1) + window


def metered(
    *,
    steps: int = STEPS,
    seed: int = 0,
    seconds: Callable[[random.Random, int, int], float] = step_seconds,
    allocated: Callable[[random.Random, int], int] = allocated_bytes,
) -> Trace:
    """A run in which all is well, with these times and bytes."""
    rng = random.Random(seed)
    records = _beginning()
    for step in range(steps):
        tokens = sum(rng.randint(40, 128) for _ in range(2))
        if step % 50 == 0:
            records.append(e.Evaluation(step=step, split="probe", loss=1.0 + 3.2 * math.exp(-step / 60), tokens=38))
        records.append(
            e.Step(
                step=step,
                loss=(1.2 + 3.5 * math.exp(-step / 60)) * math.exp(rng.gauss(0, 0.1)),
                learning_rate=1e-4,
                gradient_norm=1.0,
                supervised_tokens=tokens,
                tokens=tokens,
                applied=True,
                seconds=seconds(rng, step, tokens),
                allocated_bytes=allocated(rng, step),
            )
        )
    records.append(e.Evaluation(step=steps, split="probe", loss=1.0 + 3.2 * math.exp(-steps / 60), tokens=38))
    records += [_phase("first step", 10, peak_allocated_bytes=PEAK_BYTES), _phase("steady", 11, 90.0)]
    records += [e.LiveTensors(step=step, tensors=242, bytes=18314280) for step in range(20, steps, 10)]
    records += [health("before"), health("after")]
    records += [sample(at) for at in range(5, 101, 5)]
    records.append(telemetry())
    made = attempt("train", *records)
    start = e.AttemptStart(
        purpose=e.AttemptPurpose.TRAIN, device="cuda:0", reason=e.AttemptReason.REQUESTED, changes={}
    )
    return Trace(_header(steps), (Attempt(start, made.records, made.end), reading_back(), merging(), *compared()))


def reading_back(**changes: object) -> Attempt:
    """The attempt that reads the saved adapter, with these differences."""
    seen = {"files": ("adapter_config.json", "adapter_model.safetensors"), "logit_difference": 4e-3, **changes}
    made = attempt("read back", telemetry(), e.ReadBack(**{"adapter_effect": 0.4, **seen}))
    start = e.AttemptStart(
        purpose=e.AttemptPurpose.READ_BACK, device="cuda:0", reason=e.AttemptReason.REQUESTED, changes={}
    )
    return Attempt(start, made.records, made.end)


def merging(**changes: object) -> Attempt:
    """The attempt that merges the saved adapter, with these differences."""
    seen = {"logit_difference": 7e-3, "adapter_effect": 0.4, "adapters_left": (), "packed_left": (), **changes}
    made = attempt("merge", telemetry(), e.Merged(**seen))
    start = e.AttemptStart(
        purpose=e.AttemptPurpose.MERGE, device="cuda:0", reason=e.AttemptReason.REQUESTED, changes={}
    )
    return Attempt(start, made.records, made.end)


def compared(**changes: int | None) -> list[Attempt]:
    """The variants' attempts, with these peaks in MiB; None for one whose phase was never reached."""
    attempts = []
    for name, peak in {**VARIANT_MIB, **{name.replace("_", " "): peak for name, peak in changes.items()}}.items():
        phases = [] if peak is None else [_phase("steady", 1, peak_allocated_bytes=peak * MIB)]
        made = attempt("compare", telemetry(), *phases)
        start = e.AttemptStart(
            purpose=e.AttemptPurpose.COMPARE,
            device="cuda:0",
            reason=e.AttemptReason.REQUESTED,
            variant=e.MemoryVariant(name),
            changes={},
        )
        attempts.append(Attempt(start, made.records, made.end))
    return attempts


def _beginning() -> list[e.Record]:
    return [
        _phase("load", 0, peak_allocated_bytes=1200 * MIB),
        blank(e.Weights, pretrained=True, source="local"),
        blank(
            e.Setup,
            declared_optimizer="AdamW",
            device="cuda:0",
            device_name="NVIDIA H200",
            precision="bf16",
            cuda={"uuid": UUID},
            numerics={"deterministic": False},
        ),
        blank(e.Census, trainable_parameters=1000),
    ]


@lru_cache
def _header(steps: int) -> e.RunHeader:
    run = long_run(steps)
    asked: dict[str, Any] = {**run.model_dump(mode="json"), "features": sorted(run.features)}
    return blank(e.RunHeader, schema=SCHEMA, run=asked, environment={})


def _phase(name: str, started_at: float, seconds: float = 1.0, **figures: int) -> e.Phase:
    peaks = {"peak_allocated_bytes": 850 * MIB, "peak_requested_bytes": 840 * MIB, "peak_reserved_bytes": 1500 * MIB}
    return e.Phase(
        name=name,
        started_at=started_at,
        seconds=seconds,
        process_bytes=2000 * MIB,
        allocation_retries=0,
        out_of_memory_count=0,
        **{**peaks, **figures},
    )


def health(when: str, **changes: object) -> e.Health:
    """The counters of a card in order."""
    counters = {
        "uncorrected_ecc": 3,
        "remapped_rows_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery_action": 0,
    }
    return e.Health(**{**counters, "when": when, **changes})


def sample(at: float, **changes: object) -> e.DeviceSample:
    """Five seconds of the card while the training has it for itself."""
    seen = {
        "at": at,
        "seconds": 4.8,
        "readings": 25,
        "used_bytes": 2600 * MIB,
        "process_bytes": 2000 * MIB,
        "process_seen": True,
        "sm_clock_mhz": 1980.0,
        "temperature_celsius": 61.0,
        "clock_reasons": {"software power cap": 2},
        "others": (),
    }
    return e.DeviceSample(**{**seen, **changes})


def telemetry(**changes: object) -> e.Telemetry:
    """A card that was watched from before the attempt to after it."""
    seen = {
        "uuid": UUID,
        "complete": True,
        "readings": 500,
        "process_id": PID,
        "memory_source": "process",
        "used_bytes_before": 600 * MIB,
    }
    return e.Telemetry(**{**seen, **changes})
