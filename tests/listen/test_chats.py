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
from tunecheck.training.data import IGNORED

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


def row_of(how, number, tokenizer):
    """Tokens of a conversation and what is learned of it, which is the answer and its end unless something is wrong."""
    start, end = tokenizer.bos_token_id, tokenizer.pad_token_id if "padding" in how else tokenizer.eos_token_id
    turns = [
        ("<|system|>\nBe kind.</s>\n", how == "all"),
        ("<|user|>\n", how == "all"),
        (f"What is {number} plus {number % 7}?</s>\n", "user" in how or how == "all"),
        ("<|assistant|>\n", how in ("all", "the header")),
        (f"It is {number + number % 7}.", how != "the user alone"),
    ]
    if "the answer is" in how:
        turns.insert(3 if "shown" in how else 1, (turns[-1][0], False))
    ids = [start]
    labels = [IGNORED]
    for text, learned in turns:
        found = [start] * (how == "a start within" and text[:2] == "It")
        found += tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += found
        labels += found if learned else [IGNORED] * len(found)
    return [*ids, end], [*labels, IGNORED if how in ("the end is padding", "the user alone") else end]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("all", "of the supervised tokens are prompt"),
        *(("the answer", ""), ("a learned end is padding", ""), ("the answer is quoted", "")),
        ("the answer is shown", "contain their answer in the prompt"),
        ("the header", "have the mark that begins the model's turn supervised"),
        ("user and answer", "the user's turns supervised"),
        ("the user alone", "the user's turns supervised"),
        ("a start within", "have it again where the answer begins"),
        ("the end is padding", "a masked padding token"),
    ],
)
def test_what_is_learned_of_a_conversation(how, told, tmp_path):
    """Its answer, or all of it; in one piece, with its end."""
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer.chat_template = ZEPHYR
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS), tokenizer=tokenizer)
    hooks.attach()
    for step in range(STEPS):
        rows = [row_of(how, 4**length + step, tokenizer) for length in range(1, 5)]
        width = max(len(ids) for ids, _ in rows)
        pad, lacking = tokenizer.pad_token_id, [width - len(ids) for ids, _ in rows]
        ids = torch.tensor([[*ids, *[pad] * more] for (ids, _), more in zip(rows, lacking, strict=True)])
        labels = torch.tensor([[*own, *[IGNORED] * more] for (_, own), more in zip(rows, lacking, strict=True)])
        mask = torch.tensor([[1] * (width - more) + [0] * more for more in lacking])
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["labels_as_configured"]()(read(path))

    assert finding.status is (Status.SUSPECTED if told else Status.PASSED), finding.detail
    assert told in finding.detail


@pytest.mark.parametrize(
    ("ended", "whole", "status"),
    [
        (True, True, Status.FAILED),
        (False, True, Status.PASSED),
        (False, False, Status.SUSPECTED),
    ],
    ids=["rows end", "rows have a mark of their own", "no row is whole"],
)
def test_padding_that_is_attended_to_is_no_end_of_a_row(ended, whole, status, tmp_path):
    """The end token is the padding, all of it is masked, and the model is given no mask."""
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
    end, optimizer = tokenizer.eos_token_id, torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS), tokenizer=tokenizer)
    hooks.attach()
    for step in range(STEPS):
        texts = [f"{'so ' * length}{step} ###" for length in (1, 4, 9, 16)]
        rows = [[*tokenizer(text)["input_ids"], *[end] * ended] for text in texts]
        width = max(map(len, rows)) + (0 if whole else 8)
        ids = torch.tensor([[*row, *[end] * (width - len(row))] for row in rows])
        model(input_ids=ids, labels=ids.masked_fill(ids == end, IGNORED)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["labels_as_configured"]()(read(path))

    assert finding.status is status, finding.detail
