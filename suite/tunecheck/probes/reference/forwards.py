"""Short forward passes of a session's model, its modes put back. Imports torch; child process only."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_leaves

from tunecheck.probes.reference.measures import digest
from tunecheck.training.data import IGNORED
from tunecheck.training.hooks import Hooks, OwnHooks
from tunecheck.training.restore import model_mode, uncached
from tunecheck.training.session import Session

PROMPT_TOKENS = 8


def first_tokens(session: Session, count: int = PROMPT_TOKENS) -> torch.Tensor:
    """Return the first token ids of the first held-out row, as [1, count] on the session's device."""
    return torch.tensor([session.batches.heldout[0].input_ids[:count]], device=session.device)


def logits_of(
    model: Any, ids: torch.Tensor, *, training: bool, mask: torch.Tensor | None = None, graph: bool = False
) -> torch.Tensor:
    """Return the model's fp32 logits, [rows, positions, vocabulary], detached; `graph` records one for hooks."""
    with model_mode(model, training), torch.set_grad_enabled(graph):
        out = uncached(model, input_ids=ids, attention_mask=mask)
        logits = out.logits if hasattr(out, "logits") else next(held for held in numbers_of(out) if held.ndim == 3)
        return logits.detach().float()


def logits_at(model: Any, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the logits of the tokens `ids` where `wanted` is true, both [rows, positions], as [wanted, vocabulary].

    A head that is a module of its own multiplies these positions alone: it is a fifth of a small model.
    """
    narrowed: list[bool] = []

    def narrow(_head: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if not args or args[0].shape[:-1] != wanted.shape:
            return None
        narrowed.append(True)
        return args[0][wanted.to(args[0].device)][None], *args[1:]

    with OwnHooks() as hooks:
        if (head := model.get_output_embeddings()) is not None:
            hooks.before(head, narrow)
        logits: torch.Tensor = uncached(model, input_ids=ids).logits
    return logits[0] if narrowed else logits[wanted.to(logits.device)]


def parts_of(out: Any) -> Iterable[Any]:
    """Return what a model returned one by one: values of a dictionary, items of a tuple or list, else that itself."""
    return out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else (out,)


def numbers_of(out: Any) -> list[torch.Tensor]:
    """Return the tensors of numbers that a model returned."""
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


TOGETHER_TOKENS = 256
"""Positions of one forward, where the training's own micro-batches do not take more."""

IdsAndLabels = tuple[torch.Tensor, torch.Tensor]


def side_by_side(rows: Sequence[IdsAndLabels], tokens: int = 0) -> Iterator[IdsAndLabels]:
    """All rows, longest first, as [rows, positions] of token ids and of labels with at most max(256, tokens) positions.

    A longer row comes alone. They need no mask: padding stands on the right, where a causal model's tokens do not look.
    """
    waiting = sorted(rows, key=lambda row: -len(row[0]))
    while waiting:
        count = max(1, max(TOGETHER_TOKENS, tokens) // len(waiting[0][0]))
        ids, labels = map(list, zip(*waiting[:count], strict=True))
        del waiting[:count]
        yield pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=IGNORED)


def supervised_logits(
    session: Session, rows: Sequence[IdsAndLabels], dtype: torch.dtype, tokens: int = 0, *, cast: bool = True
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield logits, [positions, vocabulary], and the tokens that they are to predict, of rows `side_by_side`."""
    for ids, labels in side_by_side(rows, tokens):
        wanted = labels[:, 1:].to(session.device)
        learnt = wanted != IGNORED
        with session.casting(cast):
            # the last token predicts nothing, and may be one more than the model has positions for
            logits = logits_at(session.model, ids[:, :-1].to(session.device), learnt)
        yield logits.to(dtype), wanted[learnt].to(logits.device)


class FirstCall:
    """The first call of this model's decoder until these hooks are removed: what it was given, and what came out."""

    def __init__(self, model: Any, hooks: Hooks) -> None:
        self._call: tuple[Any, dict[str, Any]] | None = None
        hooks.after(model.get_decoder(), self._note, with_kwargs=True)  # which is not to keep the model alive

    def _note(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._call is None and hasattr(out, "last_hidden_state"):  # a model that names no decoder returns another
            self._call, self._hidden = (args, kwargs), digest(out.last_hidden_state)
            self._training, self._gradients = decoder.training, torch.is_grad_enabled()
            self._kind = kind = str(out.last_hidden_state.device.type)
            self._autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def repeats(self, model: Any) -> bool | None:
        """Call the decoder again in the same mode; whether the same bits come out. None where there was no call."""
        if self._call is None:
            return None
        (args, kwargs), self._call, decoder = self._call, None, model.get_decoder()
        cast = torch.autocast(self._kind, self._autocast, enabled=self._autocast is not None)
        with model_mode(decoder, self._training), torch.set_grad_enabled(self._gradients), cast:
            return digest(decoder(*args, **kwargs).last_hidden_state) == self._hidden
