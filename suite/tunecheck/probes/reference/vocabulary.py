"""What token ids say, read out of tokenizer.json by our own code: the tokenizer cannot vouch for itself."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tunecheck.core.frozen import Frozen

PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in a byte-level vocabulary (GPT-2's encoder.py); the others follow from U+0100 on."""
_OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
_BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(_OTHERS)}
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary(Frozen):
    """The tokens of a model's folder."""

    tokens: dict[int, str]
    """Each id's token as the file writes it."""
    added: dict[int, str]
    """Special tokens and others that stand for themselves, by id."""
    byte_level: bool
    """Whether characters stand for bytes, as in GPT-2's; else as in SentencePiece's."""
    start: int | None
    end: int | None

    def says(self, ids: Iterable[int]) -> str:
        """The text of these ids, special tokens by their names; unknown ids and broken characters as U+FFFD."""
        return b"".join(map(self._bytes, ids)).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        if token in self.added:
            return self.added[token].encode()
        return (_byte_level if self.byte_level else _sentence_piece)(self.tokens.get(token, "\ufffd"))

    def row_problem(self, ids: Sequence[int], prompt_tokens: int, prompt: str, answer: str) -> str:
        """What a row says instead of its prompt, its answer and the end token; empty when it says just that.

        A start token before the prompt is the tokenizer's own affair, and so is a space before a text, which the
        SentencePiece family adds.
        """
        first = ids[:1] == (self.start,) and not prompt.startswith(self.says(ids[:1]))
        said = (self.says(ids[first:prompt_tokens]), self.says(ids[prompt_tokens:-1]))
        for got, wanted in zip(said, (prompt, answer), strict=True):
            if _plain(got) != _plain(wanted):
                at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), len(got))
                return f"{got[max(0, at - 10) :][:30]!r}, not {wanted[max(0, at - 10) :][:30]!r}"
        if self.end is not None and ids[-1] != self.end:
            return f"it ends with {self.says(ids[-1:])!r}, not {self.says([self.end])!r}"
        return ""


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary of this folder's tokenizer; None without a tokenizer.json, or one without single tokens."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    held = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = held["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        return None
    byte_level = "ByteLevel" in json.dumps([held.get("decoder"), held.get("pre_tokenizer")])
    added = {entry["content"]: entry["id"] for entry in held.get("added_tokens", ())}
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = [names.get(f"{side}_token") for side in ("bos", "eos")]  # older files keep them in a mapping
    start, end = (added.get(str(name["content"] if isinstance(name, dict) else name)) for name in named)
    return Vocabulary(
        tokens={number: token for token, number in vocabulary.items()},
        added={number: content for content, number in added.items()},
        byte_level=byte_level,
        start=start,
        end=end,
    )


@cache  # a row's text is 500 tokens, of which most are in other rows too
def _byte_level(token: str) -> bytes:
    return bytes(_BYTES[character] for character in token) if all(c in _BYTES for c in token) else token.encode()


def _sentence_piece(token: str) -> bytes:
    found = BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else token.replace("\u2581", " ").encode()


def _plain(text: str) -> str:
    """The text as tokenizers that compose characters give it back, less one space before it."""
    return unicodedata.normalize("NFC", text).removeprefix(" ")
