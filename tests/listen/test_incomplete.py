"""Windows of a loop that have fewer micro-batches than the others. In fp32, on the CPU."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.scripts.script import MODEL
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

STEPS, ACCUMULATED = 3, 2


@pytest.mark.parametrize(
    ("first", "share", "asked"),
    [(0, 1 / 2, True), (0, 1.0, False), (1, 1 / 2, False)],
    ids=["a first window of one, halved", "a first window of one, whole", "full windows"],
)
def test_an_incomplete_window_that_counts_less_is_a_question(first, share, asked, tmp_path):
    """`if step % 2 == 0` steps after the first micro-batch already, whose loss is divided as in a full window."""
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS), tokenizer=tokenizer)
    hooks.attach()
    for step in range(ACCUMULATED * STEPS):
        ids = torch.tensor([tokenizer(f"{number} is a number")["input_ids"] for number in (10 + step, 20 + step)])
        loss = model(input_ids=ids, labels=ids).loss
        (loss * (share if first == step else 1 / ACCUMULATED)).backward()
        if step % ACCUMULATED == first:
            optimizer.step()
            optimizer.zero_grad()
    hooks.detach()
    trace = read(next(tmp_path.glob("watch-*.jsonl")))
    found = {name: CHECKS[name]()(trace) for name in ("loss_oracle", "accumulation_oracle")}

    assert found["loss_oracle"].status is (Status.SUSPECTED if asked else Status.PASSED), found["loss_oracle"].detail
    assert found["accumulation_oracle"].status is Status.PASSED, found["accumulation_oracle"].detail
