"""What the model is given: digests of every batch, and a few rows for a person to read."""

from collections.abc import Callable, Sequence
from itertools import groupby, islice, pairwise, takewhile
from typing import Any

import torch

from tunecheck.core.evidence import ClassTargets, RowPiece, RowShown, StepInputs
from tunecheck.probes.reference.given import end_tokens, without_padding
from tunecheck.probes.reference.loss_graph import graph_of, straight_back
from tunecheck.training.data import IGNORED, Batch
from tunecheck.training.events import Probe, probing
from tunecheck.training.session import Session

MOST_NODES = 64
"""Functions next to a loss among which its cross entropies are looked for."""


class StepInputsProbe(Probe):
    """Notes the digests of every step's batches, and the classes that heads are to tell, so that steps can be compared.

    Nothing needs to be declared for it.
    """

    emits = (StepInputs, ClassTargets)

    def start(self, session: Session) -> None:
        """Know no head yet."""
        self._heads: dict[int, tuple[torch.Tensor, list[int]]] = {}
        """Identity of each head's tensor to that, and the classes of its rows."""

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Look at each loss that is about to be differentiated."""
        self._window = window
        self.hooks.function(torch.autograd, "backward", before=self._differentiated)

    def _differentiated(self, tensors: Any, *_: Any, **__: Any) -> None:
        for node in islice(graph_of(getattr(tensors, "grad_fn", None)), 0 if probing() else MOST_NODES):
            rows = {len(batch.keys) for batch in self._window}
            if node.name() == "NllLossBackward0" and node._saved_target.numel() in rows:
                learned = node._saved_target[node._saved_target != node._saved_ignore_index]
                if (head := _head_of(node, node._saved_self.shape[-1])) is not None:
                    self._heads.setdefault(id(head), (head, []))[1].extend(learned.tolist())

    def end(self, session: Session) -> None:
        """Tell how many classes each head was to tell."""
        for head, learned in self._heads.values():
            changes = sum(one != other for one, other in pairwise(learned))
            self.emit(ClassTargets(outputs=len(head), rows=len(learned), classes=len({*learned}), changes=changes))
        self._heads.clear()

    def backward_end(self, session: Session, step: int) -> None:
        """Record this window, which a loop fills until now."""
        self.hooks.remove()
        window = session.window
        opaque = any(batch.opaque for batch in window)
        self.emit(StepInputs(step=step, digests=tuple(batch.digest for batch in window), opaque=opaque))


def _head_of(entropy: Any, classes: int) -> torch.Tensor | None:
    """Return a trained tensor of the linear layer whose outputs are these classes' scores; None without one.

    Scores of candidates, of which the first one may always be right, come of no such layer.
    """
    softmax = entropy.next_functions[0][0]
    layer = straight_back(softmax.next_functions[0])[0] if softmax.name() == "LogSoftmaxBackward0" else None
    for edge in () if layer is None else layer.next_functions:
        while edge[0] is not None and edge[0].name() in ("TBackward0", "ToCopyBackward0"):
            edge = edge[0].next_functions[0]
        tensor = getattr(edge[0], "variable", None)
        if isinstance(tensor, torch.Tensor) and tensor.shape[:1] == (classes,):
            return tensor
    return None


MOST_ROWS, MOST_TOKENS = 4, 512
"""Rows that a trace shows, and tokens of each without padding: rows are private, and long ones say nothing more."""
MOST_PADDING = 8
"""Different tokens of padding that are shown, which should be one."""
Decode = Callable[[list[int]], str]


class ShownRowsProbe(Probe):
    """Keeps the first rows of the first step: which text is learned, read alone, or padding."""

    emits = (RowShown,)

    def backward_end(self, session: Session, step: int) -> None:
        if step:
            return
        ends, _ = end_tokens(session.tokenizer, session.model)
        decode = getattr(session.tokenizer, "decode", _numbers)
        run: Any = session.run
        longest = run.longest if hasattr(run, "longest") else run.data.max_length
        given = (row for b in session.window for row in zip(b.input_ids, b.labels, b.attention_mask, strict=True))
        for row in islice(given, MOST_ROWS):
            ids, labels, given_mask = (part.tolist() for part in row)
            mask = without_padding(ids, labels, given_mask)
            read = [token for token, keep in zip(ids, mask, strict=True) if keep]
            self.emit(
                RowShown(
                    pieces=pieces_of(ids, labels, mask, decode),
                    tokens=len(read),
                    learned=sum(label != IGNORED for label in labels),
                    longest=longest,
                    ended=read[-1] in ends if read and ends else None,
                )
            )


def pieces_of(ids: Sequence[int], labels: Sequence[int], mask: Sequence[int], decode: Decode) -> tuple[RowPiece, ...]:
    """Return the row in pieces; beyond MOST_TOKENS its middle is cut. Padding that is learned is learned."""
    kinds: list[Any] = [
        "learned" if label != IGNORED else "context" if keep else "padding"
        for label, keep in zip(labels, mask, strict=True)
    ]
    places = [at for at, kind in enumerate(kinds) if kind != "padding"]
    for at in places[MOST_TOKENS // 2 : -(MOST_TOKENS // 2)]:
        kinds[at] = "cut"
    pieces, before = [], list[int]()
    for kind, group in groupby(zip(kinds, ids, labels, strict=True), key=lambda token: token[0]):
        held = [(token, label) for _, token, label in group]
        tokens, other = [token for token, _ in held], [label for _, label in held if label >= 0]
        if kind == "padding":
            text = decode(list(dict.fromkeys(tokens))[:MOST_PADDING])
        elif kind == "cut":
            text = ""
        else:  # with the tokens before: decoded alone, a word may lose its space and a character its bytes
            shown, whole = decode(before), decode([*before, *tokens])
            same = takewhile(lambda pair: pair[0] == pair[1], zip(shown, whole, strict=False))
            text = whole[sum(1 for _ in same) :]
        before = [] if kind in ("padding", "cut") else [*before, *tokens]
        wanted = decode(other) if kind == "learned" and other != tokens else ""
        pieces.append(RowPiece(kind=kind, tokens=len(tokens), text=text, labels=wanted))
    return tuple(pieces)


def _numbers(tokens: Sequence[int]) -> str:
    return "".join(f"{token} " for token in tokens)
