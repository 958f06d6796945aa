"""Several modules of a script that one optimizer trains and that no module holds, in plain loops. fp32, CPU."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tunecheck.checks import CHECKS
from tunecheck.core.evidence import Census, Written
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen import saves
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options
from tunecheck.listen.trained_model import Parts

STEPS = 5


@pytest.fixture
def parts():
    """A body and its head, and a temperature that no module holds."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 3), nn.Parameter(torch.tensor(2.0))


def trained(tmp_path, parts, held=None, after=lambda: None):
    """Train these under watch with an optimizer that holds `held`; return the trace."""
    body, head, scale = parts
    optimizer = torch.optim.AdamW(held or [*body.parameters(), *head.parameters(), scale], lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        cross_entropy(scale * head(body(torch.randn(16, 6))), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    after()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    return read(path)


def test_all_that_the_optimizer_trains_is_the_model(parts, tmp_path):
    """By the names of the modules, each with its own tensors."""
    trace = trained(tmp_path, parts)
    names = trace.one(Census).trainable

    assert {name.partition(".")[0] for name in names} == {"Sequential", "Linear1", "parameter0"}
    assert len(names) == 7
    for check in ("trainable_moved", "optimizer_coverage", "calls_in_order", "state_in_training"):
        assert CHECKS[check]()(trace).passed, check


def test_a_part_that_the_loss_does_not_reach_is_told(parts, tmp_path):
    """As if one module held it."""
    body, head, scale = parts
    trace = trained(tmp_path, (body, lambda x: head(x.detach()), scale), [*body.parameters(), *head.parameters()])
    assert CHECKS["trainable_moved"]()(trace).status is not Status.PASSED


def test_a_body_whose_results_are_detached_is_told(parts, tmp_path):
    """On their way to the head, by a mean that makes them others."""
    body, head, scale = parts
    held = [*body.parameters(), *head.parameters()]
    trace = trained(tmp_path, (body, lambda x: head((x + 0).detach()), scale), held)
    assert CHECKS["rows_reach_loss"]()(trace).status is Status.SUSPECTED


@pytest.mark.parametrize("left_out", [0, 1], ids=["the body", "the head"])
def test_a_part_that_no_optimizer_holds_is_told(parts, left_out, tmp_path):
    """It gets gradients for nothing."""
    trace = trained(tmp_path, parts, [*parts[1 - left_out].parameters()])
    finding = CHECKS["trainable_moved"]()(trace)
    assert finding.status is Status.SUSPECTED
    assert f"{type(parts[left_out]).__name__} (" in finding.detail


@pytest.mark.parametrize(("kept", "lost"), [((0, 1), False), ((0,), True)], ids=["both", "the body alone"])
def test_what_is_saved_of_parts_is_compared(parts, kept, lost, tmp_path):
    """After the steps that are listened to, when nothing of ours is left."""
    body, head, _ = parts

    def save():
        for at in kept:
            saves.written(parts[at].state_dict(), str(tmp_path / f"{at}.pt"))
        saves.script_ends()

    trace = trained(tmp_path, parts, [*body.parameters(), *head.parameters()], after=save)
    told = [seen.lost for seen in trace.records(Written) if seen.lost]
    assert told == ([("Linear1.weight", "Linear1.bias")] if lost else [])


def test_nothing_is_left_of_the_parts(parts, tmp_path):
    """Once the steps that are listened to are done."""
    trained(tmp_path, parts)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if issubclass(type(thing), Parts)]
