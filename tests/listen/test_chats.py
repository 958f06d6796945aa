"""Rows of a chat in a loop: the form that the tokenizer's template gives them, on the CPU in fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.scripts.script import MODEL
from tests.probes.test_turns import ZEPHYR
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

STEPS = 5


@pytest.mark.parametrize(
    ("form", "suspected"),
    [
        ("<|user|>\n{}</s>\n<|assistant|>\n{}</s>\n", False),
        ("Question: {}\nAnswer: {}</s>\n", False),
        ("<|user|>\n{}</s>\n{}</s>\n", True),
        ("<|user|>\n{}</s>\n<|bot|>\n{}</s>\n", True),
    ],
    ids=["the template's", "no chat", "no mark", "another mark"],
)
def test_the_assistants_turn_is_marked_as_the_users_is(form, suspected, tmp_path):
    """The model begins its answers behind that mark; a text of another form is none of the template's."""
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer.chat_template = ZEPHYR
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS), tokenizer=tokenizer)
    hooks.attach()
    for step in range(STEPS):
        rows = [form.format(f"What is {number} plus {step}?", f"It is {number + step}.") for number in range(10, 14)]
        given = tokenizer(rows, padding=True, return_tensors="pt")
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        model(**given, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["answers_end"]()(read(path))

    assert (finding.status is Status.SUSPECTED) is suspected, finding.detail
