"""What a source is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from suite.assets.cache import Shelf
from suite.models.description import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One model, whether weights that were never trained will do, and the shelf to put it on."""

    model: Model
    allow_random: bool
    shelf: Shelf

    @property
    def weights_bytes(self) -> int:
        """Size of the weights in bf16."""
        return 2 * self.model.parameters
