"""Request to a source of weights."""

from __future__ import annotations

from dataclasses import dataclass

from tunecheck.assets.cache import Shelf
from tunecheck.models.description import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One model, whether random weights are allowed, and the cache entry to fill."""

    model: Model
    allow_random: bool
    shelf: Shelf

    @property
    def weights_bytes(self) -> int:
        """Return the size of the weights in bf16."""
        return 2 * self.model.parameters
