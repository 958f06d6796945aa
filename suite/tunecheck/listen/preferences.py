"""Preference pairs in a Trainer's micro-batches, and rated answers. In the watched process only."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecheck.core.evidence import AnswersRated, PairsGiven
from tunecheck.probes.reference.given import in_common

SHARED = 4
"""Tokens that all prompts of a window begin with, where a template writes them: one of them, and a role."""
Answers = tuple[list[int], ...]
"""Tokens of a prompt, and of its two answers."""
MOST_ROWS = 64
"""Rows of rated answers that are looked at."""
PROMPT_AND_ANSWER = ("prompt", "completion"), ("prompt_ids", "completion_ids"), ("prompt_input_ids", "answer_input_ids")
"""What the columns of a prompt and its answer alone are called, texts before tokens: those may join another way."""
NAMES = ("input_ids", "ids", "")
"""What is behind `chosen_` and `rejected_` in a column of answers, tokens before text."""


def declares_pairs(dataset: Any) -> bool:
    """Return whether the columns of a data set are pairs."""
    columns = _columns(dataset)
    return any({f"{kind}_{name}".rstrip("_") for kind in ("chosen", "rejected")} <= columns for name in NAMES)


def declares_ratings(dataset: Any) -> bool:
    """Return whether the columns of a data set are answers with a label each."""
    columns = _columns(dataset)
    return "label" in columns and any(f"completion_{name}".rstrip("_") in columns for name in NAMES)


def _columns(dataset: Any) -> set[str]:
    return {*(getattr(dataset, "column_names", None) or ())}


def answers_rated(dataset: Any, given: Mapping[str, Any]) -> AnswersRated | None:
    """Return the labels of answers that are rated one by one; None without, or where the data set cannot tell."""
    if "completion_mask" not in given and not any(name.startswith("completion_") for name in given):
        return None
    if (label := given.get("label")) is None or getattr(label, "ndim", 1) != 1 or not hasattr(dataset, "unique"):
        return None
    # rows with a prompt and an answer, as texts, chats or tokens, some of which begin with the prompt again
    columns = next((names for names in PROMPT_AND_ANSWER if {*names} <= _columns(dataset)), ())
    held = (dataset.select_columns(each).with_format(None)[:MOST_ROWS][each] for each in columns)
    rows = [(one, other) for one, other in zip(*held, strict=True) if one and type(one) is type(other)]
    again = sum(other[: len(one)] == one for one, other in rows)
    kinds = tuple(sorted(map(str, dataset.unique("label"))))
    return AnswersRated(rows=len(dataset), kinds=kinds, looked=len(rows), again=again)


def pairs_of(
    step: int, micro_batches: Sequence[Mapping[str, Any]], rows: int | None, before: list[Answers]
) -> PairsGiven | None:
    """Return the pairs of a window, and how many have equal answers; None without. TRL puts chosen answers first.

    The window's pairs are added to those `before`.
    """
    if not (found := [*filter(None, (_halves(given, rows) for given in micro_batches))]):
        return None
    as_long = [pair for pair in found if pair[0].shape == pair[1].shape]  # these alone may be alike
    alike = [bool((one == other).all()) for pair in as_long for one, other in zip(*pair, strict=True)]
    pairs = sum(len(chosen) for chosen, _ in found)
    now = [half for given in micro_batches for half in _answers(given, rows)]
    again, asked = _prompts_again(now, now if len(now) > 1 else [*before, *now])
    before[:] = [*before, *now][-8:]  # where a window has one alone, several tell what all prompts have in common
    return PairsGiven(step=step, pairs=pairs, alike=sum(alike), prompts_again=again, questions_again=asked)


def _answers(given: Mapping[str, Any], rows: int | None) -> Iterator[Answers]:
    """Yield the prompt of each pair and its two answers, where a mask tells the answers, as TRL's collators have it."""
    mask, seen = given.get("completion_mask"), given.get("attention_mask")
    if mask is None or seen is None or rows is None or len(mask) != 2 * rows:
        return
    found = []
    for row, own, real in zip(given["input_ids"].tolist(), mask.tolist(), seen.tolist(), strict=True):
        kept = [(token, answer) for token, answer, keep in zip(row, own, real, strict=True) if keep]
        found.append(tuple([token for token, answer in kept if bool(answer) == which] for which in (False, True)))
    yield from ((*chosen, rejected) for chosen, (_, rejected) in zip(found[:rows], found[rows:], strict=True))


def _prompts_again(pairs: Sequence[Answers], known: Sequence[Answers]) -> tuple[int, int]:
    """Return in how many pairs both answers repeat the prompt with its template, and in how many what is in that.

    What the prompts of the `known` pairs have in common is the template.
    """
    begin, end = (in_common(*(prompt[::way] for prompt, *_ in known)) for way in (1, -1))
    again = asked = 0
    for prompt, *answers in pairs if len(known) > 1 else ():  # a prompt may lack its start token there, or its last one
        parts = [prompt[first : len(prompt) - left] for first in (0, 1) for left in (0, 1)]
        again += begin >= SHARED and all(any(answer[: len(part)] == part for part in parts) for answer in answers)
        inner = prompt[begin : len(prompt) - end - 1]
        asked += begin > 0 and len(inner) >= SHARED and all(answer[: len(inner)] == inner for answer in answers)
    return again, asked


def _halves(given: Mapping[str, Any], rows: int | None) -> tuple[Any, Any] | None:
    """Return the tokens of the chosen and of the rejected answers, [pairs, tokens] each."""
    if "chosen_input_ids" in given and "rejected_input_ids" in given:
        return given["chosen_input_ids"], given["rejected_input_ids"]
    ids = given.get("input_ids")
    return (ids[:rows], ids[rows:]) if ids is not None and rows is not None and len(ids) == 2 * rows else None
