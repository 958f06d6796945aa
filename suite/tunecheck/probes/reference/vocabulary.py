"""What token ids say by the base's tokenizer.json alone: the tokenizer in use may not be its, nor vouch for itself."""

import json
import math
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tunecheck.core.evidence import BaseTokens
from tunecheck.core.frozen import Frozen
from tunecheck.probes.reference.weight_file import WeightFile, file_name

FILE = "tokenizer.json"
MOST_TOKENS = 2000
"""Different tokens of the rows that are looked up in the base's vocabulary."""


class Vocabulary(Frozen):
    """The tokens of a model's folder."""

    decoder: Any
    """The library's own tokenizer of the file, around which transformers puts another."""
    start: int | None
    end: int | None

    def says(self, ids: Sequence[int]) -> str:
        """The text of these ids, special tokens by their names; broken characters as U+FFFD."""
        return str(self.decoder.decode(list(ids), skip_special_tokens=False))

    def row_problem(self, ids: Sequence[int], prompt_tokens: int, prompt: str, answer: str) -> str:
        """What a row says instead of its prompt, its answer and the end token; empty when it says just that.

        A start token before the prompt is the tokenizer's own affair, and so is SentencePiece's space before a text.
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

    if not (path := folder / FILE).exists():
        return None
    decoder: Any = Tokenizer.from_file(str(path))
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = [names.get(f"{side}_token") or "" for side in ("bos", "eos")]  # older files keep them in a mapping
    start, end = (decoder.token_to_id(str(name["content"] if isinstance(name, dict) else name)) for name in named)
    return Vocabulary(decoder=decoder, start=start, end=end)


def _plain(text: str) -> str:
    """The text as tokenizers that compose characters give it back, less one space before it."""
    return unicodedata.normalize("NFC", text).removeprefix(" ")


def base_tokens_of(model: Any, tokenizer: Any, folder: Path, tokens: Iterable[int]) -> BaseTokens | None:
    """Return how many of these tokens have another number in the base's tokenizer.

    Asked of those alone whose row of the embedding is the base's, so that the number means there what the base learned
    of it. None where tokenizer, file or embedding are not known, or where the tokenizer is the base's by its name.
    """
    named = str(getattr(tokenizer, "name_or_path", "") or "")
    base = str(getattr(model.config, "_name_or_path", "") or "")
    if not hasattr(tokenizer, "convert_ids_to_tokens") or (named and named in (base, str(folder))):
        return None
    own, unchanged = pieces_of(folder), _rows_of_base(model, folder, sorted({*tokens})[:MOST_TOKENS])
    if not own or unchanged is None:
        return None
    known = [(token, piece) for token in unchanged if (piece := tokenizer.convert_ids_to_tokens(token)) in own]
    other = [f"{piece!r} is {t} in the rows, and {own[piece]} to the base" for t, piece in known if own[piece] != t]
    return BaseTokens(tokens=len(known), other=len(other), example=next(iter(other), ""))


def pieces_of(folder: Path) -> dict[str, int]:
    """Return the pieces of this folder's tokenizer and their numbers; none where its file cannot be read."""
    from tokenizers import Tokenizer

    with suppress(Exception):  # whatever the library raises
        return dict(Tokenizer.from_file(str(folder / FILE)).get_vocab(with_added_tokens=True))
    return {}


def vocabulary_size(folder: Path) -> float:
    """Return the ids up to the last one, added tokens included; infinity where no file tells."""
    return max(pieces_of(folder).values(), default=math.inf) + 1


def _rows_of_base(model: Any, folder: Path, tokens: Iterable[int]) -> list[int] | None:
    """Return those of these tokens whose row of the table is the file's; None if no tensor has its name and width."""
    table: Any = getattr(model.get_input_embeddings(), "weight", None)
    named = next((file_name(name) for name, p in model.named_parameters() if p is table), None)
    file = WeightFile(folder)
    # some models' files leave out the name of the part that holds the layers
    own = (name for name in file.names if named is not None and (name == named or named.endswith(f".{name}")))
    if (held := next(own, None)) is None or len(file.shape(held)) != 2 or file.shape(held)[1] != table.shape[1]:
        return None
    known = (token for token in tokens if token < min(len(table), file.shape(held)[0]))
    return [t for t in known if torch.equal(file.rows(held, t, t + 1)[0].to(table.dtype), table[t].detach().cpu())]
