"""Xids, the NVIDIA driver's error numbers, by what they say about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

XidClass = Literal["hardware", "unclear", "warning"]
"""hardware: the GPU or its driver is at fault; unclear: the GPU or the program; warning: the run may be good."""


@dataclass(frozen=True, slots=True)
class Xid:
    """The meaning of one error number."""

    meaning: str
    says: XidClass


XIDS = {
    13: Xid("graphics engine exception", "unclear"),
    31: Xid("memory page fault: an illegal access", "unclear"),
    32: Xid("corrupted push buffer", "unclear"),
    43: Xid("the GPU stopped processing", "unclear"),
    45: Xid("preemptive cleanup, after an earlier error", "unclear"),
    46: Xid("the GPU timed out", "hardware"),
    48: Xid("double-bit memory error", "hardware"),
    62: Xid("micro-controller halt", "hardware"),
    63: Xid("a memory row or page was retired", "warning"),
    64: Xid("retiring a memory row or page failed", "hardware"),
    74: Xid("NVLink error", "hardware"),
    79: Xid("the GPU has fallen off the bus", "hardware"),
    92: Xid("high rate of single-bit memory errors", "warning"),
    94: Xid("contained memory error", "hardware"),
    95: Xid("uncontained memory error", "hardware"),
    109: Xid("context switch timeout", "hardware"),
    119: Xid("the GPU's system processor does not answer", "hardware"),
    120: Xid("the GPU's system processor failed", "hardware"),
    140: Xid("unrecovered memory error", "hardware"),
    143: Xid("the GPU could not be initialised", "hardware"),
    154: Xid("the recovery action changed", "warning"),
}
"""The sources disagree on many of these: DCGM's health watch, GCM, Azure's and Imbue's health checks and gpud's
catalogue, read in November 2026. Hardware are those that gpud's catalogue answers with a reset or worse, and memory
errors with lost data; 13, 31, 32, 43 and 45 also come from programs; 63, 92 and 154 alone invalidate no result."""
UNKNOWN = Xid("not in the table", "unclear")
FATAL_EVENTS = frozenset({"DRAM retirement failure", "fatal poison", "GPU unavailable", "recovery action"})
"""NVML's other events that mean failing hardware; the rest are warnings."""


def classified(number: int) -> Xid:
    """Classify an Xid; one that is not in the table is unclear."""
    return XIDS.get(number, UNKNOWN)
