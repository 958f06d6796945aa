"""Faults of the public list that this trainer or a CPU cannot show, each with the reason."""

from __future__ import annotations

NOT_SHOWN: dict[str, str] = {
    "B109": "a CUDA error that surfaces late: kernels on a CPU are not asynchronous",
}
"""Id in the public list to the reason."""
