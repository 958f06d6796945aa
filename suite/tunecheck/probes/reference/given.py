"""A row as a model is given it, in plain numbers: whether mask and positions fit its tokens, and what is learned."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, count, groupby, pairwise, takewhile
from typing import Any

from tunecheck.core.evidence import RowSpan
from tunecheck.core.row_spans import LABELS_SHIFTED, PADDING_LEARNED
from tunecheck.training.data import IGNORED, Batch

FEWEST_STEPS, STILL_SHARE = 4, 0.25
"""Steps from token to token by which positions are judged, and the share of them that may go nowhere: documents of one
token, as a cut leaves them, stand at 0 beside the next one's first token."""
END_RUN = 3
"""End tokens at the beginning of a row that are padding: a packed row may begin with the end of another."""
FEWEST_ROWS, FEWEST_RUNS = 8, 3
"""Rows, and lengths of what they begin with, from which padding is told."""
TAIL = 4
"""Tokens at a row's end, more than a template writes behind an end token: an answer is learned there."""
WORD_BEGINS = "\u0120", "\u2581"
"""What the first token of a word begins with, in byte-level BPE and in SentencePiece."""
MOST_LATE, TEMPLATE_END = 6, 3
"""Tokens at most by which answers are masked too far, and those of a template's end in front of them."""
FEWEST_AGAIN = 8
"""Tokens of a prompt that may stand twice, more than a few marks or a short word."""
Beginning = tuple[int, int, int]
Show = Callable[[list[int]], str]


