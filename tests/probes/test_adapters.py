"""How adapters begin. fp32, CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tunecheck.probes.adapters import _starts

UNLUCKY_SEED = 162
"""Of which a square matrix of 64 rows has a singular value below 1e-4 of its largest."""


def drawn(rows: int, columns: int) -> torch.Tensor:
    """An A as peft draws it."""
    torch.manual_seed(UNLUCKY_SEED)
    return (torch.rand(rows, columns) * 2 - 1) / columns**0.5


def test_two_a_whose_sums_are_equal_are_two() -> None:
    """In bf16 a sum of 64 numbers has few values: of two hundred A, two had the same on a GPU."""
    a, again = drawn(8, 64), drawn(8, 64).flip(1)
    named = {"q_proj": a, "k_proj": again, "v_proj": a.clone()}
    model = SimpleNamespace(
        named_parameters=lambda: [(f"{name}.lora_A.default.weight", torch.nn.Parameter(a)) for name, a in named.items()]
    )
    _, repeated, _ = _starts(SimpleNamespace(model=model))

    assert repeated == ("v_proj.lora_A.default.weight",)


@pytest.mark.parametrize(
    ("a", "is_dependent"),
    [
        (drawn(64, 64), False),
        (drawn(8, 64), False),
        (torch.cat([drawn(32, 64), drawn(32, 64)]), True),
        (torch.cat([drawn(4, 64), drawn(4, 64)]), True),
    ],
    ids=["square", "usual", "half of a square again", "half again"],
)
def test_a_square_a_may_lack_one_dimension_by_chance(a: torch.Tensor, is_dependent: bool) -> None:
    """A half that was drawn again under the same seed lacks many."""
    model = SimpleNamespace(named_parameters=lambda: [("q_proj.lora_A.default.weight", torch.nn.Parameter(a))])
    _, _, dependent = _starts(SimpleNamespace(model=model))

    assert bool(dependent) is is_dependent
