"""Whether what a model of the script's own returns at a position is computed of the token there, and of later ones.

Where it is of the token there and of no later one, and that token is the target, the model has only to copy. An
autoencoder sees all tokens, and a model that shifts within itself sees the earlier ones alone. Where the next token is
the target, no later one may be seen.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from tunecheck.probes.reference.forwards import parts_of
from tunecheck.probes.reference.loss_graph import LEAST_AHEAD
from tunecheck.training.restore import model_mode, unprinted

LEAST = 1e-3
"""Of the largest score, by which scores change that depend on a token; those that do not differ by rounding."""
MARGIN = 10.0
"""Over what is known to be rounding."""


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
        logits = getattr(out, "logits", None)
        if not isinstance(logits, torch.Tensor):
            _, parts = tokens_and_numbers(own, named, out)  # type: ignore[misc]
            logits = self.by_row(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        return logits.float()


def _other(read: torch.Tensor, at: int) -> torch.Tensor:
    changed = read.clone()
    changed[:, at] = torch.where(read[:, at] > 0, read[:, at] - 1, read[:, at] + 1)
    return changed
