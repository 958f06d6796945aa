"""The training child and its card: it sees that one alone, and takes no more of its memory than it may."""

from __future__ import annotations

import os
import re
from typing import Any

from suite.core.errors import Unsupported

VISIBLE = "CUDA_VISIBLE_DEVICES"
UUID_DIGITS = 32


def show_only(card: str | None) -> None:
    """CUDA shows this process the GPU or MIG instance of this UUID alone; "" hides all, None leaves all as it is.

    By UUID, since an index means another card to CUDA than to NVML where models are mixed, and only before CUDA is
    initialised. The parent has chosen it among what its own CUDA_VISIBLE_DEVICES lets through.
    """
    if card is not None:
        os.environ[VISIBLE] = card


def require_card(device: Any, card: str | None) -> None:
    """The device is the card of this UUID. Raises Unsupported when torch shows another one.

    Only whole UUIDs of GPUs are compared: torch may not tell one, and a MIG instance's in other words.
    """
    import torch

    shown = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    leased_digits, shown_digits = _digits(card or ""), _digits(shown)
    comparable = (card or "").startswith("GPU-") and len(leased_digits) == len(shown_digits) == UUID_DIGITS
    if comparable and leased_digits != shown_digits:
        raise Unsupported(
            f"the run has a lease on {card}, but torch shows {shown}: CUDA was initialised before {VISIBLE} was set. "
            "What to do: run without --in-process, or set that variable yourself"
        )


def _digits(uuid: str) -> str:
    return re.sub("[^0-9a-f]", "", uuid.lower())


def cap_memory(device: Any, cap_bytes: int | None) -> int | None:
    """torch's allocator takes at most this many bytes of the card; returns the cap, None where there is none to set.

    To be called before anything is allocated. What is more than the card has is no cap. Only the allocator is capped:
    the CUDA context and what libraries allocate past it come on top, so a real card of this size holds a little less.
    """
    import torch

    total_bytes = torch.cuda.get_device_properties(device).total_memory
    if cap_bytes is None or cap_bytes >= total_bytes:
        return None
    torch.cuda.set_per_process_memory_fraction(cap_bytes / total_bytes, device)
    return cap_bytes
