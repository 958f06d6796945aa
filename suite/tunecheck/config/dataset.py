"""Data section: where the rows of a data set are, and how they become tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from tunecheck.core.paths import config_file
from tunecheck.models.description import Section, Sha256

NotBlank = Annotated[str, Field(pattern=r"\S")]


class Canary(Section):
    """An invented question and answer that no model can know before training and must reproduce exactly after it."""

    instruction: NotBlank
    response: NotBlank
    """An empty answer would be reproduced by any model that ends at once."""


class HubRows(Section):
    """Rows of a data set on the Hugging Face hub, at a pinned revision."""

    id: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """Full commit hash: a branch name would let the rows change under the limits."""
    file: Annotated[str, Field(pattern=r"\.json$")]
    """Path in the repository of a JSON list of {"instruction", "input", "output"}, where input may be missing."""
    sha256: Sha256 | None = None
    """Digest of the file."""
    rows: PositiveInt
    """Rows of the training split. Rows that might not fit into max_length are left out."""
    heldout_rows: PositiveInt
    """Rows of the held-out split, which shares no text with the other."""


class Data(Section):
    """Rows as JSON lines in two splits, and their tokenisation: {"instruction", "response"}, or {"text"} for blocks."""

    from_path: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    train: str
    """JSON lines of the training split: an absolute path, or one relative to configs/data."""
    heldout: str
    """JSON lines of the held-out split: other facts. A path as for train."""
    hub: HubRows | None = None
    """Rows to use instead of the two files, which remain the fallback where neither hub nor cache has them."""
    train_rows: PositiveInt | None = None
    """Number of first rows of the training split to use: more epochs of fewer facts. None: all of them."""
    template: Literal["alpaca", "chat", "blocks"] = "alpaca"
    """alpaca: the plain-text template, the same for every model; chat: the tokenizer's own chat template; blocks: the
    texts concatenated and cut every max_length tokens, all of them supervised."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Tokens per row; a longer row is an error, since cutting it would lose its answer."""
    pad_to_sequence_len: bool = False
    """Pad every row to max_length tokens, so that the memory of a step does not depend on the rows."""
    packing: Literal[False] = False
    """Packing of rows into one sequence; not supported yet, so only false is accepted."""
    canary: Canary | None = None
    """Row that takes the first place of every micro-batch."""

    def file(self, split: str) -> Path:
        """Return the path of this split ("train" or "heldout")."""
        return config_file(self.train if split == "train" else self.heldout)
