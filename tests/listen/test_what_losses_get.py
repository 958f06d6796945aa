"""Scores, targets and ratios that a loss is given, in trainings on a CPU in fp32: healthy ones beside broken ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import tunecheck
from tunecheck.core.finding import Status

STEPS = 4


@pytest.fixture
def heard(tmp_path):
    """Return what trains a model by its loss in each step, and gives the finding of a check."""

    def judged(check, model, loss, optimizer=None):
        torch.manual_seed(0)
        optimizer = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        watching = tunecheck.watch(
            model=model, optimizer=optimizer, folder=tmp_path / "report", steps=STEPS, tell=False
        )
        with watching as told:
            for step in range(STEPS + 1):
                optimizer.zero_grad()
                loss(step).backward()
                optimizer.step()
        return next(finding for finding in told.findings if finding.check == check)

    return judged


def net(outputs=3):
    """A network of eight numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs))


@pytest.mark.parametrize("loss", [cross_entropy, binary_cross_entropy_with_logits])
@pytest.mark.parametrize(
    ("last", "status"),
    [
        (torch.relu, Status.SUSPECTED),
        (torch.abs, Status.SUSPECTED),
        (nn.ReLU6(), Status.SUSPECTED),
        (lambda scores: scores.clamp(min=0), Status.SUSPECTED),
        (lambda scores: scores.clamp(-30, 30), Status.PASSED),
        (lambda scores: -scores.square().clamp(min=0), Status.PASSED),  # distances
        (nn.LeakyReLU(), Status.PASSED),
    ],
    ids=["ReLU", "abs", "ReLU6", "clamp", "clamp of both ends", "distances", "leaky"],
)
def test_scores_may_be_below_0(loss, last, status, heard):
    """An activation behind the last layer keeps them from it."""
    model = net()

    def of_step(step):
        x = torch.randn(16, 8)
        classes = x[:, :3].argmax(1)
        targets = classes if loss is cross_entropy else nn.functional.one_hot(classes, 3).float()
        return loss(last(model(x)), targets)

    finding = heard("loss_receives_logits", model, of_step)
    assert finding.status is status, finding.detail
