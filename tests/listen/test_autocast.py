"""Weights in fp32 that a loop trains under its own autocast: bf16 rounds small updates away until they add up."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.checks import CHECKS
from tunecheck.core.evidence import Oracle, WeightGradient
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options


@pytest.mark.parametrize(("cast", "within"), [(True, False), (True, True), (False, False)])
def test_a_loss_is_compared_in_the_arithmetic_of_its_pass(cast, within, tmp_path):
    """Small steps away from weights of a 16-bit file fall by 1.5 % in fp32 alone: bf16 rounds most of them back."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.3, **size)).bfloat16().float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    rows = torch.randint(3, 64, (1, 4, 16)).expand(3, -1, -1)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=3))
    hooks.attach()
    for ids in rows:
        with torch.autocast("cpu", torch.bfloat16) if cast else nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
            if within:
                loss.backward()
        if not within:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    trace = read(path)

    assert [oracle.step for oracle in trace.all(Oracle)] == [0, 1]
    # products of our own are in fp32, also in a backward pass within autocast, so that rounding shows
    assert all(seen.error > 1e-4 for seen in trace.all(WeightGradient) if "bfloat16" in seen.dtypes)
    for check in ("loss_oracle", "accumulation_oracle"):
        finding = CHECKS[check]()(trace)
        assert finding.passed, finding
