"""A 16-bit model that computes in fp32 for a moment."""

from __future__ import annotations

import pytest
import torch

from suite.probes.reference.in_fp32 import in_fp32, widened_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_arithmetic_is_fp32_inside_and_the_tensors_are_the_same_afterwards(dtype):
    """Parameters keep identity, hooks, values and storage."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to(dtype)
    weight, seen = model[0].weight, []
    weight.register_hook(lambda gradient: seen.append(gradient.dtype))
    storage, before = weight.data_ptr(), weight.detach().clone()

    assert widened_bytes(model) == 4 * (64 + 8 + 8 + 8)
    with in_fp32(model):
        assert widened_bytes(model) == 0
        model(torch.randn(2, 8)).sum().backward()
    assert (weight.dtype, weight.data_ptr(), model[0].weight) == (dtype, storage, weight)
    assert torch.equal(weight, before)
    assert seen == [torch.float32]


def test_an_error_inside_puts_everything_back():
    """The run goes on without the probe that failed."""
    model = torch.nn.Linear(2, 2).bfloat16()
    with pytest.raises(RuntimeError), in_fp32(model):
        raise RuntimeError("a probe failed")
    assert model.weight.dtype is torch.bfloat16
