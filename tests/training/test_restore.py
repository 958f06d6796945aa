"""Contexts that leave a model and a process as they were. fp32, CPU."""

from __future__ import annotations

import io
import random
import sys
import threading
from types import SimpleNamespace

import bitsandbytes
import numpy as np
import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model

from tunecheck.training.restore import (
    MATMULS,
    as_found,
    exact_products,
    model_mode,
    products,
    random_state,
    unprinted,
    without_adapters,
)


class Carries(torch.nn.Module):
    """A module whose forward leaves buffers, numbers, a tensor, a list, drawn generators and a new attribute behind."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.seen = torch.nn.Linear(2, 2), 0, []
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("another", torch.zeros(2))
        self.state, self.counter = torch.zeros(2), SimpleNamespace(calls=0, newer=np.random.default_rng(0))
        self.python, self.torch = random.Random(0), torch.Generator()
        self.numpy, self.newer = np.random.RandomState(0), np.random.default_rng(0)

    def forward(self, x):
        """Count, remember and average."""
        self.calls += 1
        self.seen.append(x)
        self.mean += x.mean(0)
        self.another = 0.9 * self.another + x.mean(0)
        self.state.add_(x.mean(0))
        self.counter.calls += 1
        self.draws()
        self.last = x
        return self.linear(x)

    def draws(self):
        """Return a number of each generator."""
        given = self.python.random(), float(torch.rand((), generator=self.torch)), self.numpy.rand()
        return *given, self.newer.random(), self.counter.newer.random()


def test_what_a_forward_pass_leaves_behind_is_put_back():
    """The list is the same object, and a single module's own mode is as it was."""
    model = Carries()
    model.linear.eval()
    seen = model.seen
    with model_mode(model, True):
        model(torch.ones(1, 2))
        assert model.calls == 1

    assert (model.calls, model.counter.calls, model.seen, hasattr(model, "last")) == (0, 0, [], False)
    assert model.draws() == Carries().draws()
    assert model.seen is seen
    assert not any(tensor.any() for tensor in (model.mean, model.another, model.state))
    assert (model.training, model.linear.training) == (True, False)


def test_a_layer_in_8_bit_keeps_its_weights():
    """Its first pass takes the scales from the weight's attributes into an object of the layer."""
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear8bitLt(16, 8, bias=False, has_fp16_weights=False)
    layer.load_state_dict(torch.nn.Linear(16, 8, bias=False).state_dict())
    layer, given = layer.to("cpu"), torch.randn(4, 16)
    with as_found(layer):
        first = layer(given)

    assert layer.weight.SCB is not None
    assert torch.equal(layer(given), first)


def test_merged_adapters_are_not_taken_out_of_the_weights():
    """Putting them back would round: nothing is done, and it is said."""
    model = inject_adapter_in_model(LoraConfig(target_modules=["linear"], init_lora_weights=False), Carries())
    model.linear.merge()
    before = model.linear.base_layer.weight.clone()

    with pytest.raises(RuntimeError, match="1 layers have their adapters merged"), without_adapters(model):
        model(torch.ones(1, 2))
    assert torch.equal(model.linear.base_layer.weight, before)


def test_only_this_thread_prints_nothing(capsys):
    """What another one prints meanwhile is there."""
    with unprinted():
        print("of a pass made again")
        other = threading.Thread(target=print, args=("of the script",))
        other.start()
        other.join()
    print("after")

    assert capsys.readouterr().out == "of the script\nafter\n"


def test_what_another_thread_puts_in_the_place_of_the_output_stays(monkeypatch):
    """A script may begin to copy it to a file."""
    own = io.StringIO()
    monkeypatch.setattr(sys, "stdout", sys.stdout)

    with unprinted():
        other = threading.Thread(target=setattr, args=(sys, "stdout", own))
        other.start()
        other.join()

    assert sys.stdout is own


def test_the_random_states_of_all_gpus_are_put_back(monkeypatch):
    """A model may lie on several of them, the first part of it on the host."""
    states = {0: torch.zeros(2, dtype=torch.uint8), 1: torch.ones(2, dtype=torch.uint8)}
    fakes = {
        "is_initialized": lambda: True,
        "device_count": lambda: len(states),
        "get_rng_state": lambda device: states[device].clone(),
        "set_rng_state": lambda state, device: states.update({device: state}),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    with random_state(torch.device("cpu")):
        states[1] += 1
        states[0] += 5

    assert [state.tolist() for state in states.values()] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("newer", [True, False], ids=["newer names", "older functions"])
def test_products_keep_their_bits_in_the_block_alone(newer):
    """Whatever a script allows them to lose, and by whichever of torch's two interfaces: after one the other raises."""
    before = [backend.fp32_precision for backend in MATMULS]
    try:
        if newer:
            MATMULS[0].fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("medium")
        allowed = products()
        with exact_products(), exact_products():
            assert {backend.fp32_precision for backend in MATMULS} == {"ieee"}
            assert products() == allowed
        assert products() == allowed == tuple(backend.fp32_precision for backend in MATMULS)
        assert allowed[0] == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")
        for backend, precision in zip(MATMULS, before, strict=True):
            backend.fp32_precision = precision
