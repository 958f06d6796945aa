"""Which tokenizer a Trainer's rows are read with: most scripts do not hand it to the Trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunecheck.listen import hf_declared
from tunecheck.listen.hf_declared import tokenizer_of

GIVEN, OTHER = SimpleNamespace(name="given"), SimpleNamespace(name="other")


@pytest.mark.parametrize(
    ("trainer", "collator", "expected"),
    [
        ({"processing_class": GIVEN}, {"tokenizer": OTHER}, GIVEN),
        ({"processing_class": SimpleNamespace(tokenizer=GIVEN)}, {}, GIVEN),
        ({"processing_class": None, "tokenizer": GIVEN}, {}, GIVEN),
        ({"processing_class": None}, {"tokenizer": GIVEN}, GIVEN),
        ({"processing_class": None}, {}, OTHER),
    ],
    ids=["the Trainer's", "a processor's", "an older Trainer's", "the collator's", "the only one"],
)
def test_the_tokenizer_of_a_trainer(trainer, collator, expected, monkeypatch):
    """What the Trainer is given counts first, then its collator, then what the process holds."""
    monkeypatch.setattr(hf_declared, "only_tokenizer", lambda: OTHER)
    assert tokenizer_of(SimpleNamespace(data_collator=SimpleNamespace(**collator), **trainer)) is expected
