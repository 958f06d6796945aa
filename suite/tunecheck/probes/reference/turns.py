"""Turns of a chat as its template writes them, counted in text: which of the model's own are never filled."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

ANY, ANOTHER = "4f1d", "9c7e"
"""Contents of messages, found again in what the template makes of them."""


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
        end = asked.partition(ANY)[2]
        users = between.removeprefix(end) if end else between
        special = [getattr(tokenizer, f"{name}_token", None) for name in ("bos", "eos", "pad")]
        if prompt.startswith(asked) and own.strip() and users.strip() and own.strip() not in answered.partition(own)[0]:
            return Turns(own.strip(), users.strip(), tuple(filter(None, [end.strip(), *special])))
    return None
