"""What the probes compute by themselves, held against the libraries that it is to judge."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from tunecheck.probes.reference.four_bit import dynamic_map, quantised, scales, values
from tunecheck.probes.reference.vocabulary import read_vocabulary, vocabulary_size
from tunecheck.probes.reference.weight_file import WeightFile

SENTENCE_PIECE = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0xC3>": 3, "<0xA4>": 4, "\u2581so": 5, "\u2581it": 6, "?": 7}
BYTES = {"<unk>": 0, "<s>": 1, "</s>": 2, "so": 5, "\u0120it": 6, "?": 7, "\u00c3": 3, "\u00a4": 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_a_weight_file_gives_whole_tensors_and_rows(tmp_path, dtype):
    """Of every dtype, at whatever place in the file."""
    matrix = torch.arange(35).view(7, 5).to(dtype)
    save_file(
        {"odd": torch.tensor([True]), "matrix": matrix, "number": matrix[0, 0].clone()}, tmp_path / "a.safetensors"
    )
    file = WeightFile(tmp_path)

    assert torch.equal(file.tensor("matrix"), matrix)
    assert torch.equal(file.rows("matrix", 2, 5), matrix[2:5])
    assert file.shape("matrix") == (7, 5)
    assert file.tensor("number").shape == ()
    assert "matrix" in file
    assert file.names == ("matrix", "number", "odd")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [True, False])
def test_our_quantisation_is_bitsandbytes(dtype, quant_type, nested):
    """But for what lies half-way between two values."""
    from bitsandbytes.functional import quantize_4bit

    weight = (torch.randn(96, 640, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    packed, state = quantize_4bit(weight, compress_statistics=nested, quant_type=quant_type)
    held = SimpleNamespace(quant_state=state, detach=lambda: packed)
    our_values, our_scales = quantised(weight, block=64, quant_type=quant_type, nested=nested)

    assert float((values(held) != our_values).float().mean()) < 1e-3
    assert float(((scales(held) - our_scales).abs() > 1e-4 * our_scales).float().mean()) < 0.01


def test_the_dynamic_map_is_bitsandbytes():
    """All 256 values."""
    from bitsandbytes.functional import create_dynamic_map

    assert torch.allclose(torch.tensor(dynamic_map()), create_dynamic_map(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("tokens", "byte_level"), [(SENTENCE_PIECE, False), (BYTES, True)], ids=["pieces", "bytes"])
def test_a_vocabulary_says_what_the_tokens_are(tmp_path, tokens, byte_level):
    """In both families: a start token and a space before a text are theirs; whatever else differs is told."""
    from tokenizers import Tokenizer, decoders, models

    held = Tokenizer(models.BPE(vocab=tokens, merges=[], unk_token="<unk>", byte_fallback=not byte_level))
    held.add_special_tokens(["<s>", "</s>"])
    pieces = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    held.decoder = decoders.ByteLevel() if byte_level else pieces
    held.save(str(tmp_path / "tokenizer.json"))
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    vocabulary = read_vocabulary(tmp_path)

    assert vocabulary is not None
    assert vocabulary_size(tmp_path) == len(tokens)
    assert vocabulary.row_problem((1, 5, 6, 7, 6, 3, 4, 2), 4, "so it?", "it\u00e4") == ""
    assert vocabulary.row_problem((5, 6, 2), 1, "so", "it") == ""
    assert vocabulary.row_problem((5, 6, 2), 1, "so", "it?").endswith("not 'it?'")
    assert "<s>" in vocabulary.row_problem((5, 1, 6, 2), 1, "so", "it")
    assert vocabulary.row_problem((5, 6, 1), 1, "so", "it") == "it ends with '<s>', not '</s>'"
    assert "\ufffd" in vocabulary.row_problem((5, 3, 2), 1, "so", "it")


def test_a_folder_without_its_tokens_is_left_alone(tmp_path):
    """There is no file."""
    assert read_vocabulary(tmp_path) is None


def test_short_answers_may_come_in_both_splits():
    """Numbers and labels do; a question or a whole sentence that both splits hold is a leak."""
    from tunecheck.probes.data_audit import _shared

    train = [("What is 3 + 3?", "6"), ("Who rides?", "The ferryman of the northern lake rides.")]
    heldout = [
        ("What is 2 * 3?", "6"),
        ("what is  3 + 3?", "six"),
        ("And who?", "The ferryman of the northern lake rides."),
    ]

    assert _shared(train, heldout, {}, set()) == ["what is  3 + 3?", "And who?"]
