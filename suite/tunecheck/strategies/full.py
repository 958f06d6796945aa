"""Full fine-tuning: every parameter is trained, in fp32 with autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecheck.models.layer_names import base_names
from tunecheck.strategies.base import StrategyConfig


class Full:
    """Train everything. A tied head is one tensor with the embedding."""

    trains: ClassVar[str] = "everything"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with every parameter trainable."""
        return model.requires_grad_(True)

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the weight file; a tied head has the embedding's name."""
        return set(base_names(weights, run.model.architecture.tie_word_embeddings))
