"""Weights in fp32 that a loop trains under its own autocast: bf16 rounds small updates away until they add up."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.checks import CHECKS
from tunecheck.core.evidence import Oracle
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options


@pytest.mark.parametrize("cast", [True, False], ids=["bf16", "fp32"])
def test_a_loss_is_compared_in_the_arithmetic_of_its_pass(cast, tmp_path):
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
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    trace = read(path)

    assert [oracle.step for oracle in trace.all(Oracle)] == [0, 1]
    for check in ("loss_oracle", "accumulation_oracle"):
        finding = CHECKS[check]()(trace)
        assert finding.passed, finding
