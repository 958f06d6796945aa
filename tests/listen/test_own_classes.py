"""A class's name and a library's default declare nothing: what a script's own class does is its own. fp32, CPU."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaAttention

from benchmarks.scripts.script import Script, judged, plain_loop


class AdamW(torch.optim.Optimizer):
    """An optimizer of the script's own, by sign."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Move each weight by the rate."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-group["lr"])


class ThreeBetas(AdamW):
    """One whose betas are three, as AdEMAMix's."""

    def __init__(self, params, lr):
        super().__init__(params, lr, betas=(0.9, 0.999, 0.9999))


class Derived(torch.optim.AdamW):
    """One that derives from torch's, and steps by its own code."""

    step = AdamW.step


class Plain(torch.optim.AdamW):
    """One that steps by torch's code."""


def stepped_by(kind):
    """Return a loop that trains by this optimizer."""

    def loop(script, model, batches):
        optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for at in range(script.steps):
            model(**batches[at % len(batches)]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


@pytest.mark.parametrize(("kind", "judges"), [(AdamW, False), (ThreeBetas, False), (Derived, False), (Plain, True)])
def test_an_optimizer_is_judged_by_its_arithmetic(kind, judges, tmp_path):
    """Not by what its class is called."""
    row = judged(Script(steps=3, rows=12, loop=stepped_by(kind)), tmp_path)

    assert row.outcome == "pass", [finding.detail for finding in row.failed]
    assert ("updates_match_adamw" in {finding.check for finding in row.passed}) == judges


class OwnAttention(LlamaAttention):
    """Attention that computes as it likes."""

    def forward(self, *args, **kwargs):
        """Call what it derives from, without a word of which kernel that takes."""
        return super().forward(*args, **kwargs)


def test_attention_of_a_class_of_its_own_follows_no_setting(tmp_path):
    """The configuration's default says nothing of it."""

    def replace(model):
        for layer in model.model.layers:
            layer.self_attn.__class__ = OwnAttention
        model.config._attn_implementation = "eager"

    row = judged(Script(steps=3, rows=12, loop=plain_loop, loaded=[replace]), tmp_path)

    assert row.outcome == "pass", [finding.detail for finding in row.failed]
    reasons = {finding.check: finding.detail for finding in row.unjudged}
    assert "OwnAttention computes attention in its own code" in reasons["attention_as_configured"]


@pytest.mark.parametrize(("holds", "outcome"), [("model", "pass"), ("a copy", "fail")])
def test_an_optimizer_that_a_trainer_is_given(holds, outcome, tmp_path):
    """Its groups are read, whatever it computes."""

    def give(trainer):
        held = trainer.model if holds == "model" else Script().model_and_tokenizer()[0]
        trainer.optimizer = torch.optim.SGD([p for p in held.parameters() if p.requires_grad], lr=1e-2)

    row = judged(Script(steps=3, rows=12, built=[give]), tmp_path)

    assert row.outcome == outcome, [finding.detail for finding in row.failed]
    assert (outcome == "fail") == ("optimizer_coverage" in {finding.check for finding in row.failed})
