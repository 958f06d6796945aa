"""CONTRIBUTING's skeleton of a listener judges a framework of its own, names a mistake and changes nothing."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.core.paths import project_folder
from tunecheck.listen.launch import rows_of
from tunecheck.listen.options import Options

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
STEPS, ACCUMULATED = 5, 2


class Engine:
    """A framework's engine, as the skeleton expects it."""

    def __init__(self, shift: int = 0) -> None:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.shift = shift

    def fit(self) -> None:
        """Train on windows of micro-batches."""
        rows = torch.randint(3, 128, (STEPS + 1, ACCUMULATED, 2, 40), generator=torch.Generator().manual_seed(1))
        for window in rows:
            for ids in window:
                labels = torch.roll(ids, -self.shift, dims=1) if self.shift else ids
                self.micro_batch({"input_ids": ids, "labels": labels}).backward()
            self.update()

    def micro_batch(self, inputs):
        """Return the micro-batch's share of the window's loss."""
        return self.model(**inputs).loss / ACCUMULATED

    def update(self) -> None:
        """Step."""
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.fixture
def listening(monkeypatch):
    """The skeleton's context."""
    monkeypatch.syspath_prepend(str(project_folder() / "docs"))
    from skeleton_listener import EngineListener

    yield EngineListener
    del sys.modules["skeleton_listener"]


def judged(engine, listening, folder):
    """Return the row of this training."""
    options = Options(folder=str(folder), name="engine", steps=STEPS)
    with listening(engine, options):
        engine.fit()
    [row] = rows_of(folder, options, 0)
    return row


def test_a_framework_is_judged_and_not_changed(listening, tmp_path):
    """As a loop of the same kind; the weights are the same bits, and no method stays wrapped."""
    engine, alone = Engine(), Engine()
    row = judged(engine, listening, tmp_path)
    alone.fit()

    assert (row.outcome, row.reason, [str(finding) for finding in row.failed]) == ("pass", "", [])
    assert len(row.losses) == STEPS
    assert {"loss_oracle", "accumulation_oracle", "updates_match_adamw", "optimizer_coverage"} <= {
        finding.check for finding in row.passed
    }
    assert all(
        torch.equal(one, other) for one, other in zip(engine.model.parameters(), alone.model.parameters(), strict=True)
    )
    assert not {"micro_batch", "update"} & vars(engine).keys()


def test_a_mistake_in_a_framework_is_named(listening, tmp_path):
    """Labels that the engine shifts, and its model again."""
    row = judged(Engine(shift=1), listening, tmp_path)

    assert "labels_as_configured" in [finding.check for finding in row.failed]
