"""A 16-bit model that computes in fp32 for a moment."""

from __future__ import annotations

import pytest
import torch

from tunecheck.training.restore import in_fp32, widened_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_arithmetic_is_fp32_inside_and_the_tensors_are_left_alone(dtype):
    """Each keeps values, storage and gradient accumulator: DDP averages gradients in a hook of that."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to(dtype)
    weight, seen = model[0].weight, []
    accumulator = weight.view_as(weight).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *gradients: seen.append(weight.grad.dtype))
    storage, before = weight.data_ptr(), weight.detach().clone()

    assert widened_bytes(model) == 4 * (64 + 8 + 8 + 8)
    with in_fp32(model) as wide:
        assert widened_bytes(model) == 0
        model(torch.randn(2, 8)).sum().backward()
    assert (wide[weight].grad.dtype, weight.grad, seen) == (torch.float32, None, [])
    assert (weight.dtype, weight.data_ptr(), model[0].weight) == (dtype, storage, weight)
    assert torch.equal(weight, before)
    model(torch.randn(2, 8, dtype=dtype)).sum().backward()
    assert seen == [dtype]


def test_a_tied_tensor_stays_tied():
    """Its gradient is that of both its places."""
    first, second = torch.nn.Linear(2, 2).bfloat16(), torch.nn.Linear(2, 2).bfloat16()
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)

    with in_fp32(model):
        assert model[0].weight is model[1].weight
    assert model[0].weight is model[1].weight is first.weight


def test_an_error_inside_puts_everything_back():
    """The run goes on without the probe that failed."""
    model = torch.nn.Linear(2, 2).bfloat16()
    with pytest.raises(RuntimeError), in_fp32(model):
        raise RuntimeError("a probe failed")
    assert model.weight.dtype is torch.bfloat16
