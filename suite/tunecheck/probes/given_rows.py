"""The rows that a training of another's was given: which tokens are supervised, and whether rows come again.

Nothing is known of the texts that they were made from, so they are judged by what holds for every row of a causal
model: a label is the token at its place, padding is not learned, the end of an answer is.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from tunecheck.core.evidence import BaseTokens, RowsGiven, RowSpan, RowSpans, Window
from tunecheck.probes.reference import given
from tunecheck.probes.reference.measures import random_digest
from tunecheck.probes.reference.vocabulary import base_tokens_of
from tunecheck.training.data import IGNORED
from tunecheck.training.events import Probe
from tunecheck.training.session import Session

MOST_ROWS = 100_000
"""Rows of a data set that are read to count how often it holds one that came again."""
TEXTS = {"supervised": True, "unsupervised": False}
"""Expectation of a row's learned text to whether it is to match."""
MOST_UNMET, TEXT_SHOWN = 1000, 80
"""Rows that are kept which do not meet an expectation, and characters of each."""
HEAD = 4
"""Tokens at a row's beginning, more than a start token and a role, by which rows of one template are told."""
Ids = tuple[int, ...]

ANY, ANOTHER = "4f1d", "9c7e"
"""Contents of messages, found again in what the template makes of them."""


class GivenRowsProbe(Probe[Window | RowsGiven | RowSpans | BaseTokens]):
    """Audits every window that is listened to."""

    def start(self, session: Session) -> None:
        self._dataset = session.batches.dataset  # type: ignore[attr-defined]
        self._size: int | None = None
        with suppress(TypeError):  # of a stream
            self._size = len(self._dataset)
        # a resume begins in the middle of an epoch
        share = session.batches.done_share  # type: ignore[attr-defined]
        self._epoch_rows = None if self._size is None else round(self._size * (1 - share))
        self._done: frozenset[str] = session.batches.done_rows  # type: ignore[attr-defined]
        self._replayed: list[Ids] = []
        self._seen: Counter[Ids] = Counter()
        self._rows = 0
        self._counts = Counter(end_tokens_supervised=0, end_tokens_masked=0, first_token_supervised=0, unsupervised=0)
        """Fields of RowsGiven that count what single rows have."""
        self._spans: list[RowSpan] = []
        self._beginnings: list[given.Beginning] = []
        self._first_positions: list[int] = []
        self._starts: list[Ids] = []
        self._before_answers: set[Ids] = set()
        self._answered: list[tuple[Ids, Ids]] = []
        self._whole: list[Ids | None] = []
        """Rows all of which is learned; None for the others."""
        self._micro_batches = 0
        self._ends, self._marks = given.end_tokens(session.tokenizer, session.model)
        self._start = getattr(session.tokenizer, "bos_token_id", None)
        self._padding = getattr(session.tokenizer, "pad_token_id", None)
        self._show = getattr(session.tokenizer, "decode", lambda tokens: f"token {' '.join(map(str, tokens))}")
        run: Any = session.run
        known = hasattr(session.tokenizer, "decode")
        self._template = turns_of(session.tokenizer) if known else None
        self._wanted = {key: run.expected[key] for key in TEXTS if key in run.expected and known}
        self._unmet: dict[str, list[str]] = {key: [] for key in self._wanted}
        tokens = {token for row in session.batches.train for token in row.input_ids}
        if known and (seen := base_tokens_of(session.model, session.tokenizer, session.folder, tokens)) is not None:
            self.emit(seen)

    def step_begin(self, session: Session, step: int, window: object) -> None:
        self._state = random_digest(session.device)

    def backward_end(self, session: Session, step: int) -> None:
        problems: dict[str, str] = {}
        inputs: dict[str, str] = {}
        spans: list[RowSpan] = []
        supervised = sum(batch.supervised_tokens for batch in session.window)
        for batch in session.window:
            held = given.rows_of(batch)
            for as_given in held:
                row = as_given.without_padding()
                self._starts.append(row.tokens[:HEAD])
                spans.append(row.span(micro_batch=self._micro_batches, ends=self._marks, show=self._show))
                self._count(row.tokens, spans[-1].row)
                self._audit(row, problems, shown=row is not as_given)
                for problem in as_given.input_problems(session.tokenizer):
                    inputs.setdefault(problem, repr(self._show(row.ids[:16])))
                self._beginnings.append(row.beginning)
                self._first_positions.append(as_given.first_position)
                self._before_answers |= {row.before_answer} - {()}
                self._whole.append(row.tokens if row.is_whole else None)
                self._answered += [row.prompt_and_answer(self._marks)] if row.before_answer else []
                named = self._padding not in (None, self._start, *self._ends) and not spans[-1].ended
                self._counts["padding_ends"] += named and as_given.padding_ends(self._padding)
                self._compare(row.labels)
            learned = batch.labels[:, 1:] != IGNORED
            if batch.sees is not None and bool((batch.sees.diagonal(1, dim1=1, dim2=2) & learned).any()):
                problem = "the attention mask shows what is learned to the position that predicts it"
                inputs.setdefault(problem, repr(self._show(held[0].ids[:16])))
            self._micro_batches += 1
        if given.starts_twice(self._starts, session.tokenizer, session.model):
            problems.setdefault("the start token is doubled", repr(self._show([*self._starts[0]])))
        self._spans += spans
        rows = tuple(span.row for span in spans)
        seen = Window(
            step=step,
            digests=tuple(batch.digest for batch in session.window),
            rows=rows,
            expected_rows=rows,
            supervised_tokens=supervised,
            expected_supervised_tokens=supervised,
            tokens=sum(batch.tokens for batch in session.window),
            random_state=self._state,
            problems=problems,
            inputs=inputs,
        )
        self.emit(seen)

    def end(self, session: Session) -> None:
        again = {ids: times for ids, times in self._seen.items() if times > 1}
        held = _held(self._dataset, self._size, wanted) if (wanted := {*again, *self._replayed}) else Counter()
        repeated = [ids for ids, times in again.items() if held is not None and 0 < held[ids] < times]
        replayed = [ids for ids in self._replayed if held is not None and held[ids] == 1]
        seen = RowsGiven(
            rows=self._rows,
            dataset_rows=self._size,
            repeated=tuple(repr(self._show(ids[:16])) for ids in repeated),
            uncertain=sum(held is None or not held[ids] for ids in again),
            replayed=tuple(repr(self._show(ids[:16])) for ids in replayed),
            resumed_after=len(self._done),
            padded_before=given.padded_before(self._beginnings),
            positions_from=min(self._first_positions, default=0),
            begun_late=given.begun_late(self._before_answers),
            answers_shown=given.answers_shown(self._answered),
            begun_astray=given.begun_astray(self._answered),
            prompts_share=given.prompts_share(self._whole),
            **self._counts,
            expected={key: tuple(texts) for key, texts in self._unmet.items()},
        )
        self.emit(seen)
        ends, alike = tuple(sorted(self._ends)), len({*self._starts}) == 1
        self.emit(RowSpans(rows=tuple(self._spans), end_tokens=ends, begin_alike=alike))

    def _count(self, row: Ids, name: str) -> None:
        """Count the row, unless the first epoch is over."""
        if self._epoch_rows is None or self._rows < self._epoch_rows:
            self._rows += 1
            self._seen[row] += 1
            if name in self._done:
                self._replayed.append(row)

    def _compare(self, labels: list[int]) -> None:
        if not self._wanted:
            return
        text = str(self._show([label for label in labels if label != IGNORED]))
        for key, expression in self._wanted.items():
            if bool(re.search(expression, text)) != TEXTS[key] and len(self._unmet[key]) < MOST_UNMET:
                self._unmet[key].append(repr(text[:TEXT_SHOWN]))

    def _audit(self, row: given.Row, problems: dict[str, str], *, shown: bool) -> None:
        """Look at one row; `shown` says whether its padding is attended to."""
        show, real, supervised = self._show, row.kept, any(label != IGNORED for label in row.labels)
        for problem, example in row.label_problems(show, self._ends):
            problems.setdefault(problem, example)
        if self._start is not None and row.tokens[:2] == (self._start, self._start):
            problems.setdefault("the start token is doubled", repr(show(row.ids[:8])))
        self._counts["unsupervised"] += not supervised
        if self._start not in (None, self._padding, *self._ends):
            self._counts["begins_again"] += row.begins_again(self._start, self._ends)
        if self._template is not None and supervised:
            pieces = groupby(real, lambda pair: pair[1] != IGNORED)
            texts = [(str(show([token for token, _ in piece])), learned) for learned, piece in pieces]
            self._counts["users_learned"] += self._template.user_alone(texts)
            answers = (text for text, learned in texts[1:] if learned)
            self._counts["headers_learned"] += any(text.startswith(self._template.own) for text in answers)
        self._counts["first_token_supervised"] += len(real) > 1 and real[1][1] != IGNORED
        self._counts["beginnings"] += row.is_beginning
        self._counts["begins_twice"] += row.begins_twice
        if self._template is not None and real and real[-1][1] != IGNORED:
            text = str(show([*row.tokens]))
            turns, left = self._template.unfilled(text)
            unopened = not turns and self._template.users in text
            self._counts.update(turns=turns, turns_unfilled=left, turns_unopened=unopened)
        for (_, before), (token, label) in pairwise(real):
            if token in self._ends and before != IGNORED:
                self._counts["end_tokens_supervised" if label != IGNORED else "end_tokens_masked"] += 1
                self._counts["ends_or_padding"] += label == IGNORED and shown


