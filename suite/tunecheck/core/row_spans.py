"""What may be wrong with rows, in words that probes and several checks have alike."""

from collections.abc import Collection, Sequence

from tunecheck.core.evidence import Window

LABELS_SHIFTED = "labels are the next tokens"
"""What is wrong with rows whose labels are moved by one, in the words of a record."""
PADDING_LEARNED = "padding is supervised"
BEGUN_LATE = "The prompt's length counts more tokens than the prompt has in the row."
MAY_BEGIN_LATE = "a field of one length may stand between a template and each answer"
ENOUGH, ALIKE = 8, 0.9
"""Rows of which a share says something, and the share that has something in common which is then no accident."""
ROWS_OF_AN_ORDER = 6
"""From so many rows on two passes have the same order by chance less than once in 700 times."""


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


def row_problems(windows: Sequence[Window]) -> dict[str, str]:
    """Return what is wrong with rows, at the first step with an example, each with its kind."""
    found = {kind: (w.step, example) for w in reversed(windows) for kind, example in w.problems.items()}
    return {f"step {step}: {kind} ({example})": kind for kind, (step, example) in found.items()}
