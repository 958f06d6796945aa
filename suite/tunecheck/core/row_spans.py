"""What may be wrong with rows, in words that probes and several checks have alike."""

from collections.abc import Sequence

from tunecheck.core.evidence import Window

LABELS_SHIFTED = "labels are the next tokens"
"""What is wrong with rows whose labels are moved by one, in the words of a record."""
PADDING_LEARNED = "padding is supervised"
BEGUN_LATE = "The mask's prompt length is longer than the prompt in the row."
MAY_BEGIN_LATE = "a field of one length may stand between a template and each answer"
PROMPTS_WHOLE = "Nothing sets the labels of prompts to -100, so the loss counts them like answers."
MAY_LEARN_PROMPTS = "a model may learn prompts as text, if answers are short"
ENOUGH, ALIKE = 8, 0.9
"""Rows of which a share says something, and the share that has something in common which is then no accident."""
ROWS_OF_AN_ORDER = 6
"""From so many rows on two passes have the same order by chance less than once in 700 times."""


def row_problems(windows: Sequence[Window]) -> dict[str, str]:
    """Return what is wrong with rows, at the first step with an example, each with its kind."""
    found = {kind: (w.step, example) for w in reversed(windows) for kind, example in w.problems.items()}
    return {f"step {step}: {kind} ({example})": kind for kind, (step, example) in found.items()}
