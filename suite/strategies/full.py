"""Full fine-tuning: every parameter learns, in fp32 with autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from suite.layers import base_names

if TYPE_CHECKING:
    from suite.config.schema import Run


class Full:
    """Trains everything. A tied head is one tensor with the embedding."""

    trains = "everything"

    def adapt(self, model: Any, run: Run) -> Any:
        """The model itself, every parameter trainable."""
        return model.requires_grad_(True)

    def expected_trainable(self, run: Run, weights: Sequence[str]) -> set[str]:
        """Every tensor of the weight file; a tied head is known by the embedding's name."""
        return set(base_names(weights, run.model.architecture.tie_word_embeddings))
