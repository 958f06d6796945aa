"""Tokens that a hook replaces between the batch and the embedding. fp32, CPU."""

from __future__ import annotations

import pytest
from in_process import train_here
from tiny_runs import run_with

from tunecheck.checks import CHECKS
from tunecheck.core.evidence import TokensReplaced


def replace_one(session):
    """Give every row's last token but one the number 5 in train mode."""

    def replace(module, args, given):
        ids = given["input_ids"].clone()
        ids[:, -2] = 5
        return (args, {**given, "input_ids": ids}) if module.training else None

    session.model.register_forward_pre_hook(replace, with_kwargs=True)


@pytest.mark.parametrize("trainer", ["native", "transformers"])
def test_tokens_replaced_on_their_way_are_told(trainer, tmp_path):
    """A run without such a hook is silent."""
    settings = "training.precision=fp32", "device=cpu", "evaluation.batch_size=2", f"trainer={trainer}"
    healthy, broken = (train_here(run_with(*settings), tmp_path, *faults) for faults in ((), (replace_one,)))

    assert not healthy.records(TokensReplaced)
    assert broken.records(TokensReplaced)
    finding = CHECKS["tokens_match_template"]()(broken)
    assert not finding.passed
    assert "the model reads tokens that no batch holds" in finding.detail
