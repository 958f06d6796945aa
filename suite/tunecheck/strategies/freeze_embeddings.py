"""Frozen embedding, all else trained. A tied head is the embedding, and so is frozen with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecheck.models.layer_names import EMBEDDING, base_names
from tunecheck.strategies.base import StrategyConfig


class FreezeEmbeddings:
    """Train every layer, the final norm and, where it is a matrix of its own, the head."""

    trains: ClassVar[str] = "everything but the embedding"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with its input embedding frozen."""
        model.requires_grad_(True)
        model.get_input_embeddings().requires_grad_(False)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the weight file but the embedding's."""
        names = base_names(weights, run.model.architecture.tie_word_embeddings)
        return {name for name in names if name != EMBEDDING}
