"""What `--expect KEY=VALUE` adds to what a training's objects declare. Standard library only."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tunecheck.checks.watched import JUDGED_BY
from tunecheck.core.errors import ConfigError
from tunecheck.core.premises import Fact, Premise, Source, facts
from tunecheck.core.spelling import nearest

SCHEDULES = ("linear", "cosine", "constant")


@dataclass(frozen=True, slots=True)
class Expectation:
    """A key of `--expect`."""

    key: str
    read: Callable[[str], Any]
    """Raises ValueError with the rule that the value breaks."""
    example: str
    meaning: str
    sets: str = ""
    """Key of the run's training that gets the value."""
    premises: tuple[Premise, ...] = ()

    @property
    def opens(self) -> tuple[str, ...]:
        """Checks that are judged by it."""
        return JUDGED_BY.get(self.key, ("as_expected", *["trainable_set"] * (self.key in ("trained", "frozen"))))


def read_expectations(given: Iterable[str], said: str = "--expect") -> dict[str, Any]:
    """Return key to value of these KEY=VALUE. Raises ConfigError with every problem."""
    values: dict[str, Any] = {}
    problems = []
    for words in given:
        key, equals, text = words.partition("=")
        if key not in EXPECTATIONS:
            known = nearest(key, EXPECTATIONS) or f"; known keys: {', '.join(EXPECTATIONS)}"
            problems.append(f"{said} {words}: no key is called {key!r}{known}")
        elif not equals or not text:
            problems.append(f"{said} {words}: has no value; for example --expect {key}={EXPECTATIONS[key].example}")
        elif key in values:
            problems.append(f"{said} {words}: {key} appears twice")
        else:
            try:
                values[key] = EXPECTATIONS[key].read(text)
            except ValueError as error:
                problems.append(f"{said} {words}: {error}; for example {key}={EXPECTATIONS[key].example}")
    if problems:
        raise ConfigError(problems)
    return values


def declare(run: Any, expected: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Have this run, of a model with tensors of these sizes, declare what is expected beside what its objects do."""
    run.expected = dict(expected)
    for key, value in expected.items():
        expectation, where = EXPECTATIONS[key], f"--expect {key}={value}"
        run.sources[f"expected.{key}"] = where
        if expectation.sets:
            setattr(run.training, expectation.sets, value)
        run.premises.update(facts(dict.fromkeys(expectation.premises, where), Source.EXPECTED))
    if expected.keys() & {"trained", "frozen"}:
        _declare_tensors(run, expected, sizes)
    if expected.keys() & {"schedule", "schedule_steps", "warmup_steps", "learning_rate"}:
        _open_schedule(run, expected)


def _declare_tensors(run: Any, expected: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Have the run train tensors of one expression and none of the other, beside what its objects have it train."""
    given = (expected.get(key, "(?!)") for key in ("trained", "frozen"))  # (?!) matches nothing
    learns, rests = ({name for name in sizes if re.search(expression, name)} for expression in given)
    before = set(run.trained)
    known = run.holds(Premise.TRAINED_SET_DECLARED)
    if not known and learns | rests == sizes.keys():  # by both together every tensor is declared
        known, before, run.parameters = True, set(), None
    if known:
        run.premises |= facts({Premise.TRAINED_SET_DECLARED: "--expect trained=... and frozen=..."}, Source.EXPECTED)
    after = (before | learns) - rests
    if run.parameters is not None:
        run.added = run.parameters if run.lora else 0
        run.parameters += sum(sizes[n] for n in after - before) - sum(sizes.get(n, 0) for n in before - after)
    run.trained, run.rests = frozenset(after), tuple(sorted(before & rests))


def _open_schedule(run: Any, expected: Mapping[str, Any]) -> None:
    """Have the rates judged where the expectations and what is declared make a closed form."""
    if run.holds(Premise.SCHEDULE_KNOWN):
        return
    needed = ["schedule", "learning_rate", *(["schedule_steps"] if expected.get("schedule") != "constant" else [])]
    if missing := " and ".join(f"--expect {key}=..." for key in needed if key not in expected):
        run.premises[Premise.SCHEDULE_KNOWN] = Fact(source=Source.OPEN, where=f"the expected schedule lacks {missing}")
    else:
        run.premises[Premise.SCHEDULE_KNOWN] = Fact(source=Source.EXPECTED, where="--expect schedule=...")
        run.training._rate = None


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise ValueError(f"should be a whole number of at least {least}")
        return int(text)

    return number


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise ValueError("should be a number above 0")


def _one_of(*words: str) -> Callable[[str], str]:
    def word(text: str) -> str:
        if text not in words:
            raise ValueError(f"should be one of {', '.join(words)}")
        return text

    return word


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return text


_ALL = (
    Expectation("supervised", _regex, "</answer>$", "every row has supervised text that matches this expression"),
    Expectation("unsupervised", _regex, "Question:", "no row has supervised text that matches this expression"),
    Expectation("trained", _regex, "lm_head", "tensors with a matching name are trained, and each of them changes"),
    Expectation("frozen", _regex, "embed_tokens", "tensors with a matching name are not trained and do not change"),
    Expectation(
        "accumulation",
        _whole(1),
        "4",
        "each optimizer step has this many micro-batches; the last one of an epoch may have fewer",
    ),
    Expectation(
        "loss",
        _one_of("token_mean"),
        "token_mean",
        "the script's own loss is the mean over the supervised tokens of a step",
        premises=(Premise.LOSS_DECLARED, Premise.MEAN_DECLARED),
    ),
    Expectation("learning_rate", _positive, "2e-4", "peak learning rate of the schedule", "learning_rate"),
    Expectation(
        "schedule", _one_of(*SCHEDULES), "cosine", f"schedule after the warm-up: {', '.join(SCHEDULES)}", "lr_scheduler"
    ),
    Expectation("schedule_steps", _whole(1), "1000", "optimizer steps until the end of the schedule", "schedule_steps"),
    Expectation("warmup_steps", _whole(0), "100", "warm-up steps in which the rate rises from 0", "warmup_steps"),
)
EXPECTATIONS = {one.key: one for one in _ALL}
"""Key to what it means, in the order of the docs."""
