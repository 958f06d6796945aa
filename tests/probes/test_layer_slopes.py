"""The slope of a layer beside a token whose states are thousands of times as large. fp32, CPU."""

from __future__ import annotations

import pytest
import torch

from tunecheck.checks.gradients import GradientMatchesLoss
from tunecheck.probes import gradients

LIMIT = GradientMatchesLoss().max_layer_error


class Wave(torch.nn.Module):
    """A layer that is curved everywhere."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states and what is added to them."""
        return states + states.sin()


class Halved(Wave):
    """Its backward pass gives half of the gradient."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the same."""
        added = states.sin()
        return states + added / 2 + added.detach() / 2


def states() -> torch.Tensor:
    """Hidden states of one row, of which one token is large."""
    drawn = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(0))
    drawn[:, 3] *= 1000
    return drawn


@pytest.mark.parametrize(("layer", "is_wrong"), [(Wave(), False), (Halved(), True)], ids=["right", "halved"])
def test_a_token_with_large_states_bends_no_slope(layer: torch.nn.Module, is_wrong: bool) -> None:
    """A wrong gradient is wrong at every length."""
    assert (gradients._slope_error(layer, states(), {}) > LIMIT) is is_wrong


def test_the_longer_step_alone_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why there are two."""
    monkeypatch.setattr(gradients, "STEP_SHARES", gradients.STEP_SHARES[:1])
    assert gradients._slope_error(Wave(), states(), {}) > LIMIT
