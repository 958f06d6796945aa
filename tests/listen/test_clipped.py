"""Clipping in a loop: plain of all gradients, whatever their dtype, or in parts."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from benchmarks.scripts.script import Script, judged

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own


def plainly(model):
    """Clip all gradients together."""
    clip_grad_norm_(model.parameters(), 1.0)


def in_parts(model):
    """Clip the decoder's layers, and nothing else."""
    clip_grad_norm_(model.model.layers.parameters(), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("clip", "judges"), [(plainly, True), (in_parts, False)], ids=["plainly", "in parts"])
def test_clipping_of_the_whole_model_is_followed(clip, judges, dtype, tmp_path):
    """torch rounds the norm to the gradients' dtype; in parts nobody knows what the optimizer is to be given."""

    def loop(script, model, batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model.train()
        for batch in batches[: script.steps]:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            clip(model)
            optimizer.step()

    row = judged(Script(loop=loop, lora=None, dtype=dtype), tmp_path)
    excused = [finding.check for finding in row.unjudged if "clipped in parts" in finding.detail]

    assert row.outcome == "pass"
    assert ("updates_match_adamw" in {finding.check for finding in row.passed}) is judges
    assert ("updates_match_adamw" in excused) is not judges


@pytest.mark.parametrize(
    ("clip", "told"),
    [
        (lambda model: clip_grad_norm_(model.parameters(), 50.0), True),
        (lambda model: clip_grad_value_(model.parameters(), 5.0), True),
        (lambda model: clip_grad_norm_(model.parameters(), 1e9), False),
    ],
    ids=["norm", "values", "measured"],
)
def test_clipping_behind_the_step_alone(clip, told, tmp_path):
    """It has no effect there: gradients are small enough, or cleared next. A high limit measures the norm."""

    def loop(script, model, batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model.train()
        for batch in batches[: script.steps]:
            model(**batch).loss.backward()
            optimizer.step()
            clip(model)
            optimizer.zero_grad()

    row = judged(Script(loop=loop, lora=None), tmp_path)
    details = [finding.detail for finding in row.suspected if finding.check == "calls_in_order"]

    assert row.outcome == "pass"
    assert ["after the optimizer step alone" in detail for detail in details] == [True] * told
