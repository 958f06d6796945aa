"""Trainings of a script that end before their first step: said to be that, with the reason. Nothing is trained."""

from __future__ import annotations

import sys

import pytest
import torch
import torch._dynamo.utils
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.core.trace import read
from tunecheck.listen.launch import rows_of, watch
from tunecheck.listen.listener import Listener
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options
from tunecheck.results import core_of


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("num_samples=0"), "the training ended before its first step: ValueError: num_samples=0"),
        (KeyboardInterrupt(), "the training ended before its first step: by Ctrl-C"),
        (None, "the training ended before its first step"),
    ],
    ids=["raises", "interrupted", "no steps"],
)
def test_a_training_without_a_step_could_not_be_judged(error, told, tmp_path):
    """Whatever status the script has."""
    options = Options(folder=str(tmp_path), name="train", steps=5)
    Listener(options).close(error)

    for status in (0, 1):
        [row] = rows_of(tmp_path, options, status)
        assert (row.outcome, row.reason) == ("error", told)


def test_a_training_that_cannot_be_listened_to_says_why(tmp_path, capsys):
    """What went wrong in listening comes before how the training ended."""
    options = Options(folder=str(tmp_path), name="train", steps=5)
    listener = Listener(options)
    listener.tried(lambda: {}["config"])
    listener.close(RuntimeError("of the script's own"))

    [row] = rows_of(tmp_path, options, 1)
    assert row.reason.startswith("this training cannot be watched: KeyError: 'config'")
    assert "stopped watching" in capsys.readouterr().err
    [path] = tmp_path.glob("*.jsonl")
    assert "optimizer" in core_of(read(path))  # as the report's page asks


def test_a_model_differentiated_without_an_optimizer_is_told_with_what_to_do(tmp_path):
    """As a script does that writes its updates out itself; one that differentiates nothing trains nothing."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes, attn_implementation="eager"))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    ids = torch.arange(8)[None]

    def loss(held):
        return torch.func.functional_call(model, held, kwargs={"input_ids": ids, "labels": ids}).loss

    hooks = LoopHooks(Options(folder=str(tmp_path), name="train"))
    hooks.attach()
    try:
        model(input_ids=ids)
        assert hooks.why_not() == ""
        torch.func.grad(loss)(weights)
    finally:
        hooks.detach()

    assert "a LlamaForCausalLM was called and differentiated (by a transform of torch.func)" in hooks.why_not()
    assert "pass model.parameters() to an optimizer of torch.optim, and call its step" in hooks.why_not()


@pytest.mark.parametrize("looks", [False, True], ids=["within it alone", "and a look outside"])
def test_gradients_of_each_example_leave_no_error(looks, tmp_path):
    """A transform's tensors hold no numbers: what calls the model is told, and a pass outside of it is listened to."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(held, row):
        return torch.func.functional_call(model, held, (row,)).square().sum()

    hooks = LoopHooks(Options(folder=str(tmp_path), name="train", steps=3))
    hooks.attach()
    for _ in range(4):
        held = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if looks:
            model(torch.randn(3, 4))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(held, torch.randn(8, 4))
        for name, parameter in model.named_parameters():
            parameter.grad = each[name].sum(dim=0)
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()

    assert not hooks.hooks.error
    assert hooks.why_not() == ("" if looks else "SGD stepped, but a transform of torch.func calls the Linear")


@pytest.mark.parametrize(
    ("words", "why"),
    [(["-c", "pass"], "no transformers Trainer"), (["-I", "-c", "pass"], "no Python process of it loaded tunecheck")],
    ids=["trains nothing", "isolated"],
)
def test_a_command_that_loads_no_tunecheck_is_told_from_one_that_trains_nothing(words, why, tmp_path):
    """What to change is in the reason."""
    report, _ = watch([sys.executable, *words], Options(folder=str(tmp_path), name="train", steps=4))

    [row] = report.runs
    assert row.outcome == "error"
    assert why in row.reason


def test_a_step_that_is_compiled_whole_is_told(tmp_path, monkeypatch):
    """No module is called where torch.compile has made one function of a step."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="train", steps=3))
    hooks.attach()
    weight.square().sum().backward()
    optimizer.step()
    hooks.detach()

    told = {}
    for frames in ({}, {"total": 1}):
        monkeypatch.setitem(torch._dynamo.utils.counters, "frames", frames)
        told[bool(frames)] = "; torch.compile hides what it compiles" in hooks.why_not()
    assert told == {False: False, True: True}
