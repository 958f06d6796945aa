"""Turns of a chat in text: an empty one of the model's behind its answer is a prompt that was left there."""

from __future__ import annotations

from functools import partial

import jinja2
import pytest

from tunecheck.probes.given_rows import turns_of

ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)


class Tokenizer:
    """Has a template, and no tokens."""

    bos_token, eos_token, pad_token = "<s>", "</s>", None

    def __init__(self, template):
        self._template = jinja2.Template(template)

    def apply_chat_template(self, messages, *, tokenize=False, add_generation_prompt=False):
        """Return the text."""
        return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def chat(*answers):
    """Return a conversation with these answers."""
    pairs = [({"role": "user", "content": "why"}, {"role": "assistant", "content": answer}) for answer in answers]
    return [message for pair in pairs for message in pair]


@pytest.mark.parametrize("template", [ZEPHYR, CHATML], ids=["zephyr", "chatml"])
@pytest.mark.parametrize("between", ["", "<s>", "</s>"])
def test_a_prompt_that_was_left_behind_an_answer_is_found(template, between):
    """At the end of a row, and before the next conversation of a packed one; an empty answer to somebody is none."""
    tokenizer = Tokenizer(template)
    turns = turns_of(tokenizer)
    made = partial(tokenizer.apply_chat_template, chat("so", ""))
    whole, left = (made(add_generation_prompt=prompt) + between for prompt in (False, True))

    assert turns.unfilled(3 * whole) == (6, 0)
    assert turns.unfilled(3 * left) == (9, 3)
    assert turns.unfilled("no turns at all") == (0, 0)
    assert turns.unfilled(3 * whole.replace("so", f"{turns.own}\nso")) == (9, 3)


@pytest.mark.parametrize("tokenizer", [Tokenizer(MISTRAL), Tokenizer("{{ 1 / 0 }}"), object()])
def test_templates_without_a_mark_of_the_models_turn_are_left_alone(tokenizer):
    """So is a tokenizer without a template."""
    assert turns_of(tokenizer) is None


def learned(text, *parts):
    """Pieces of a text, of which these parts are learned."""
    pieces, at = [], 0
    for part in parts:
        begin = text.index(part, at)
        pieces += [(text[at:begin], False), (part, True)]
        at = begin + len(part)
    return [*pieces, (text[at:], False)]


TALK = [
    {"role": role, "content": words} for role, words in (("system", "be kind"), ("user", "why"), ("assistant", "so"))
]


@pytest.mark.parametrize("template", [ZEPHYR, CHATML], ids=["zephyr", "chatml"])
@pytest.mark.parametrize(
    ("system", "parts", "alone"),
    [
        (True, ["so"], False),
        (True, ["be kind", "why", "so"], False),
        (True, ["why", "so"], True),
        (False, ["why", "so"], False),
        (True, ["why"], True),
        (False, ["why"], True),
        (True, [], False),
        (True, ["be kind"], False),
    ],
)
def test_a_users_turn_is_learned_with_all_others(template, system, parts, alone):
    """Not where the system's text, or the answers, are masked."""
    tokenizer = Tokenizer(template)
    text = "<s>" + tokenizer.apply_chat_template(TALK if system else TALK[1:])
    assert turns_of(tokenizer).user_alone(learned(text, *parts)) is alone
    assert not turns_of(tokenizer).user_alone([("why so", True)])
