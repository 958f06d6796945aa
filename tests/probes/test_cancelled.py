"""A tensor of a few elements whose averages cancel: what is left of its step is rounding. In fp32, on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tunecheck.checks import CHECKS
from tunecheck.core.evidence import Update
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

STEPS, WIDTH = 4, 8


@pytest.mark.parametrize("doubled", [False, True], ids=["AdamW", "twice its steps"])
def test_a_step_that_cancels_is_held_to_the_size_of_a_usual_one(doubled, tmp_path):
    """The bias of two classes: its last gradient leaves next to nothing of the average."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    taken, before = list[float](), torch.zeros(2)
    optimizer, bias = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), model[2].bias

    def cancel(gradient):
        held = optimizer.state[bias]["exp_avg"] if optimizer.state else torch.zeros(2)
        return -9 * held * (1 + 1e-4) if len(taken) == STEPS - 1 else gradient

    def again(*_):
        bias.data += (bias.data - before) * doubled

    bias.register_hook(cancel)
    optimizer.register_step_post_hook(again)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    while len(taken) < STEPS:
        x = torch.randn(16, WIDTH)
        optimizer.zero_grad()
        cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        before.copy_(bias.detach())
        optimizer.step()
        taken.append(float((bias.detach() - before).abs().max()))
    hooks.detach()
    trace = read(next(tmp_path.glob("watch-*.jsonl")))
    finding = CHECKS["updates_match_adamw"]()(trace)

    assert 0 < taken[-1] < 1e-3 * taken[0]
    assert len(trace.all(Update)) == STEPS
    assert finding.status is (Status.FAILED if doubled else Status.PASSED), finding.detail
