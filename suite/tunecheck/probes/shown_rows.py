"""A few rows as the model is given them, for a person to read."""

from itertools import groupby, islice
from typing import Any

from tunecheck.core.evidence import RowPiece, RowShown
from tunecheck.probes.reference.given import Row, Show, end_tokens, in_common, rows_of
from tunecheck.training.data import IGNORED
from tunecheck.training.events import Probe
from tunecheck.training.session import Session

MOST_ROWS, MOST_TOKENS = 4, 512
"""Rows that a trace shows, and tokens of each without padding: rows are private, and long ones say nothing more."""
MOST_PADDING = 8
"""Different tokens of padding that are shown, which should be one."""


class ShownRowsProbe(Probe[RowShown]):
    """Keeps the first rows of the first step: which text is learned, read alone, or padding."""

    def backward_end(self, session: Session, step: int) -> None:
        if step:
            return
        ends, _ = end_tokens(session.tokenizer, session.model)
        decode = getattr(session.tokenizer, "decode", lambda tokens: "".join(f"{token} " for token in tokens))
        run: Any = session.run
        given = (row for batch in session.window for row in rows_of(batch))
        for row in (each.without_padding() for each in islice(given, MOST_ROWS)):
            seen = RowShown(
                pieces=pieces_of(row, decode),
                tokens=len(row.tokens),
                learned=sum(label != IGNORED for label in row.labels),
                longest=run.longest if hasattr(run, "longest") else run.data.max_length,
                ended=row.tokens[-1] in ends if row.tokens and ends else None,
            )
            self.emit(seen)


def pieces_of(row: Row, decode: Show) -> tuple[RowPiece, ...]:
    """Return the row in pieces; beyond MOST_TOKENS its middle is cut. Padding that is learned is learned."""
    pairs = zip(row.labels, row.mask, strict=True)
    kinds: list[Any] = ["learned" if label != IGNORED else "context" if keep else "padding" for label, keep in pairs]
    places = [at for at, kind in enumerate(kinds) if kind != "padding"]
    for at in places[MOST_TOKENS // 2 : -(MOST_TOKENS // 2)]:
        kinds[at] = "cut"
    pieces, before = [], list[int]()
    for kind, group in groupby(zip(kinds, row.ids, row.labels, strict=True), key=lambda token: token[0]):
        held = [(token, label) for _, token, label in group]
        tokens, other = [token for token, _ in held], [label for _, label in held if label >= 0]
        if kind == "padding":
            text = decode(list(dict.fromkeys(tokens))[:MOST_PADDING])
        elif kind == "cut":
            text = ""
        else:  # with the tokens before: decoded alone, a word may lose its space and a character its bytes
            whole = decode([*before, *tokens])
            text = whole[in_common(decode(before), whole) :]
        before = [] if kind in ("padding", "cut") else [*before, *tokens]
        wanted = decode(other) if kind == "learned" and other != tokens else ""
        pieces.append(RowPiece(kind=kind, tokens=len(tokens), text=text, labels=wanted))
    return tuple(pieces)
