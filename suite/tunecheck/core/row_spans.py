"""What the learned parts of many rows have in common: where labels, answers or beginnings were cut off."""

from collections.abc import Collection, Iterable, Sequence

from tunecheck.core.evidence import RowSpan, Window

LABELS_SHIFTED = "labels are the next tokens"
"""What is wrong with rows whose labels are moved by one, in the words of a record."""
PADDING_LEARNED = "padding is supervised"
ENOUGH = 8
"""Rows of which a share says something."""
ROWS_OF_AN_ORDER = 6
"""From so many rows on two passes have the same order by chance less than once in 700 times."""
FEWEST_CUT = 3
"""Rows whose labels end at the same place by accident hardly ever."""


def label_problem(ids: Sequence[int], labels: Sequence[int], ignored: int, ends: Collection[int] = ()) -> str:
    """Return in which way the supervised labels differ from the tokens at their places; "" where they do not.

    One of `ends` may be the last label of an answer: it is then learned where the next turn begins without an end.
    """
    supervised = [at for at, label in enumerate(labels) if label != ignored]
    last = {at for at in supervised if labels[at] in ends and ignored in labels[at + 1 : at + 2]}
    if all(ids[at] == labels[at] or at in last for at in supervised):
        return ""
    known = [at for at in supervised if at + 1 < len(ids)]
    moved = len(known) > 1 and all(labels[at] == ids[at + 1] for at in known)
    return LABELS_SHIFTED if moved else "labels are not the tokens at their place"


def labels_lost(rows: Iterable[RowSpan]) -> str:
    """Return that the labels of rows end at one place of the batch, while their tokens go on; "" where they do not.

    What follows an answer rightly, as a user's turn, begins at another place in each row.
    """
    answers = [row for row in distinct(rows) if row.learned]
    column = max((row.column for row in answers), default=0)
    cut = [row for row in answers if row.behind and row.column == column]
    others = {row.behind for row in answers if row.column < column}
    if len(cut) < FEWEST_CUT or len({row.behind for row in cut}) < 2 or len(others) != 1:
        return ""
    return (
        f"the labels of {len(cut)} of {len(answers)} rows end at column {column} of their batch, before their tokens do"
    )


def answers_lost(rows: Sequence[RowSpan], limit: float) -> str:
    """Return that no token is supervised in more than this share of the rows that are not cut off; "" else."""
    longest = max((row.tokens for row in rows), default=0)
    short = [row for row in distinct(rows) if row.tokens < longest]
    empty = sum(not row.learned for row in short)
    many = empty >= FEWEST_CUT and empty > limit * len(short)
    return f"in {empty} of {len(short)} untruncated rows no token is supervised" if many else ""


def beginnings_lost(rows: Sequence[RowSpan]) -> int:
    """Return how many rows end in a learned end, at the longest length: those of which the beginning is cut off.

    0 where their answers have nearly all the same length, so that whole rows may have, too.
    """
    longest = max((row.tokens for row in rows), default=0)
    full = [r for r in rows if r.tokens == longest and r.ended and not r.behind and r.stretches == 1]
    return len(full) if len({row.learned for row in full}) > 2 else 0


def distinct(rows: Iterable[RowSpan]) -> list[RowSpan]:
    """Return each row once, however many epochs it came in."""
    return list({(row.row, row.answer): row for row in rows}.values())


def row_problems(windows: Sequence[Window]) -> dict[str, str]:
    """Return what is wrong with rows, at the first step with an example, each with its kind."""
    found = {kind: (w.step, example) for w in reversed(windows) for kind, example in w.problems.items()}
    return {f"step {step}: {kind} ({example})": kind for kind, (step, example) in found.items()}
