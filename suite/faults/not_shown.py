"""Faults of the public list that this trainer or a CPU cannot show, each with the reason."""

from __future__ import annotations

NO_MERGE = "the trainer never merges adapters into the base, so there is no step of a session to break"

NOT_SHOWN: dict[str, str] = {
    "B17": f"output changes after a merge: {NO_MERGE}",
    "B56": f"merge on the wrong base: {NO_MERGE}",
    "B109": "a CUDA error that surfaces late: kernels on a CPU are not asynchronous",
}
"""Id in the public list to the reason."""
