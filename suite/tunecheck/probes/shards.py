"""What each rank holds of a model that is sharded over several: bytes, beside an even part of the whole."""

from __future__ import annotations

from math import ceil
from typing import Any

from tunecheck.core.evidence import Shard
from tunecheck.training.events import Probe
from tunecheck.training.session import Session


class ShardProbe(Probe):
    """Adds up bytes when gradients and, after the first step, the optimizer's state are there."""

    emits = (Shard,)

    def backward_end(self, session: Session, step: int) -> None:
        """Look at what lies here between forward passes."""
        if session.whole is None:
            return
        held: dict[str, int] = {}
        even: dict[str, int] = {}
        entire = []
        for kind, name, tensor in session.whole.parts():
            here = _part(tensor).numel() * tensor.element_size()
            held[kind] = held.get(kind, 0) + here
            even[kind] = even.get(kind, 0) + _even_share(tensor, session.exchange.count)
            if here > _even_share(tensor, session.exchange.count):
                entire.append(f"{kind} of {name}")
        self.emit(Shard(step=step, held=held, even=even, larger=tuple(entire)))


def _part(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _even_share(tensor: Any, ranks: int) -> int:
    """Return the bytes of the largest part when its rows are dealt out evenly, as FSDP2 does."""
    rows = len(tensor)
    return ceil(rows / ranks) * (tensor.numel() // rows if rows else 0) * int(tensor.element_size())
