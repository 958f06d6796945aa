"""Whether rows were made by the vocabulary of the base: which numbers its own tokenizer has for their pieces.

Its file is read, as the base's tokenizer is what the training may not have used.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tunecheck.core.evidence import BaseTokens
from tunecheck.probes.reference.weight_file import WeightFile, file_name

FILE = "tokenizer.json"
MOST_TOKENS = 2000
"""Different tokens of the rows that are looked up."""


def base_tokens_of(model: Any, tokenizer: Any, folder: Path, tokens: Iterable[int]) -> BaseTokens | None:
    """Return how many of these tokens have another number in the base's tokenizer.

    Asked of those alone whose row of the embedding is the base's, so that the number means there what the base learned
    of it. None where tokenizer, file or embedding are not known, or where the tokenizer is the base's by its name.
    """
    named = str(getattr(tokenizer, "name_or_path", "") or "")
    base = str(getattr(model.config, "_name_or_path", "") or "")
    if not hasattr(tokenizer, "convert_ids_to_tokens") or (named and named in (base, str(folder))):
        return None
    own, is_bases = _pieces(folder / FILE), _rows_of_base(model, folder)
    if own is None or is_bases is None:
        return None
    known, other, example = 0, 0, ""
    for token in sorted({*tokens})[:MOST_TOKENS]:
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece in own and is_bases(token):
            known += 1
            if own[piece] != token:
                other += 1
                example = example or f"{piece!r} is {token} in the rows, and {own[piece]} to the base"
    return BaseTokens(tokens=known, other=other, example=example)


def _pieces(path: Path) -> dict[str, int] | None:
    """Return the pieces of a tokenizer's file and their numbers; None where it cannot be read."""
    from tokenizers import Tokenizer

    with suppress(Exception):  # whatever the library raises
        return dict(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True))
    return None


def _rows_of_base(model: Any, folder: Path) -> Callable[[int], bool] | None:
    """Return what tells whether a token's row of the embedding is the file's.

    None where the file has no tensor of the embedding's name, or of another width.
    """
    table: Any = getattr(model.get_input_embeddings(), "weight", None)
    named = next((file_name(name) for name, p in model.named_parameters() if p is table), None)
    if named is None:
        return None
    file = WeightFile(folder)
    # some models' files leave out the name of the part that holds the layers
    held = next((name for name in file.names if name == named or named.endswith(f".{name}")), None)
    if held is None or len(file.shape(held)) != 2 or file.shape(held)[1] != table.shape[1]:
        return None

    def is_bases(token: int) -> bool:
        if token >= min(len(table), file.shape(held)[0]):
            return False
        return torch.equal(file.rows(held, token, token + 1)[0].to(table.dtype), table[token].detach().cpu())

    return is_bases
