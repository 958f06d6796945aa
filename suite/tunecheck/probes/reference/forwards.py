"""Short forward passes of a session's model, its modes put back. Imports torch; child process only."""

from __future__ import annotations

import torch

from tunecheck.training.restore import model_mode
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
        output = session.model(input_ids=ids, attention_mask=mask, use_cache=False)
        logits: torch.Tensor = output.logits.detach().float()
        return logits
