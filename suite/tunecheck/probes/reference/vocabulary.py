"""What token ids say by tokenizer.json alone, decoded by its library: the tokenizer in use cannot vouch for itself."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunecheck.core.frozen import Frozen


class Vocabulary(Frozen):
    """The tokens of a model's folder."""

    decoder: Any
    """The library's own tokenizer of the file, around which transformers puts another."""
    start: int | None
    end: int | None

    @property
    def size(self) -> int:
        """Ids up to the last one, added tokens included."""
        return max(self.decoder.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def says(self, ids: Sequence[int]) -> str:
        """The text of these ids, special tokens by their names; broken characters as U+FFFD."""
        return str(self.decoder.decode(list(ids), skip_special_tokens=False))

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
    """The vocabulary of this folder's tokenizer; None without a tokenizer.json."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    decoder: Any = Tokenizer.from_file(str(path))
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = [names.get(f"{side}_token") or "" for side in ("bos", "eos")]  # older files keep them in a mapping
    start, end = (decoder.token_to_id(str(name["content"] if isinstance(name, dict) else name)) for name in named)
    return Vocabulary(decoder=decoder, start=start, end=end)


def _plain(text: str) -> str:
    """The text as tokenizers that compose characters give it back, less one space before it."""
    return unicodedata.normalize("NFC", text).removeprefix(" ")
