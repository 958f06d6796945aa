"""What the learned parts of many rows have in common: where labels, answers or beginnings were cut off."""

from collections.abc import Collection, Iterable, Sequence

from tunecheck.core.evidence import RowSpan, Window

LABELS_SHIFTED = "labels are the next tokens"
"""What is wrong with rows whose labels are moved by one, in the words of a record."""
PADDING_LEARNED = "padding is supervised"
BEGUN_LATE = "The prompt's length counts more tokens than the prompt has in the row."
MAY_BEGIN_LATE = "a field of one length may stand between a template and each answer"
DOUBTFUL = {
    "padding_ends": (
        "rows have a masked token of padding, which is attended to, behind what is supervised",
        "a script may attend to one token of padding, and end its answers otherwise",
        "The padding token is the mark that ends an answer, and every one of it is masked.",
    ),
    "begins_again": (
        "rows begin with the start token, and have it again where the answer begins",
        "a start token may mark an answer",
        "Prompt and answer are tokenized apart, each with special tokens: pass add_special_tokens=False.",
    ),
    "begins_twice": (
        "rows begin with the same text twice",
        "a task may be to copy what is given",
        "The prompt is put in front of a text that holds it already.",
    ),
    "answers_shown": (
        "rows have their answer in the prompt, too, at one distance before it",
        "a task may be to repeat what is given",
        "The prompt is made of the field that holds the answer.",
    ),
    "begun_astray": (
        "answers begin before the end of a template, or behind it, each at another distance",
        "a text may be learned from the middle on",
        "Another length is taken for the prompt's, as that of the answer, or of its characters.",
    ),
    "users_learned": (
        "rows have the user's turns supervised, and the text before them or assistant turns masked",
        "a model may be trained to write as a user does",
        "The mask is made for other roles, or inverted.",
    ),
    "headers_learned": (
        "rows have the mark that begins the model's turn supervised with the answer, and not the prompt before it",
        "a model may choose who speaks next",
        "The prompt is written without add_generation_prompt=True.",
    ),
}
"""Field of RowsGiven to what it shows, who does so on purpose, and the usual cause."""
ENOUGH = 8
"""Rows of which a share says something."""
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


def cut_off(rows: Sequence[RowSpan], declared: int | None) -> tuple[int, int]:
    """Return the declared length, else that of the longest row, and how many rows of that length lose their end.

    In those no end token is supervised, and the last token is, or nothing.
    """
    longest = declared or max((row.tokens for row in rows), default=0)
    full = (row for row in rows if row.tokens >= longest)
    return longest, sum(not row.ended and (not row.behind or not row.learned) for row in full)


def distinct(rows: Iterable[RowSpan]) -> list[RowSpan]:
    """Return each row once, however many epochs it came in."""
    return list({(row.row, row.answer): row for row in rows}.values())


def row_problems(windows: Sequence[Window]) -> dict[str, str]:
    """Return what is wrong with rows, at the first step with an example, each with its kind."""
    found = {kind: (w.step, example) for w in reversed(windows) for kind, example in w.problems.items()}
    return {f"step {step}: {kind} ({example})": kind for kind, (step, example) in found.items()}
