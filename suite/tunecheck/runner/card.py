"""The training process and its card: it sees that one alone, and takes no more of its memory than it may."""

import os
import re
from collections.abc import Sequence
from typing import Any

from tunecheck.core.errors import Unsupported

VISIBLE = "CUDA_VISIBLE_DEVICES"
UUID_DIGITS = 32


def show_only(cards: Sequence[str] | None) -> None:
    """CUDA shows this process the GPUs or MIG instances of these UUIDs alone; None leaves all as it is.

    By UUID, since an index means another card to CUDA than to NVML where models are mixed, and only before CUDA is
    initialised. The parent has chosen them among what its own CUDA_VISIBLE_DEVICES lets through.
    """
    if cards is not None:
        os.environ[VISIBLE] = ",".join(cards)


def card_of_rank(cards: Sequence[str] | None, rank: int) -> tuple[str, ...]:
    """Return what this rank alone is to see: its own of the run's cards; of unknown ones the one in its place."""
    if cards is None:
        visible = os.environ.get(VISIBLE)
        cards = visible.split(",") if visible is not None else [str(number) for number in range(rank + 1)]
    return tuple(cards[rank : rank + 1])


def require_card(device: Any, cards: Sequence[str] | None) -> None:
    """The device is the card of this UUID. Raises Unsupported when torch shows another one.

    Only whole UUIDs of GPUs are compared: torch may not tell one, and a MIG instance's in other words.
    """
    import torch

    shown = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    card = next(iter(cards or ()), "")
    leased_digits, shown_digits = _digits(card), _digits(shown)
    comparable = card.startswith("GPU-") and len(leased_digits) == len(shown_digits) == UUID_DIGITS
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
