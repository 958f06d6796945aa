"""A gradient that is mathematically 0 is no error; one that was halved or removed is one, of a weight or a bias."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tunecheck.probes.gradients import WeightGradientProbe
from tunecheck.training.ranks import Exchange

LIMIT = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
"""Of the check."""


class Attention(torch.nn.Module):
    """Keys with a bias, which the softmax of the scores does not see."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.nn.Linear(16, 16) for _ in "qkv")
        self.norm, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        """Return scores of four classes."""
        mixed = torch.softmax(self.q(x) @ self.k(x).mT, dim=-1) @ self.v(x)
        return self.out(self.norm(mixed))


def seen(dtype, change=lambda model: None, tokens=40):
    """The largest error of a window of two micro-batches, and the linear that it is of."""
    model, records = Attention().to(dtype), []
    run = SimpleNamespace(
        lora=None, training=SimpleNamespace(offload="none", max_steps=1, gradient_checkpointing=False)
    )
    session = SimpleNamespace(model=model, run=run, scaler=None, exchange=Exchange())
    probe = WeightGradientProbe(records.append)
    probe.start(session)
    probe.step_begin(session, 0, ())
    for seed in range(2):
        x = torch.randn(3, tokens, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
        torch.nn.functional.cross_entropy(model(x).flatten(0, 1).float(), torch.arange(3 * tokens) % 4).backward()
    change(model)
    probe.backward_end(session, 0)
    (record,) = records
    assert record.linears == 4
    return record.error, record.worst


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("tokens", [4, 400])
def test_the_bias_of_keys_is_no_error(dtype, tokens):
    """Its gradient is the rounding of 0."""
    assert seen(dtype, tokens=tokens)[0] <= LIMIT[dtype]


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("name", ["q.weight", "q.bias", "k.weight", "v.bias", "out.weight", "out.bias"])
@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_a_gradient_that_was_changed_is_one(dtype, name, factor):
    """Of one tensor alone, whatever its module's other one is."""

    def change(model):
        model.get_parameter(name).grad.mul_(factor)

    error, worst = seen(dtype, change, tokens=400)
    assert (error > LIMIT[dtype], worst) == (True, name.split(".")[0])


def test_a_gradient_that_is_missing_is_one():
    """As one that was set to None."""
    assert seen(torch.float32, lambda model: setattr(model.out.bias, "grad", None))[0] == pytest.approx(1.0)