@dataclass(frozen=True)
class Row:
    """One row of a batch."""

    ids: list[int]
    labels: list[int]
    mask: list[int]
    """1 where there is a token."""
    positions: list[int] | None = None

    @cached_property
    def kept(self) -> list[tuple[int, int]]:
        """Return the tokens that are attended to, each with its label."""
        return list(compress(zip(self.ids, self.labels, strict=True), self.mask))

    @cached_property
    def learned(self) -> list[int]:
        """Return which of these tokens are learned."""
        return [at for at, (_, label) in enumerate(self.kept) if label != IGNORED]

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        return tuple(compress(self.ids, self.mask))

    def label_problems(self, show: Show, ends: Collection[int] = ()) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the labels, whatever text they come from, and an example.

        One of `ends` may be the last label of an answer: it is then learned where the next turn begins without an end.
        """
        ids, labels = self.ids, self.labels
        if any(label != IGNORED and not keep for label, keep in zip(labels, self.mask, strict=True)):
            yield PADDING_LEARNED, repr(show(ids))
        supervised = [at for at, label in enumerate(labels) if label != IGNORED]
        last = {at for at in supervised if labels[at] in ends and IGNORED in labels[at + 1 : at + 2]}
        if wrong := [at for at in supervised if ids[at] != labels[at] and at not in last]:
            known = [at for at in supervised if at + 1 < len(ids)]
            moved = len(known) > 1 and all(labels[at] == ids[at + 1] for at in known)
            example = f"at {show([ids[wrong[0]]])!r} the label is {show([labels[wrong[0]]])!r}"
            yield LABELS_SHIFTED if moved else "labels are not the tokens at their place", example

    def input_problems(self, tokenizer: Any) -> Iterator[str]:
        """Yield what is wrong with attention mask and positions."""
        special = special_tokens(tokenizer, "pad", "bos", "eos", "unk")
        # behind the last token that is attended to lies what no token sees
        last = max((at for at, keep in enumerate(self.mask) if keep), default=0)
        hidden = {token for token, keep in zip(self.ids[:last], self.mask, strict=False) if not keep} - special
        if len(hidden) > 1:  # padding is one token, repeated
            yield "text is not attended to: the attention mask is 0 there"
        if _padded(self.tokens, tokenizer):
            yield "padding on the left is attended to"
        if self.positions is not None and stand_still([*compress(self.positions, self.mask)]):
            yield "positions do not count up"

    @property
    def is_whole(self) -> bool:
        """Return whether all of the row is learned, but for its first token and an end that is masked as padding."""
        return len(self.kept) > 2 and {*range(1, len(self.kept) - 1)} <= {*self.learned}

    @property
    def is_beginning(self) -> bool:
        """Return whether the row is learned from its first token on, and none of its last tokens is."""
        return 1 in self.learned and self.learned[-1] < len(self.kept) - TAIL

    @property
    def before_answer(self) -> tuple[int, ...]:
        """Return the tokens before the first learned one, the nearest first; none where nothing is learned."""
        before = self.tokens[: self.learned[0] if self.learned else 0]
        return before[: -MOST_LATE - TEMPLATE_END - 1 : -1]

    def prompt_and_answer(self, marks: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens before the first learned one, and the learned ones without marks."""
        learned = (self.tokens[at] for at in self.learned)
        return self.tokens[: self.learned[0]], tuple(token for token in learned if token not in marks)

    @property
    def beginning(self) -> Beginning:
        """Return the token that the real ones begin with, how often it comes there unlearned, and the one behind."""
        first = kept[0][0] if (kept := self.kept) else -1
        run = next((at for at, pair in enumerate(kept) if pair != (first, IGNORED)), len(kept))
        return first, run, kept[run][0] if run < len(kept) else -1

    def without_padding(self) -> "Row":
        """Return the row with the padding at its end masked that a script shows to its model.

        It is one token again and again, none of them learned; the first stays, which may be the row's end token. A row
        of which nothing is learned may have been cut off within its prompt, which repeats a token as well.
        """
        ids, labels, end = self.ids, self.labels, len(self.ids)
        if all(label == IGNORED for label in labels):
            return self
        while end > 1 and self.mask[end - 1] and ids[end - 1] == ids[end - 2] and {*labels[end - 2 : end]} == {IGNORED}:
            end -= 1
        return self if end == len(ids) else replace(self, mask=[*self.mask[:end], *[0] * (len(ids) - end)])

    def padding_ends(self, padding: int | None) -> bool:
        """Return whether a single token of padding that is attended to, and not learned, follows a learned token.

        A text holds it there: padding itself is hidden, or comes again and again.
        """
        kept, hidden = self.kept, (padding, IGNORED)
        ends = (at for at in range(1, len(kept)) if kept[at] == hidden and kept[at - 1][1] != IGNORED)
        return any(kept[at + 1 : at + 2] != [hidden] for at in ends)

    def begins_again(self, start: int | None, ends: Collection[int]) -> bool:
        """Return whether a row that begins with the start token has it again where its only answer begins."""
        ids, learned = self.tokens, self.learned
        first = learned[0] if learned else 0
        again = any(ids[at] == start and ids[at - 1] not in ends for at in (first - 1, first) if at > 1)
        return again and ids[0] == start and learned == [*range(first, first + len(learned))]

    @property
    def first_position(self) -> int:
        """Return the position of the first token that is attended to; 0 where none is given."""
        return next(compress(self.positions or (), self.mask), 0)

    @property
    def begins_twice(self) -> bool:
        """Return whether the row begins with the same piece twice, as with a prompt before its prompt and answer."""
        for ids in (self.tokens, self.tokens[1:]):  # a start token may stand before the first
            ends = (end for end in range(FEWEST_AGAIN, len(ids) // 2 + 1) if ids[end : end + 2] == ids[:2])
            if any(ids[:end] == ids[end : 2 * end] and len({*ids[:end]}) > end // 2 for end in ends):
                return True
        return False

    def span(self, *, micro_batch: int, ends: Collection[int], show: Show) -> RowSpan:
        """Return which part of the row is learned."""
        kept, learned = [*compress(count(), self.mask)], self.learned
        answer = [self.kept[place][1] for place in learned]
        return RowSpan(
            micro_batch=micro_batch,
            row=row_digest(self.tokens),
            answer=row_digest(answer),
            tokens=len(kept),
            learned=len(learned),
            first=learned[0] if learned else -1,
            column=kept[learned[-1]] + 1 if learned else 0,
            behind=len(kept) - 1 - learned[-1] if learned else len(kept),
            stretches=sum(at - before > 1 for before, at in pairwise(learned)) + bool(learned),
            documents=1 if self.positions is None else max(1, sum(self.positions[at] == 0 for at in kept)),
            last=show(answer[-1:]) if answer else "",
            ended=any(label in ends for label in answer),
        )


def in_common(*sequences: Sequence[object]) -> int:
    """Return with how many equal items all of these begin."""
    return sum(1 for _ in takewhile(lambda items: len({*items}) == 1, zip(*sequences, strict=False)))


def rows_of(batch: Batch) -> list[Row]:
    """Return the rows of a batch. Each of its tensors is read as a whole: reading waits for a GPU."""
    columns = [part.tolist() for part in (batch.input_ids, batch.labels, batch.attention_mask)]
    placed = [None] * len(batch.input_ids) if batch.position_ids is None else batch.position_ids.tolist()
    return [Row(*parts) for parts in zip(*columns, placed, strict=True)]


def _padded(real: Sequence[int], tokenizer: Any) -> bool:
    """Return whether the tokens that are attended to begin with padding."""
    first, run = next(((token, len(list(same))) for token, same in groupby(real)), (None, 0))
    at_an_end = first in special_tokens(tokenizer, "bos", "eos")
    return first in special_tokens(tokenizer, "pad") and run >= (END_RUN if at_an_end else 1)


def padded_before(beginnings: Sequence[Beginning]) -> int:
    """Return how many rows begin with padding that is attended to, of a token that nobody names.

    It comes a varying number of times, and behind it all rows begin with one and the same token, as those without it.
    """
    for padding in {first for first, _, _ in beginnings}:
        runs = [run for first, run, _ in beginnings if first == padding]
        starts = {after if first == padding else first for first, _, after in beginnings}
        many = len(beginnings) >= FEWEST_ROWS and 4 * len(runs) >= len(beginnings)
        if many and len(starts) == 1 and len(set(runs)) >= FEWEST_RUNS and starts != {padding}:
            return len(runs)
    return 0


def answers_shown(rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> int:
    """Return how many answers there are if prompts show all of them at one place of a template, and they differ."""
    places = list[set[tuple[int, ...]]]()
    template = in_common(*(answer for _, answer in rows))  # whose end may be learned
    for prompt, answer in rows:
        size, begins = len(own := answer[template:]), (at for at, token in enumerate(prompt) if own[:1] == (token,))
        found = (at for at in begins if prompt[at : at + size] == own)
        places.append({(len(prompt) - at - size, *prompt[at - 1 : at]) for at in found})  # no end of a longer choice
    return len(rows) if len({*rows}) > 1 and set.intersection(*places) else 0


def begun_astray(rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> int:
    """Return how many answers begin away from the end of a template that others begin on the other side of.

    A piece of it stands in each row once. Answers that begin rightly stand behind one such piece at one distance.
    """
    different, astray = [*dict.fromkeys(rows)], 0
    for ends in _template_ends([prompt + answer for prompt, answer in different]):
        apart = [len(prompt) - end for (prompt, _), end in zip(different, ends, strict=True)]
        sides = sum(by < -1 for by in apart), sum(by > 1 for by in apart)
        if 2 * max(Counter(apart).values()) > len(apart):
            return 0
        astray = max(astray, sum(sides) if min(sides) >= FEWEST_RUNS else 0)
    return astray


def prompts_share(rows: Collection[tuple[int, ...] | None]) -> float:
    """Return which share of rows that are learned whole stands in front of a template's end; 0 without one.

    None stands for a row that is not. A template's beginning stands at one place in all rows, and behind a mark of the
    end nothing differs. A prompt in front of two answers that are compared teaches nothing.
    """
    texts = [row for row in dict.fromkeys(rows) if row is not None] if None not in rows else []
    told = [ends for ends in _template_ends(texts) if len({*ends}) > 1]
    prompts = ({text[:end] for text, end in zip(texts, ends, strict=True)} for ends in told)
    told = [ends for ends, distinct in zip(told, prompts, strict=True) if 2 * len(distinct) > len(texts)]
    behind = ([text[end:] for text, end in zip(texts, ends, strict=True)] for ends in told)
    # padding that is attended to may follow the mark of an end
    told = [ends for ends, tails in zip(told, behind, strict=True) if in_common(*tails) < min(map(len, tails))]
    return max(map(sum, told), default=0) / max(1, sum(map(len, texts)))


def _template_ends(texts: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Yield where each of these rows has the end of a piece that every one of them has once, for each such piece."""
    pieces = {*_pieces_of(texts[0])} if len(texts) >= FEWEST_ROWS else set()
    for text in texts:  # of rows without a template nothing is left after a few
        times = Counter(piece for piece in _pieces_of(text) if piece in pieces) if pieces else Counter()
        pieces = {piece for piece, number in times.items() if number == 1}
    for piece in pieces:
        yield [next(at for at, each in enumerate(_pieces_of(text)) if each == piece) + TEMPLATE_END for text in texts]


def _pieces_of(tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the pieces of a row that are as long as the end of a template."""
    return zip(*(tokens[at:] for at in range(TEMPLATE_END)), strict=False)


def begun_late(before: Collection[tuple[int, ...]]) -> int:
    """Return how many tokens behind the end of a template all answers begin; 0 where they begin with it, or without.

    All rows have the template's last tokens in front of their answers, and these tokens are others in each row.
    """
    columns = [len({*column}) == 1 for column in zip(*before, strict=False)]
    late = next(iter(compress(count(), columns)), 0)
    ends = columns[late : late + TEMPLATE_END]
    return late if len(before) >= FEWEST_ROWS and late <= MOST_LATE and ends == [True] * TEMPLATE_END else 0


def counted_by_words(pieces: Sequence[str], used: Sequence[bool]) -> bool | None:
    """Return whether as many of a row's first tokens are used as it has words; None where each word is one token."""
    # WordPiece marks what goes on with a word by ##, other vocabularies its beginning; punctuation may be of two words
    goes_on = [piece.startswith("##") for piece in pieces]
    if not any(goes_on) and any(begins := [piece.startswith(WORD_BEGINS) for piece in pieces]):
        goes_on = [not begun for begun in begins]
    if not any(goes_on[1:-1]):
        return None
    number, words = sum(used), goes_on.count(False)
    signs = sum(not any(map(str.isalnum, piece)) for piece in pieces)
    return all(used[:number]) and words - 2 * signs <= number <= words


def ends_of(rows: Sequence[Row]) -> dict[str, int]:
    """Return fields of RowsUsed about answers that stand whole behind prompts.

    An end token follows no other token of an answer. The longest rows may be truncated.
    """
    longest = max((len(row.tokens) for row in rows), default=0)
    kept = {row.tokens: row.kept for row in rows if row.before_answer[1:] and len(row.tokens) < longest}
    answers = [pairs for pairs in kept.values() if pairs[-1][1] != IGNORED]
    neighbours = [pair for pairs in answers for pair in pairwise(pairs)]
    within = {token for (token, label), (_, after) in neighbours if IGNORED not in (label, after)}
    last = Counter(pairs[-1][0] for pairs in answers)
    loose = sum(last[token] for token in within)
    return {"answers": len(answers), "alike": max(last.values(), default=0), "loose": loose}


def stand_still(positions: Sequence[int]) -> bool:
    """Return whether a row's positions do not count up: from each token to the next, or from 0 in a new document."""
    steps = list(pairwise(positions))
    still = sum(after <= before and not after == 0 < before for before, after in steps)
    return len(steps) >= FEWEST_STEPS and still > STILL_SHARE * len(steps)


def row_digest(tokens: Sequence[int]) -> str:
    """Return 12 hex digits that tell these tokens from others."""
    return hashlib.sha256(repr(tuple(tokens)).encode()).hexdigest()[:12]


def end_tokens(tokenizer: Any, model: Any) -> tuple[set[int], set[int]]:
    """Return the end tokens, of the tokenizer or else the configuration, and all marks of an end: added tokens, too."""
    named = [getattr(model, name, None) for name in ("generation_config", "config")]
    ends = special_tokens(tokenizer, "eos") or set[int]().union(*(special_tokens(config, "eos") for config in named))
    added = {*(getattr(tokenizer, "added_tokens_decoder", None) or ())}
    return ends, ends | (added - special_tokens(tokenizer, "pad", "bos", "unk"))


def starts_twice(rows: Sequence[Sequence[int]], tokenizer: Any, model: Any) -> bool:
    """Return whether all of several rows begin with two start tokens that the model's configuration alone names.

    Of all rows, since a script's own vocabulary may have a letter at the number that a configuration has by default.
    """
    config = getattr(model, "config", None)
    start = special_tokens(config, "bos") - special_tokens(config, "eos", "pad")
    named = getattr(tokenizer, "bos_token_id", None) is not None
    return not named and len(rows) > 1 and all(len(row) > 1 and {*row[:2]} <= start for row in rows)


def special_tokens(tokenizer: Any, *kinds: str) -> set[int]:
    """Return the ids of these kinds that the tokenizer, or a configuration, has: one, several or none of each."""
    named = (getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds)
    ids = ([held] if isinstance(held, int) else held if isinstance(held, list | tuple) else () for held in named)
    return set[int]().union(*ids)
