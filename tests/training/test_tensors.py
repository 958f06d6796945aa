"""The probes' small tensor tools."""

from __future__ import annotations

import pytest
import torch

from tunecheck.probes.reference.measures import digest, significant_digits, word_sums

SINGLE = torch.arange(1000, dtype=torch.float32)


def changed(at: int) -> torch.Tensor:
    """The tensor with one element off by its last bit."""
    other = SINGLE.clone()
    other.view(torch.int32)[at] ^= 1
    return other


def swapped() -> torch.Tensor:
    """The tensor with two neighbouring words exchanged."""
    words = SINGLE.clone().view(torch.int64)
    words[[3, 4]] = words[[4, 3]]
    return words.view(torch.float32)


@pytest.mark.parametrize("other", [changed(0), changed(500), changed(999), swapped()])
@pytest.mark.parametrize("kind", [digest, lambda tensor: word_sums(tensor.view(torch.uint8))], ids=["cpu", "gpu"])
def test_one_bit_or_another_order_shows(kind, other):
    """On the CPU by sha256, on a GPU by two sums, which are the same arithmetic anywhere."""
    assert kind(SINGLE) == kind(SINGLE.clone())
    assert kind(SINGLE) != kind(other)


def test_bytes_after_the_last_word_count():
    """A tensor's length need not be a multiple of eight."""
    data = torch.arange(13, dtype=torch.uint8)
    other = data.clone()
    other[12] += 1

    assert word_sums(data) != word_sums(other)


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_a_part_of_a_flat_parameter_has_the_same_digest(offset, monkeypatch):
    """It need not begin at a multiple of 8 bytes."""
    monkeypatch.setattr("tunecheck.probes.reference.measures.PART", 3)
    data = torch.arange(100, dtype=torch.uint8)
    flat = torch.cat([torch.zeros(offset, dtype=torch.uint8), data])
    assert word_sums(flat[offset:]) == word_sums(data)


@pytest.mark.parametrize("other", [SINGLE.view(10, 100), SINGLE.view(torch.int32)], ids=["shape", "dtype"])
def test_shape_and_dtype_are_part_of_it(other):
    """Equal bytes alone are not the same tensor."""
    assert digest(other) != digest(SINGLE)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)])
def test_numbers_keep_the_digits_of_the_coarsest_dtype_they_passed_through(dtype, digits):
    """Whatever they are held in now; zeros and infinities have none of their own."""
    drawn = torch.randn(100, 1000, generator=torch.Generator().manual_seed(0))

    assert significant_digits(drawn.to(dtype)) == significant_digits(drawn.to(dtype).float()) == digits
    assert significant_digits(torch.zeros(3)) == significant_digits(torch.tensor([torch.inf])) == 1
