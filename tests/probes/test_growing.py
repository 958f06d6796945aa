"""Hooks and small tensors that libraries change by themselves in a training, and those that show a mistake."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.listen.premises import weighted_sampler
from tunecheck.probes.movement import MovementProbe
from tunecheck.probes.resources import LiveTensorProbe


def session_of(model):
    """What these probes ask of a session."""
    run = SimpleNamespace(training=SimpleNamespace(max_steps=5), holds=lambda premise: premise != "causal_lm")
    optimizer = SimpleNamespace(param_groups=[])
    return SimpleNamespace(
        model=model, run=run, device=torch.device("cpu"), entry=None, folder=None, optimizer=optimizer
    )


@pytest.mark.parametrize(("ours", "more"), [(False, 0), (True, 1)], ids=["a library's", "a script's"])
def test_hooks_that_ask_for_an_inputs_gradient_are_not_counted(ours, more):
    """Each time that recomputation is turned on libraries register another one, and it does nothing further."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model, seen = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)), []
    probe, session = LiveTensorProbe(seen.append), session_of(model)
    probe.start(session)
    for step in (3, 4):
        model.enable_input_require_grads()
        if ours:
            model.get_input_embeddings().register_forward_hook(lambda *_: None)
        probe.step_end(session, step, applied=True)

    assert seen[1].hooks - seen[0].hooks == more


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda linear: linear(torch.ones(1, 64, dtype=torch.bfloat16)), []),
        (lambda linear: linear.bias.data.mul_(2), ["linear.bias"]),
        (lambda linear: setattr(linear.bias, "data", 2 * linear.bias.data.bfloat16()), ["linear.bias"]),
    ],
    ids=["used", "doubled", "doubled in another dtype"],
)
def test_a_packed_linears_bias_may_be_had_in_its_inputs_dtype(change, changed):
    """bitsandbytes rounds it at the first pass; other values are none of its doing."""
    linear = Linear4bit(64, 64, compute_dtype=torch.bfloat16, quant_type="nf4").to("cpu").requires_grad_(False)
    torch.nn.init.normal_(linear.bias)
    model, seen = torch.nn.ModuleDict({"linear": linear, "learnt": torch.nn.Linear(2, 2)}), []
    probe, session = MovementProbe(seen.append), session_of(model)
    probe.start(session)

    change(linear)
    probe.end(session)

    assert [*seen[0].frozen_changed] == changed


@pytest.mark.parametrize(
    ("sampler", "found"),
    [
        (WeightedRandomSampler([1.0, 2.0], 2), "WeightedRandomSampler"),
        (WeightedRandomSampler([1.0, 2.0], 2, replacement=False), ""),
        (RandomSampler([1, 2], replacement=True), ""),
        (None, ""),
    ],
    ids=["weights", "once each", "no weights", "none"],
)
def test_weights_alone_declare_that_rows_come_again(sampler, found):
    """Whoever gives them means it; without them rows are drawn again by mistake."""
    loader = DataLoader([1, 2], sampler=sampler)
    assert weighted_sampler(loader) == found
    if sampler is not None:
        around = SimpleNamespace(batch_sampler=BatchSampler(sampler, 2, drop_last=False))  # as accelerate's are
        assert weighted_sampler(SimpleNamespace(base_dataloader=around)) == found
    assert weighted_sampler(None) == ""
