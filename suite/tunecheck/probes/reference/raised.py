"""Which tokens a gradient by scores asks for, at positions that read others, or the same."""

import torch

from tunecheck.probes.reference import padded
from tunecheck.probes.reference.loss_graph import Scored
from tunecheck.probes.reference.own_tokens import Call

NEARLY_ALL = 0.9
"""Of the positions that are looked at: so many are asked for their next token where a model learns to predict it."""
MOSTLY = 0.75
"""Of the tokens that a masked model is not shown: BERT has one token stand for nine in ten, others for the rest."""
FEWEST_TELLING = 16
"""Positions by which rows are told from columns, and one pass from another."""
LOOKED_AT = 512
"""Positions of a pass at most whose gradient by the logits is searched for the token that it raises."""


class Raised:
    """Which tokens a gradient by scores raises, or alone lowers, where the next token is another: [rows, positions]."""

    def __init__(self, call: Call, gradient: torch.Tensor) -> None:
        self.rows = read = call.rows.to(gradient.device)
        self.call, self.every = call, -(-read.numel() // LOOKED_AT)
        looked_at = call.by_row(gradient.detach())[:, : -1 : self.every]
        telling, raised = raised_by(looked_at)
        self.masked = _masked(read[:, : -1 : self.every], raised, telling)
        telling &= (read[:, :-1] != read[:, 1:])[:, :: self.every]
        self.asked = telling & (raised == read[:, 1 :: self.every])
        second = read.roll(-2, dims=1)[:, : -1 : self.every]  # behind the last one stands the first one, by chance
        own, second = raised == read[:, : -1 : self.every], ~self.asked & (raised == second)
        self.telling, self.own, self.second = (int((telling & places).sum()) for places in (telling, own, second))

    def ahead(self, way: Scored | None = None) -> tuple[int, int]:
        """Return how many rows are asked for the next token at the position where most are, and how many see it.

        By the loss's graph, else every second row by another call.
        """
        everywhere = torch.zeros_like(self.rows[:, 1:], dtype=torch.bool)
        everywhere[:, :: self.every] = self.asked
        at = int(everywhere[::2].sum(dim=0).argmax())
        if way is None:
            seeing, asked = self.call.rows_that_see(at), everywhere[::2, at]
        else:
            seeing, asked = way.rows_that_see(at, turned=self.call.turned), everywhere[:, at]
        return (0, 0) if seeing is None else (int(asked.sum()), int((seeing.to(asked.device) & asked).sum()))

    @property
    def ask_for_next(self) -> bool:
        """Return whether a model learns to predict its next tokens by this."""
        return int(self.asked.sum()) > NEARLY_ALL * self.telling

    @property
    def ask_for_later(self) -> bool:
        """Return whether these rows are told to be rows, by targets that are the next tokens, or those behind them."""
        asked = int(self.asked.sum()) + self.second
        return self.telling >= FEWEST_TELLING and asked > NEARLY_ALL * self.telling


def _masked(read: torch.Tensor, raised: torch.Tensor, learned: torch.Tensor) -> dict[str, int]:
    """Return fields of PositionGradients about the tokens that one token stands for; none where none does.

    If each learned position reads its target, these are those between them that are not learned.
    """
    others = read[learned & (read != raised)]
    if not len(others):
        others = read[~learned & (learned.cumsum(dim=1) > 0) & padded.up_to_last(learned)]
    mask = others.mode().values if len(others) else None
    if mask is None or (number := int((others == mask).sum())) < MOSTLY * len(others):
        return {}
    asked = learned & (raised == mask)
    return {
        "masked": number,
        "unmasked": int((learned & (read == raised) & ~asked).sum()),
        "masks_asked": int(asked.sum()),
    }


def raised_by(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where a gradient by scores raises a token, and which most; or alone lowers, as a rejected answer's."""
    lowers_one = ((gradient > 0).sum(dim=-1) == 1) & ((gradient < 0).sum(dim=-1) > 1)
    falling, raised = gradient.min(dim=-1)
    return falling < 0, torch.where(lowers_one, gradient.argmax(dim=-1), raised)