def _held(dataset: Any, size: int | None, wanted: set[Ids]) -> Counter[Ids] | None:
    """Return how often the data set holds each of these rows; None where its rows are not tokens, or too many."""
    if size is None or size > MOST_ROWS or not hasattr(dataset, "__getitem__"):
        return None
    held: Counter[Ids] = Counter()
    for number in range(size):
        row = dataset[number]
        if (ids := row.get("input_ids") if hasattr(row, "get") else None) is None:
            return None
        if (found := tuple(ids.tolist() if hasattr(ids, "tolist") else map(int, ids))) in wanted:
            held[found] += 1
    return held


@dataclass(frozen=True, slots=True)
class Turns:
    """What a chat template writes before a message."""

    own: str
    """Before the model's, as a prompt for it ends."""
    users: str
    ends: tuple[str, ...]
    """What may stand at the end of a conversation."""

    def unfilled(self, text: str) -> tuple[int, int]:
        """Return how many of the model's own turns a text has, and how many of them are empty beside another one.

        A turn of its own after a user's may be empty on purpose. One more after that is a prompt that was left there,
        and two marks with nothing between them are one that was written twice.
        """
        marks = self._marks(text)
        places = [*marks, (len(text), len(text), False)]
        left = 0
        for number, (_, end, own) in enumerate(marks):
            following, _, again = places[number + 1]
            content = text[end:following].strip()
            twice = again and not content
            for mark in self.ends:
                content = content.replace(mark, "")
            left += own and (twice or (places[number - 1][2] and not content.strip()))
        return sum(own for _, _, own in marks), left

    def _marks(self, text: str) -> list[tuple[int, int, bool]]:
        """Return where each mark of a turn begins and ends, and whether it is the model's own."""
        either = re.compile("|".join(map(re.escape, sorted((self.own, self.users), key=len, reverse=True))))
        return [(found.start(), found.end(), found.group() == self.own) for found in either.finditer(text)]

    def user_alone(self, pieces: Sequence[tuple[str, bool]]) -> bool:
        """Return whether a user's turn is learned, and what stands before the first one, or one of the model's, is not.

        `pieces` are a row's text, each with whether it is learned. Marks count for nothing.
        """
        text = "".join(words for words, _ in pieces)
        marks, learned = self._marks(text), [whether for words, whether in pieces for _ in words]
        for mark in self.ends:
            text = text.replace(mark, " " * len(mark))
        kinds = {True: set[float](), False: set[float](), None: set[float]()}
        begins = [(0, None), *((end, own) for _, end, own in marks)]
        for (begin, own), end in zip(begins, [*(at for at, _, _ in marks), len(text)], strict=True):
            if words := [learned[at] for at in range(begin, end) if text[at].isalnum()]:
                kinds[own].add(round(sum(words) / len(words), 1))
        return bool(marks) and kinds[False] == {1.0} and 0.0 in kinds[True] | kinds[None]


def turns_of(tokenizer: Any) -> Turns | None:
    """Return what the tokenizer's chat template writes; None where it has none, or none that marks the model's turn."""
    with suppress(Exception):  # of the template's own code, which may refuse such messages
        messages = [{"role": "user", "content": ANY}, {"role": "assistant", "content": ANOTHER}]
        asked = str(tokenizer.apply_chat_template(messages[:1], tokenize=False))
        prompt = str(tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True))
        answered = str(tokenizer.apply_chat_template([*messages, messages[0]], tokenize=False))
        own = prompt.removeprefix(asked)
        between = answered.partition(ANOTHER)[2].partition(ANY)[0]
        users = between.removeprefix(end) if (end := asked.partition(ANY)[2]) else between
        special = [getattr(tokenizer, f"{name}_token", None) for name in ("bos", "eos", "pad")]
        if prompt.startswith(asked) and own.strip() and users.strip() and own.strip() not in answered.partition(own)[0]:
            return Turns(own.strip(), users.strip(), tuple(filter(None, [end.strip(), *special])))
    return None
