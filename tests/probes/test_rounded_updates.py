"""Updates of 16-bit weights: what rounding explains is no error, and a wrong rate is one."""

from __future__ import annotations

import pytest
import torch

from tunecheck.probes.movement import _is_below_last_digit
from tunecheck.probes.reference.measures import relative_error
from tunecheck.probes.updates import CANCELLED, explained

RATE, STEPS = 2e-4, 3


@pytest.mark.parametrize(("times", "least", "most"), [(1, 0.0, 0.02), (2, 0.5, 3.0), (0, 0.5, 1.0)])
def test_a_step_of_bf16_weights_is_held_to_what_rounding_explains(times, least, most):
    """AdamW as torch carries it out in bf16, at the rate that is declared, at twice it and at none.

    Weights of the size of lora_A in a model of width 576, whose neighbours in bf16 are further apart than a step.
    """
    torch.manual_seed(0)
    weight = torch.nn.Parameter((torch.rand(64, 576) * 2 - 1).mul(576**-0.5).bfloat16())
    optimizer = torch.optim.AdamW([weight], lr=RATE * times, weight_decay=0.1)
    m, v = torch.zeros(weight.shape), torch.zeros(weight.shape)
    for step in range(1, STEPS + 1):
        before = weight.detach().clone()
        weight.grad = torch.randn(weight.shape).mul(1e-3).bfloat16()
        gradient = weight.grad.float()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient.square()
        corrected = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        predicted = before.float() * (1 - RATE * 0.1) - RATE * corrected
        after = weight.detach().float()
        wanted = explained(after, before.float(), predicted, torch.bfloat16) - before.float()
        error = relative_error(after - before.float(), wanted, CANCELLED * wanted.numel() ** 0.5 * RATE)

        assert least <= error <= most


def test_weights_in_fp32_are_held_to_the_prediction():
    """Nothing is explained away."""
    after, before, predicted = torch.tensor([1.0]), torch.tensor([0.9]), torch.tensor([1.0001])

    assert torch.equal(explained(after, before, predicted, torch.float32), predicted)


@pytest.mark.parametrize(
    ("rate", "weights", "below"),
    [(4e-8, [1.0, 1.0], True), (4e-8, [1.0, 0.02], False), (2e-7, [1.0], False), (0.0, [0.0], True)],
    ids=["norms", "norms and others", "larger", "none"],
)
def test_a_rate_is_held_against_the_last_digit(rate, weights, below):
    """Of most of the weights; 1.2e-7 above 1 in fp32."""
    assert _is_below_last_digit(rate, torch.tensor(weights)) is below
    assert not _is_below_last_digit(rate, torch.tensor(weights, dtype=torch.bfloat16))
