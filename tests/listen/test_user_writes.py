"""Weights that a script writes between two steps, told apart from what a library does to them."""

from __future__ import annotations

import pytest
import torch

from tunecheck.listen.user_code import IN_PLACE, UserWrites

BEFORE = [getattr(torch.Tensor, name) for name in IN_PLACE]


@pytest.fixture
def model():
    """One layer that learns."""
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def lookahead(model, kept):
    """Slow weights, pulled halfway after the fast ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.lerp_(kept[name], 0.5)


def lists(model, kept):
    """The same, by lists."""
    names = list(kept)
    with torch.no_grad():
        torch._foreach_lerp_([dict(model.named_parameters())[name] for name in names], list(kept.values()), 0.5)


def clipped(model, kept):
    """As WGAN has it, by `data`."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def noise(model, kept):
    """By operators."""
    with torch.no_grad():
        model.weight += 0.1
        model.bias[:] = 0.2


def loaded(model, kept):
    """A state dict of another step."""
    model.load_state_dict({name: 2 * tensor for name, tensor in kept.items()})


def initialised(model, kept):
    """Anew."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)


def restored(model, kept):
    """What was learned is undone, by hand."""
    for name, parameter in model.named_parameters():
        parameter.data.copy_(kept[name])


def moved(model, kept):
    """To other memory; what is at the former place is written to, as by a tensor that an allocator puts there."""
    left = [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    for tensor in left:
        tensor.zero_()


def cast(model, kept):
    """To 16 bit and back."""
    model.bfloat16().float()


@pytest.mark.parametrize(
    ("write", "own"),
    [
        *((write, True) for write in (lookahead, lists, clipped, noise)),
        *((write, False) for write in (loaded, initialised, restored, moved, cast)),
    ],
)
def test_the_scripts_own_lines_are_told(model, write, own):
    """Those alone that give new values; nothing stays hooked."""
    failed: list[str] = []
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    writes = UserWrites(model, failed.append)
    with torch.no_grad():
        for parameter in model.parameters():  # a step
            parameter.add_(0.3)

    writes.begin()
    write(model, kept)
    writes.end()

    lines = [record.lines for record in writes.record()]
    assert [sorted(each) for each in lines] == ([["bias", "weight"]] if own else [])
    assert all(line.startswith("test_user_writes.py:") for each in lines for line in each.values())
    assert failed == []
    assert [getattr(torch.Tensor, name) for name in IN_PLACE] == BEFORE


def test_a_library_that_writes_once_counts(model):
    """Also where the script writes in other steps; what is written elsewhere is nothing."""
    writes = UserWrites(model, lambda reason: None)
    torch.zeros(3).add_(1)
    for write in (lookahead, loaded, lookahead):
        kept = {name: p.detach().clone() + 1 for name, p in model.named_parameters()}
        writes.begin()
        torch.zeros(3).add_(1)
        write(model, kept)
        writes.end()

    assert writes.record() == []
