"""The embedding is frozen, all else learns. A tied head is the embedding, and so is frozen with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from suite.layers import EMBEDDING, base_names

if TYPE_CHECKING:
    from suite.config.schema import Run


class FreezeEmbeddings:
    """Trains every layer, the last norm and, where it is a matrix of its own, the head."""

    trains = "everything but the embedding"

    def adapt(self, model: Any, run: Run) -> Any:
        """The model itself, its input embedding frozen."""
        model.requires_grad_(True)
        model.get_input_embeddings().requires_grad_(False)
        return model

    def expected_trainable(self, run: Run, weights: Sequence[str]) -> set[str]:
        """Every tensor of the weight file but the embedding's."""
        names = base_names(weights, run.model.architecture.tie_word_embeddings)
        return {name for name in names if name != EMBEDDING}
