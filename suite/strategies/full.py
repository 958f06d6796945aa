"""Full fine-tuning: every parameter learns, in fp32 with autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from suite.models.layer_names import base_names
from suite.strategies.base import StrategyConfig


class Full:
    """Trains everything. A tied head is one tensor with the embedding."""

    trains: ClassVar[str] = "everything"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """The model itself, every parameter trainable."""
        return model.requires_grad_(True)

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Every tensor of the weight file; a tied head is known by the embedding's name."""
        return set(base_names(weights, run.model.architecture.tie_word_embeddings))
