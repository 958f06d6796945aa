"""Is everything where the run asked for it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Census
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAsAsked(Check):
    """Every parameter, buffer and optimizer state lies on the device of the attempt, and that is the one asked for."""

    meaning: ClassVar[str] = (
        "training ran somewhere else than asked: a silent fallback to the CPU, or a part of the model was left behind"
    )
    remedy: ClassVar[str] = (
        "run tunecheck doctor; look for .to() or device_map in the loading code and for a fallback in the attempts"
    )

    def judge(self, trace: Trace) -> Finding:
        device = trace.main.start.device
        asked = trace.run["device"]
        places = {device, "cpu"} if trace.run["training"].get("offload") == "parameters" else {device}
        elsewhere = {
            place: count
            for census in trace.all(Census)
            for place, count in census.devices.items()
            if place not in places
        }
        kind = device.partition(":")[0]
        fallback = kind == "cpu" and _may_end_on_cpu(trace.run["fallback"]) and _gpu_ran_out(trace)
        as_asked = asked in ("auto", kind) or fallback
        nothing_here = any(device not in census.devices for census in trace.all(Census))
        detail = f"asked for {asked}, ran on {device}" + (f", but tensors on {elsewhere}" if elsewhere else "")
        detail += f", but nothing lies on {device}" if nothing_here and not elsewhere else ""
        if fallback:
            detail += f" after: {trace.main.start.reason}"
        return self.found(as_asked and not elsewhere and not nothing_here, detail, measured=device, limit=asked)


def _may_end_on_cpu(fallback: list[str] | str) -> bool:
    """Whether the run's ladder, or in older traces its one word, has a training on the CPU."""
    return not {"cpu", "evaluate_on_gpu"}.isdisjoint([fallback] if isinstance(fallback, str) else fallback)


def _gpu_ran_out(trace: Trace) -> bool:
    """Whether an earlier attempt to train ended for lack of GPU memory: only that excuses the CPU."""
    tried = [a for a in trace.attempts if a.start.purpose == "train" and a.start.device.startswith("cuda")]
    return any(a.end is not None and a.end.outcome == "out_of_memory" for a in tried)
