"""The closed form of the learning rate against transformers' own schedules, and by hand."""

from __future__ import annotations

import math

import pytest

from tunecheck.config.schema import Training

SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
"""Our name to transformers' name."""


def rates(schedule: str, warmup_ratio: float, max_steps: int, peak: float = 1.0) -> list[float]:
    """The rate of every step and of one after the last."""
    training = Training(max_steps=max_steps, learning_rate=peak, lr_scheduler=schedule, warmup_ratio=warmup_ratio)
    return [training.rate(step) for step in range(max_steps + 1)]


def test_the_closed_form_is_transformers_schedule():
    """Every step of every schedule, with and without warm-up, to the rounding of a double."""
    import torch
    from transformers import get_scheduler

    for name, theirs in SCHEDULES.items():
        for warmup_ratio in (0.0, 0.03, 0.1, 0.5, 0.9):
            for max_steps in (1, 2, 10, 30, 97):
                warmup_steps = math.ceil(warmup_ratio * max_steps)
                if warmup_steps >= max_steps:  # tunecheck.config refuses it
                    continue
                parameter = torch.nn.Parameter(torch.zeros(1))
                optimizer = torch.optim.SGD([parameter], lr=2e-4)
                scheduler = get_scheduler(
                    theirs, optimizer, num_warmup_steps=warmup_steps, num_training_steps=max_steps
                )
                seen = []
                for _ in range(max_steps + 1):
                    seen.append(optimizer.param_groups[0]["lr"])
                    optimizer.step()
                    scheduler.step()

                assert rates(name, warmup_ratio, max_steps, peak=2e-4) == pytest.approx(seen, rel=1e-12, abs=1e-18), (
                    name,
                    warmup_ratio,
                    max_steps,
                )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0, 0.5, 1, 1, 1]),
        ("linear", [0, 0.5, 1, 0.5, 0]),
        ("cosine", [0, 0.5, 1, 0.5, 0]),
    ],
)
def test_warm_up_rises_from_zero_to_the_peak(schedule, expected):
    """Two of four steps, then the schedule's own way down."""
    assert rates(schedule, 0.5, 4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [3, 3, 3]), ("linear", [3, 1.5, 0]), ("cosine", [3, 1.5, 0])],
)
def test_without_warm_up_the_first_step_has_the_peak(schedule, expected):
    """And the rate past the last step is 0, unless it is constant."""
    assert rates(schedule, 0.0, 2, peak=3.0) == pytest.approx(expected)


def test_linear_and_cosine_are_not_the_same():
    """They agree at start, middle and end only."""
    linear, cosine = rates("linear", 0.0, 4), rates("cosine", 0.0, 4)

    assert cosine[1] > linear[1]
    assert cosine[3] < linear[3]


@pytest.mark.parametrize(("ratio", "max_steps", "steps"), [(0.1, 10, 1), (0.01, 10, 1), (0.11, 10, 2), (0.0, 10, 0)])
def test_a_part_of_a_warm_up_step_is_a_whole_one(ratio, max_steps, steps):
    """Rounded up, as transformers does it."""
    found = rates("constant", ratio, max_steps)

    assert found.index(1.0) == steps
