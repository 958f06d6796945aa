"""Short forward passes of a session's model, its modes put back. Imports torch; child process only."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from tunecheck.training.data import IGNORED
from tunecheck.training.restore import model_mode, uncached
from tunecheck.training.session import Session

PROMPT_TOKENS = 8


def first_tokens(session: Session, count: int = PROMPT_TOKENS) -> torch.Tensor:
    """Return the first token ids of the first held-out row, as [1, count] on the session's device."""
    return torch.tensor([session.batches.heldout[0].input_ids[:count]], device=session.device)


def logits_of(
    session: Session,
    ids: torch.Tensor,
    *,
    training: bool,
    mask: torch.Tensor | None = None,
    graph: bool = False,
) -> torch.Tensor:
    """Return the model's detached fp32 logits of these tokens, [rows, positions, vocabulary].

    `graph` records one for autograd all the same, for hooks that take gradients from what passes them.
    """
    with model_mode(session.model, training), torch.set_grad_enabled(graph):
        output = uncached(session.model, input_ids=ids, attention_mask=mask)
        logits: torch.Tensor = output.logits.detach().float()
        return logits


TOGETHER_TOKENS = 256
"""Positions of one forward, where the training's own micro-batches do not take more."""

IdsAndLabels = tuple[torch.Tensor, torch.Tensor]


def side_by_side(rows: Sequence[IdsAndLabels], tokens: int = 0) -> Iterator[IdsAndLabels]:
    """All rows, longest first, as [rows, positions] of token ids and of labels with at most max(256, tokens) positions.

    A longer row comes alone. They need no mask: padding stands on the right, where a causal model's tokens do not look.
    """
    room = max(TOGETHER_TOKENS, tokens)
    waiting = sorted(rows, key=lambda row: -len(row[0]))
    while waiting:
        count = max(1, room // len(waiting[0][0]))
        ids, labels = map(list, zip(*waiting[:count], strict=True))
        del waiting[:count]
        yield pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=IGNORED)
