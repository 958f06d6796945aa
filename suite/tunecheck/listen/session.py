"""A training that is not ours as the session that probes know. Imports torch; in the watched process only."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunecheck.core.errors import Unsupported
from tunecheck.listen import declared
from tunecheck.listen.named_answers import answers_named
from tunecheck.listen.options import rank_and_processes
from tunecheck.listen.trained_model import device_of
from tunecheck.models.layer_names import text_config
from tunecheck.probes.reference.own_logits import unpadded
from tunecheck.training.data import Batch, Tokens, collate
from tunecheck.training.session import Session

ROW_TOKENS = 64
"""Tokens that a probe's own row has at least, where the model has positions for them: a shorter one is repeated."""


class GivenRows:
    """The rows of the first window, where probes look for some of their own."""

    def __init__(
        self, window: Sequence[Batch], dataset: Any, pad_token_id: int, done: tuple[float, frozenset[str]], most: int
    ) -> None:
        """`most` are the positions that the model has."""
        rows = [Tokens("?", (*ids.tolist(),), (*labels.tolist(),)) for ids, labels in unpadded(window) if len(ids)]
        self.dataset = dataset
        self.done_share, self.done_rows = done
        """What the training that this one resumes did of its first epoch: the share, and digests of rows."""
        self.train = rows
        first, last = rows[0], rows[-1]
        other = last if last is not first else Tokens("?", first.input_ids[::-1], first.labels[::-1])
        self.heldout = [_long_enough(first, most), _long_enough(other, most)]
        self.collate = collate
        self.tokenizer = type("Padding", (), {"pad_token_id": pad_token_id})

    def rows(self, step: int) -> list[list[Tokens]]:
        """The rows of the first window."""
        return [self.train]

    def fixed(self, split: str) -> list[Tokens]:
        """The same."""
        return self.train


def _long_enough(row: Tokens, most: int) -> Tokens:
    if len(row.input_ids) >= ROW_TOKENS:
        return row
    times, width = -(-ROW_TOKENS // len(row.input_ids)), max(most, len(row.input_ids))
    return Tokens(row.key, (row.input_ids * times)[:width], (row.labels * times)[:width])


def _declared_number(model: Any, name: str) -> int:
    """Return this number of the model's configuration, of its text's where it has several; the largest without."""
    return int(getattr(text_config(getattr(model, "config", None)), name, None) or sys.maxsize)


def session_of(
    run: declared.WatchedRun,
    model: Any,
    window: Sequence[Batch],
    *,
    optimizer: Any,
    tokenizer: Any = None,
    dataset: Any = None,
    done: tuple[float, frozenset[str]] = (0.0, frozenset()),
    **others: Any,
) -> Session:
    """Return the session of this run; `others` are fields of it that the training has besides."""
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None or pad >= _declared_number(model, "vocab_size"):  # added to the tokenizer alone
        pad = 0
    rows: Any = GivenRows(window, dataset, pad, done, _declared_number(model, "max_position_embeddings"))
    return Session(
        run=run,
        processes=rank_and_processes()[1],
        device=device_of(model),
        precision=str(run.training.precision),
        folder=declared.weights_folder(model) or Path("/nonexistent"),
        model=model,
        tokenizer=tokenizer,
        batches=rows,
        optimizer=optimizer,
        loss=_not_ours,
        evaluate=_not_ours,
        merge=_not_ours,
        answers_named=answers_named,
        **{"save_adapter": lambda own, folder: own.model.save_pretrained(str(folder)), **others},
    )


def _not_ours(*_: Any) -> Any:
    raise Unsupported("a watched training has no such function")
