"""What tokenizers cut off is counted where they are called, by their length limits."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tunecheck.core.evidence import TextsCut
from tunecheck.listen import imports, truncation
from tunecheck.listen.truncation import encoding, texts_cut

WORDS = ["a", "model", "learns", "what", "it", "is", "given", "and", "no", "more"]


@pytest.fixture
def tokenizer():
    """One token a word, whose calls are heard as in a watched script."""
    ids = {word: number for number, word in enumerate(["[PAD]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with imports._tell(PreTrainedTokenizerFast, "__call__", encoding):
        yield PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")
    list(texts_cut())


def test_texts_and_tokens_are_counted(tokenizer):
    """Padding is none of the tokens that are kept."""
    given = [" ".join(WORDS), " ".join(WORDS[:2])]
    tokenizer(given, truncation=True, max_length=4, padding="max_length")
    tokenizer(given[0], truncation=True, max_length=4)
    tokenizer(text_target=given, truncation=True, max_length=16)

    short, long = sorted(texts_cut(), key=lambda cut: cut.max_length)
    assert short == TextsCut(max_length=4, texts=3, cut=2, kept_tokens=10, lost_tokens=12)
    assert (long.max_length, long.texts, long.cut, long.lost_tokens) == (16, 2, 0, 0)
    assert [*texts_cut()] == []


@pytest.mark.parametrize("given", [{}, {"max_length": 4, "truncation": True, "return_overflowing_tokens": True}])
def test_what_is_not_lost_is_not_counted(tokenizer, given):
    """Without truncation nothing is cut off; what is returned beside is not lost."""
    tokenizer([" ".join(WORDS)], **given)

    assert [*texts_cut()] == []


def test_of_long_texts_a_part_is_counted(tokenizer, monkeypatch):
    """All that is cut off is copied to be counted, and a corpus of books may be."""
    monkeypatch.setattr(truncation, "MOST_TOKENS", 20)
    for _ in range(3):
        tokenizer([" ".join(WORDS)] * 4, truncation=True, max_length=4)

    (cut,) = texts_cut()
    assert (cut.texts, cut.kept_tokens, cut.lost_tokens) == (2, 8, 12)
