"""Robust trends, against known answers."""

from __future__ import annotations

import math
import random

import pytest

from tunecheck.core.trend import trend


def test_a_line_is_found_exactly() -> None:
    """Its slope, with no doubt about it."""
    found = trend(range(20), [3.0 + 2.5 * x for x in range(20)], confidence=0.95)
    assert (found.slope, found.low, found.high) == (2.5, 2.5, 2.5)
    assert found.p_rising < 1e-8


def test_one_outlier_does_not_move_it() -> None:
    """A least-squares line would be off by far."""
    ys = [float(x) for x in range(20)]
    ys[7] = 1e6
    assert trend(range(20), ys, confidence=0.95).slope == 1.0


def test_mann_kendall_corrects_for_ties() -> None:
    """Ten values with one tie: the variance, 125 without it, is 124."""
    ys = [5.0, 7.0, 4.0, 8.0, 9.0, 6.0, 10.0, 11.0, 7.0, 12.0]
    rising = sum((b > a) - (b < a) for i, a in enumerate(ys) for b in ys[i + 1 :])
    found = trend(range(10), ys, confidence=0.95)
    assert found.p_rising == pytest.approx(0.5 * math.erfc((rising - 1) / math.sqrt(124) / math.sqrt(2)))


def test_a_constant_or_falling_series_does_not_rise() -> None:
    """No division by a variance of 0."""
    flat = trend(range(10), [7.0] * 10, confidence=0.95)
    assert (flat.slope, flat.p_rising) == (0.0, 0.5)
    assert trend(range(10), [-float(x) for x in range(10)], confidence=0.95).p_rising == 0.5
    assert trend([0, 1], [0.0, 1.0], confidence=0.95).slope == 1.0


def test_the_interval_holds_as_often_as_it_says() -> None:
    """95 % of simulated flat series have 0 in it."""
    rng = random.Random(7)
    held = 0
    for _ in range(300):
        found = trend(range(30), [rng.gauss(0, 1) for _ in range(30)], confidence=0.95)
        held += found.low <= 0 <= found.high
    assert 0.92 < held / 300 < 0.99


def test_a_long_series_is_reduced_to_the_medians_of_blocks() -> None:
    """Over its whole length; what stands out in each block does not move it."""
    ys = [1e6 if x % 10 == 9 else float(x) for x in range(1000)]
    found = trend(range(1000), ys, confidence=0.95)
    assert (found.slope, found.low, found.high) == (1.0, 1.0, 1.0)
    assert trend(range(101), [float(x) for x in range(101)], confidence=0.95).slope == 1.0
