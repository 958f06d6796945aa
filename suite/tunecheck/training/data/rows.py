"""Rows of an instruction data set, and a row as tokens: the prompt as it is served, the answer, the end token.

Only the last two are supervised.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunecheck.core.errors import DataError
from tunecheck.core.records import INSTRUCTION, read_records

ALPACA = "### Instruction:\n{instruction}\n\n### Response:\n"
"""The short Alpaca prompt (stanford_alpaca's template less its preamble, which would double a row's length)."""

IGNORED = -100
"""Label of a token that is not supervised, as torch's cross entropy has it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction with its answer."""

    key: str
    """Split and line number, from 0: "train:17"."""
    instruction: str
    response: str


def read_rows(path: Path, split: str) -> list[Row]:
    """Return all rows of this file.

    Raises BadRow with file and line for anything that is not a row, and for an empty file.
    """
    records = read_records(path, *INSTRUCTION)
    return [Row(f"{split}:{number}", **record) for number, record in enumerate(records)]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row as token ids with their labels, unpadded."""

    key: str
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    """The token id where it is supervised (answer and end token), -100 elsewhere."""


def prompt_text(instruction: str, tokenizer: Any, template: str) -> str:
    """What the model reads before it answers, in training and in generation alike."""
    if template == "alpaca":
        return ALPACA.format(instruction=instruction)
    if tokenizer.chat_template is None:
        raise DataError("data.template is chat, but this tokenizer has no chat template: use alpaca")
    messages = [{"role": "user", "content": instruction}]
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def prompt_ids(instruction: str, tokenizer: Any, template: str) -> list[int]:
    """Token ids of the prompt.

    A chat template writes its special tokens itself, so the tokenizer must not add them again.
    """
    text = prompt_text(instruction, tokenizer, template)
    return list(tokenizer(text, add_special_tokens=template == "alpaca")["input_ids"])


def encode(row: Row, tokenizer: Any, template: str) -> Tokens:
    """Prompt, answer and end token, the last two supervised."""
    prompt = prompt_ids(row.instruction, tokenizer, template)
    answer = [*tokenizer(row.response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Tokens(row.key, (*prompt, *answer), (*[IGNORED] * len(prompt), *answer))
