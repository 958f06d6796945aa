"""Whether what a model of the script's own returns at a position is computed of the token there, and of later ones.

Where it is of the token there and of no later one, and that token is the target, the model has only to copy. An
autoencoder sees all tokens, and a model that shifts within itself sees the earlier ones alone. Where the next token is
the target, no later one may be seen. What the target is, at any position, is read off the gradient by the scores.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tunecheck.probes.reference import padded
from tunecheck.probes.reference.forwards import parts_of
from tunecheck.probes.reference.loss_graph import LEAST_AHEAD, Scored
from tunecheck.training.restore import model_mode, unprinted

LEAST = 1e-3
"""Of the largest score, by which scores change that depend on a token; those that do not differ by rounding."""
MIXED, FEWEST_ROWS, FEWEST_KINDS = 1e-2, 4, 8
"""Of the largest result, by which a row's own change where they depend on other rows; rows that tell so, and the number
from which on a token is no mark."""
MARGIN = 10.0
"""Over what is known to be rounding."""
NEARLY_ALL = 0.9
"""Of the positions that are looked at: so many are asked for their next token where a model learns to predict it."""
MOSTLY = 0.75
"""Of the tokens that a masked model is not shown: BERT has one token stand for nine in ten, others for the rest."""
FEWEST_TELLING = 16
"""Positions by which rows are told from columns, and one pass from another."""
LOOKED_AT = 512
"""Positions of a pass at most whose gradient by the logits is searched for the token that it raises."""
Fits = Callable[[torch.Tensor, torch.Size], bool]
"""(tokens, shape of numbers that a module returns) -> whether these are what is looked for."""


def scores_fit(read: torch.Tensor, shape: torch.Size) -> bool:
    """Return whether these are scores over the tokens; they may come flat, [rows * positions, vocabulary]."""
    return shape[:-1] in (read.shape, (read.numel(),)) and shape[-1] > int(read.max())


def tokens_and_numbers(
    args: Any, given: Any, out: Any, fit: Fits = scores_fit
) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
    """Return the tokens, [rows, positions], that a module is called with, and the first numbers it returns that fit.

    Several of them are parts of the positions, one after the other. None where it takes or returns something else.
    """
    tensors = [value for value in (*args, *given.values()) if isinstance(value, torch.Tensor)]
    read = next((value for value in tensors if value.ndim == 2 and value.dtype in (torch.int64, torch.int32)), None)
    if read is None or not read.numel():
        return None
    numbers = [part for part in parts_of(out) if isinstance(part, torch.Tensor) and part.is_floating_point()]
    if (found := next((part for part in numbers if fit(read, part.shape)), None)) is not None:
        return read, [found]
    parts = [part for part in numbers if part.ndim == 3]
    if len({(len(part), part.shape[2]) for part in parts}) != 1:
        return None
    positions = sum(part.shape[1] for part in parts)
    return (read, parts) if fit(read, torch.Size([len(parts[0]), positions, parts[0].shape[2]])) else None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module in the training, made again with other tokens in eval mode, without gradients."""

    module: Any
    args: Any
    given: dict[str, Any]
    read: torch.Tensor
    """Tokens that it was given, [rows, positions]."""
    turned: bool = False
    """Whether that is [positions, rows] instead."""

    @property
    def rows(self) -> torch.Tensor:
        return self.read.t().contiguous() if self.turned else self.read

    @property
    def is_of_read(self) -> bool:
        """Return whether these tokens are what it was given, and no part of it."""
        return any(value is self.read for value in (*self.args, *self.given.values()))

    def by_row(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores over the tokens, which may come flat, as [rows, positions, vocabulary]."""
        placed = scores.reshape(*self.read.shape, scores.shape[-1])
        return placed.transpose(0, 1) if self.turned else placed

    def copies(self) -> bool:
        """Return whether scores depend on the token at their position, and not on a later one."""
        at = self.rows.shape[1] // 2
        if (moved := self._moved([_other(self.rows, at)])) is None:
            return False
        most = moved[0].amax(dim=0)
        return bool(at) and float(most[:at].max()) <= LEAST < float(most[at])

    def rows_that_see(self, at: int) -> torch.Tensor | None:
        """Return of every second row whether its scores at this position depend on the token behind it.

        None where scores cannot be compared: those that differ from call to call. What the rows between differ by,
        whose tokens are the same, is rounding, as of experts that other tokens are sent to.
        """
        some = self.rows.clone()
        some[::2] = _other(self.rows, at + 1)[::2]
        if (moved := self._moved([self.rows, some])) is None:
            return None
        by_itself, by_tokens = moved
        rounding = by_tokens[1::2].max() if len(some) > 1 else by_itself.max() + LEAST / MARGIN
        seeing = by_tokens[::2, at] > torch.clamp(MARGIN * rounding, min=LEAST_AHEAD)
        return seeing if float(by_itself.max()) <= LEAST_AHEAD else None

    def _moved(self, others: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return how far these rows' scores are from those of the call, of the largest: [rows, positions] each."""
        # the module's own code may refuse eval mode
        with suppress(Exception), model_mode(self.module, False), torch.no_grad(), unprinted():
            before, *after = [self._again(tokens) for tokens in (self.rows, *others)]
            largest = before.abs().max()
            return [(scores - before).abs().amax(dim=2) / largest for scores in after]
        return None

    def _again(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores over these rows. Raises where the module returns none."""
        tokens = tokens.t().contiguous() if self.turned else tokens
        own = [tokens if value is self.read else value for value in self.args]
        named = {name: tokens if value is self.read else value for name, value in self.given.items()}
        out = self.module(*own, **named)
        if not isinstance(logits := getattr(out, "logits", None), torch.Tensor):
            _, parts = tokens_and_numbers(own, named, out)  # type: ignore[misc]
            logits = self.by_row(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        return logits.float()


def rows_mixed(module: Any, args: Any, given: dict[str, Any]) -> dict[str, int]:
    """Return fields of PositionGradients about rows whose results change with the tokens of the rows between them.

    Nothing where rows may be columns, where calls differ by themselves, or of rows that are compared with each other.
    """
    tensors = [held for held in tree_leaves((args, given)) if isinstance(held, torch.Tensor) and held.ndim]
    tokens = [held for held in tensors if held.ndim == 2 and not held.is_floating_point() and held.numel()]
    tokens = [held for held in tokens if int(held.max()) >= FEWEST_KINDS]
    rows, widths = {len(held) for held in tokens}, {held.shape[1] for held in tokens}
    single = any(held.ndim == 1 and len(held) in rows - widths for held in tensors)
    if len(rows) != 1 or not (single or len(widths) > 1) or (count := rows.pop()) < FEWEST_ROWS:
        return {}

    def changed(held: Any) -> Any:
        if not any(held is each for each in tokens):
            return held
        between = torch.arange(count, device=held.device)[:, None] % 2 == 1
        return torch.where(between & (held >= FEWEST_KINDS), held - 1, held)  # a mark may have a small number

    def results(args: Any, given: Any) -> torch.Tensor:
        made = (part for part in parts_of(module(*args, **given)) if isinstance(part, torch.Tensor))
        fit = (part for part in made if part.is_floating_point() and part.ndim > 1 and len(part) == count)
        return next(part for part in fit if part.shape != (count, count)).reshape(count, -1)[::2].float()

    # the module's own code may refuse eval mode, or return something else
    with suppress(Exception), model_mode(module, False), torch.no_grad(), unprinted():
        calls = [(args, given), (args, given), tree_map(changed, (args, given))]
        first, again, moved = [results(*call) for call in calls]
        if torch.equal(first, again):
            mixed = (moved - first).abs().amax(dim=1) > MIXED * first.abs().max()
            return {"rows_alone": len(mixed), "rows_mixed": int(mixed.sum())}
    return {}


def _other(read: torch.Tensor, at: int) -> torch.Tensor:
    changed = read.clone()
    changed[:, at] = torch.where(read[:, at] > 0, read[:, at] - 1, read[:, at] + 1)
    return changed


class Raised:
    """Which tokens a gradient by scores raises, or alone lowers, where the next token is another: [rows, positions]."""

    def __init__(self, call: Call, gradient: torch.Tensor) -> None:
        self.rows = read = call.rows.to(gradient.device)
        self.call, self.every = call, -(-read.numel() // LOOKED_AT)
        telling, raised = raised_by(call.by_row(gradient.detach())[:, : -1 : self.every])
        self.masked = _masked(read[:, : -1 : self.every], raised, telling)
        telling &= (read[:, :-1] != read[:, 1:])[:, :: self.every]
        self.asked = telling & (raised == read[:, 1 :: self.every])
        second = read.roll(-2, dims=1)[:, : -1 : self.every]  # behind the last one stands the first one, by chance
        own, second = raised == read[:, : -1 : self.every], ~self.asked & (raised == second)
        before = ~(self.asked | own) & (raised == read.roll(1, dims=1)[:, : -1 : self.every])
        places = {"raising": telling, "raising_own": own, "raising_second": second, "raising_before": before}
        self.counts = {field: int((telling & each).sum()) for field, each in places.items()}
        self.telling, self.own, self.second, _ = self.counts.values()

    def ahead(self, way: Scored | None = None) -> dict[str, int]:
        """Return fields of PositionGradients about rows asked for the next token at the position where most are.

        Whether they see it tells the loss's graph, else another call tells it of every second row; nothing if none can.
        """
        everywhere = torch.zeros_like(self.rows[:, 1:], dtype=torch.bool)
        everywhere[:, :: self.every] = self.asked
        at = int(everywhere[::2].sum(dim=0).argmax())
        if way is None:
            seeing, asked = self.call.rows_that_see(at), everywhere[::2, at]
        else:
            seeing, asked = way.rows_that_see(at, turned=self.call.turned), everywhere[:, at]
        known = {} if seeing is None else {"asked_for_next": asked, "seeing_next": seeing.to(asked.device) & asked}
        return {field: int(rows.sum()) for field, rows in known.items()}

    @property
    def ask_for_next(self) -> bool:
        """Return whether a model learns to predict its next tokens by this."""
        return int(self.asked.sum()) > NEARLY_ALL * self.telling

    @property
    def ask_for_later(self) -> bool:
        """Return whether these rows are told to be rows, by targets that are the next tokens, or those behind them."""
        return self.telling >= FEWEST_TELLING and int(self.asked.sum()) + self.second > NEARLY_ALL * self.telling


def _masked(read: torch.Tensor, raised: torch.Tensor, learned: torch.Tensor) -> dict[str, int]:
    """Return fields of PositionGradients about the tokens that one token stands for; none where none does.

    If each learned position reads its target, these are those between them that are not learned.
    """
    if not len(others := read[learned & (read != raised)]):
        others = read[~learned & (learned.cumsum(dim=1) > 0) & padded.up_to_last(learned)]
    mask = others.mode().values if len(others) else None
    if mask is None or (number := int((others == mask).sum())) < MOSTLY * len(others):
        return {}
    asked = learned & (raised == mask)
    unmasked = learned & (read == raised) & ~asked
    return {"masked": number, "unmasked": int(unmasked.sum()), "masks_asked": int(asked.sum())}


def raised_by(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where a gradient by scores raises a token, and which most; or alone lowers, as a rejected answer's."""
    lowers_one = ((gradient > 0).sum(dim=-1) == 1) & ((gradient < 0).sum(dim=-1) > 1)
    falling, raised = gradient.min(dim=-1)
    return falling < 0, torch.where(lowers_one, gradient.argmax(dim=-1), raised)
