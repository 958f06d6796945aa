"""Every hook raises, and the training goes on bit for bit as without watch; nothing is judged by what is left."""

from __future__ import annotations

import pytest
import torch

from benchmarks.scripts.script import Script, judged, plain_loop, trained
from tunecheck.core.errors import TraceError
from tunecheck.training.hooks import Hooks


class Failing(Hooks):
    """Hooks each of which raises when it is called."""

    def guarded(self, call, *, returns=False, **_):
        """Return what raises instead of calling this."""

        def fails(*_, **__):
            raise RuntimeError("of ours")

        return super().guarded(fails, returns=returns)


def script_of(kind, weights):
    """A training of three steps, which leaves its weights here."""
    script = Script(steps=3, rows=12)
    if kind == "a loop":

        def loop(script, model, batches):
            plain_loop(script, model, batches)
            weights.append([p.detach().clone() for p in model.parameters() if p.requires_grad])

        script.loop = loop
    else:
        script.built.append(lambda trainer: weights.append([p for p in trainer.model.parameters() if p.requires_grad]))
    return script


def alone(kind, weights, folder):
    """Train it without watch."""
    script = script_of(kind, weights)
    if script.loop is None:
        trained(script, folder)
    else:
        model, tokenizer = script.model_and_tokenizer()
        rows = script.examples(tokenizer)
        script.loop(script, model, [script.collate(tokenizer, rows[at : at + 2]) for at in range(0, 11, 2)])


@pytest.mark.parametrize("whose", ["tunecheck.training.events.Hooks", "tunecheck.listen.loop.Hooks"])
def test_a_loop_is_left_alone(whose, tmp_path, monkeypatch):
    """Of the probes: they are left out, one by one. Of what listens: all of it ends."""
    weights = []
    alone("a loop", weights, tmp_path)
    monkeypatch.setattr(whose, Failing)
    if "events" in whose:
        check(judged(script_of("a loop", weights), tmp_path), weights)
    else:
        with pytest.raises(ValueError, match="not enough values"):  # no trace
            judged(script_of("a loop", weights), tmp_path)
        same(weights)


@pytest.mark.parametrize("whose", ["tunecheck.training.events.Hooks", "tunecheck.listen.hf_trainer.Hooks"])
def test_a_trainer_is_left_alone(whose, tmp_path, monkeypatch):
    """The same."""
    weights = []
    alone("a Trainer", weights, tmp_path)
    monkeypatch.setattr(whose, Failing)
    script = script_of("a Trainer", weights)
    if "events" in whose:
        check(judged(script, tmp_path), weights)
    else:
        with pytest.raises(TraceError, match="describes no run"):  # it says why, and the command passes it on
            judged(script, tmp_path)
        same(weights)


def same(weights):
    """The weights of both trainings are the same bits."""
    first, second = weights
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def check(row, weights):
    """Nothing failed, and what is missing says why."""
    same(weights)
    assert [finding.check for finding in row.failed] == []
    lost = {finding.check: finding.detail for finding in row.unjudged if "of ours" in finding.detail}
    assert {"state_in_training", "calls_in_order"} <= lost.keys()
    assert all("RuntimeError: of ours (test_failing_hooks.py:" in detail for detail in lost.values())
