"""The catalogue of faults: real bugs to put into a healthy run on purpose, so that the suite can be scored.

A fault changes a healthy session from outside; the trainer has no switches for it. Importing this imports no torch.
"""

from __future__ import annotations

from benchmarks.detection.bugs.fault import Fault
from benchmarks.detection.bugs.further import FURTHER
from benchmarks.detection.bugs.known import KNOWN
from benchmarks.detection.bugs.not_shown import NOT_SHOWN

__all__ = ["FAULTS", "NOT_SHOWN", "Fault"]

FAULTS: dict[str, Fault] = {fault.id: fault for fault in (*KNOWN, *FURTHER)}
"""Every fault by its id, those of the public list first."""
