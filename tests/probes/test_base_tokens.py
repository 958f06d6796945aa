"""A vocabulary of the base's own: numbers of tokens against the tokenizer beside its weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.probes.reference.vocabulary import base_tokens_of

PIECES = [f"piece {number}" for number in range(30)]


def tokenizer_of(pieces, name=""):
    """A tokenizer that has these pieces in this order."""
    return SimpleNamespace(name_or_path=name, convert_ids_to_tokens=lambda token: pieces[token])


@pytest.fixture
def model(tmp_path):
    """A model that was loaded from this folder, with its tokenizer beside it."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
    made.save_pretrained(tmp_path)
    held = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(PIECES[:28])}, merges=[]))
    held.add_tokens(PIECES[28:])
    held.save(str(tmp_path / "tokenizer.json"))
    return made


def found(model, folder, tokenizer):
    """What is seen of twenty tokens."""
    return base_tokens_of(model, tokenizer, folder, range(10, 30))


def test_another_models_tokenizer_is_seen(model, tmp_path):
    """With an example, and the base's own is in order."""
    seen = found(model, tmp_path, tokenizer_of(PIECES[::-1]))
    assert (seen.tokens, seen.other) == (20, 20)
    assert seen.example == "'piece 19' is 10 in the rows, and 19 to the base"

    own = found(model, tmp_path, tokenizer_of(PIECES))
    assert (own.tokens, own.other) == (20, 0)


def test_a_vocabulary_whose_embedding_was_made_for_it_is_not_held_to_the_bases(model, tmp_path):
    """Rows of the embedding that are not the base's mean what the script has them mean: none of them is asked about."""
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(model.get_input_embeddings().weight.flip(0))

    assert found(model, tmp_path, tokenizer_of(PIECES[::-1])).tokens == 0


def test_pieces_that_are_new_are_not_asked_about(model, tmp_path):
    """Tokens that a script adds, or reserved ones that it renames."""
    seen = found(model, tmp_path, tokenizer_of([*PIECES[:25], *"abcde"]))
    assert (seen.tokens, seen.other) == (15, 0)


@pytest.mark.parametrize("held", ["no JSON", "[]", '{"model": {}}', '{"model": {"vocab": [[1]]}}'])
def test_a_file_of_another_form_says_nothing(model, tmp_path, held):
    """No more than one that is not there."""
    (tmp_path / "tokenizer.json").write_text(held, encoding="utf-8")
    assert found(model, tmp_path, tokenizer_of(PIECES[::-1])) is None
    (tmp_path / "tokenizer.json").unlink()
    assert found(model, tmp_path, tokenizer_of(PIECES[::-1])) is None


def test_the_bases_own_tokenizer_by_its_name_is_not_read_again(model, tmp_path):
    """Nor is one that cannot say its pieces, or a base whose file has no embedding of that name."""
    assert found(model, tmp_path, tokenizer_of(PIECES[::-1], name=str(tmp_path))) is None
    model.config._name_or_path = "a/name"
    assert found(model, tmp_path, tokenizer_of(PIECES[::-1], name="a/name")) is None
    assert found(model, tmp_path, SimpleNamespace()) is None
    model.get_input_embeddings().weight = torch.nn.Parameter(torch.zeros(32, 8))
    assert found(model, tmp_path, tokenizer_of(PIECES[::-1])) is None
