"""A script that trains again when one training was listened to: each of the first three is judged. fp32, CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tunecheck.core.paths import project_folder

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
rows = torch.randn(96, 8)

def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def train(model, optimizer, beside=lambda: None, steps=8):
    for batch in rows.split(8)[:steps]:
        beside()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), batch[:, :4].argmax(1)).backward()
        optimizer.step()

def adam(model):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)

first = network()
held = adam(first)
train(first, held)
case = sys.argv[1]
if case == "goes on":  # with its own optimizer
    train(first, held)
elif case == "beside":  # the first one learns on, in each step of another
    other = network()
    train(other, adam(other), lambda: train(first, held, steps=1))
elif case == "still":  # a factor that is 0 on both sides
    for p in first.parameters():
        p.requires_grad_(False)
    factors = nn.ModuleList([nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)])
    for each in factors:
        nn.init.zeros_(each.weight)
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.factors = first, factors
        def forward(self, batch):
            return self.base(batch) + self.factors[1](self.factors[0](batch))
    adapted = Adapted()
    train(adapted, adam(adapted))
elif case == "inner":  # a copy takes one step for each batch, as in test-time training
    for batch in rows.split(8):
        copied = network()
        train(copied, adam(copied), steps=1)
elif case == "folds":
    for _ in range(4):
        model = network()
        train(model, adam(model))
"""


@pytest.mark.parametrize(
    ("case", "outcomes", "unheard"),
    [
        ("goes on", ["pass"], ""),
        ("inner", ["pass"], "12 steps of Adam (train.py:15)"),
        ("beside", ["pass", "pass"], ""),
        ("still", ["pass", "fail"], ""),
        ("folds", ["pass", "pass", "pass"], "16 steps of Adam (train.py:15)"),
    ],
)
@pytest.mark.slow
def test_each_training_has_its_row(case, outcomes, unheard, tmp_path):
    """In their order; one that goes on is none of its own. The verdict names the steps that belong to no row."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "tunecheck.cli", "watch", "--steps", "6", "--", sys.executable, "train.py", case]
    environment = {**os.environ, "PYTHONPATH": str(project_folder() / "suite"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    (verdict,) = tmp_path.glob("reports/runs/*/verdict.json")
    report = json.loads(verdict.read_text())
    rows = report["runs"]

    assert [row["outcome"] for row in rows] == outcomes, done.stdout
    assert [row["run"] for row in rows] == ["train", "train-2", "train-3"][: len(outcomes)]
    assert report["problems"] == (f"training not judged: {unheard}" if unheard else "")
    assert (f"; training not judged: {unheard}\n" in done.stdout) is bool(unheard), done.stdout
