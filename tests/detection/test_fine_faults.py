"""Faults smaller than what 16 bit rounds, or of a few steps alone, are named in fp32 and in bf16."""

from __future__ import annotations

import pytest
import torch
from rehearsing import failed, rehearsed

SLIGHTLY = 1.02


def embedding_too_large(session):
    """Hand on embeddings that are 2 % too large."""
    session.model.get_input_embeddings().register_forward_hook(lambda _m, _args, out: out * SLIGHTLY)


def head_too_large(session):
    """Make logits of the head 2 % too large."""
    session.model.get_output_embeddings().register_forward_hook(lambda _m, _args, out: out * SLIGHTLY)


def logits_too_large(session):
    """Return logits that are 2 % larger than the head's."""

    def scaled(_module, _args, out):
        out.logits = out.logits * SLIGHTLY
        return out

    session.model.get_base_model().register_forward_hook(scaled)


def branch_too_large(session):
    """Add the second layer's attention 2 % too large."""
    attention = session.model.get_decoder().layers[1].self_attn
    attention.register_forward_hook(lambda _m, _args, out: (out[0] * SLIGHTLY, *out[1:]))


def residual_too_large(session):
    """Hand the first layer's output on 2 % too large."""
    session.model.get_decoder().layers[0].register_forward_hook(lambda _m, _args, out: out * SLIGHTLY)


def product_too_large(session):
    """Make the product of a frozen linear 2 % too large, which is not the last one of its shape."""
    session.model.get_decoder().layers[0].mlp.up_proj.register_forward_hook(lambda _m, _args, out: out * SLIGHTLY)


def gradient_too_large(session):
    """Hand 2 % too much gradient down through a frozen linear."""
    linear = session.model.get_decoder().layers[0].self_attn.o_proj
    linear.register_full_backward_hook(lambda _m, gradients, _above: (gradients[0] * SLIGHTLY,))


FORWARD = [embedding_too_large, head_too_large, logits_too_large, branch_too_large, residual_too_large]
FORWARD += [product_too_large, gradient_too_large]


@pytest.mark.parametrize("fault", FORWARD)
def test_two_percent_of_a_forward_pass_are_seen_in_bf16(tmp_path, fault):
    """Copies and sums are exact there, and the head is computed once more in fp32."""
    settings = ["training.max_steps=3", "training.precision=bf16"]

    assert "forward_matches_architecture" in failed(rehearsed(tmp_path, *settings, faults=(fault,)), *settings)


@pytest.mark.parametrize("base", [(), ("strategy=lora", "quantization=null")], ids=["4 bit", "plain"])
def test_a_frozen_product_is_held_to_its_weight_in_fp32(tmp_path, base):
    """Adapters hide it from everything that looks at trained tensors."""
    settings = ["training.max_steps=3", *base]

    broken = failed(rehearsed(tmp_path, *settings, faults=(product_too_large,)), *settings)
    assert broken == {"forward_matches_architecture"}


def seeded_for_each_micro_batch(session):
    """Set torch's random state to that of the step again before each micro-batch's forward pass."""
    window, states = session.batches.window, []

    def changed(step):
        states[:] = [torch.get_rng_state()]
        return window(step)

    def again(*_):
        if torch.is_grad_enabled() and states:
            torch.set_rng_state(states[0])

    session.batches.window = changed
    session.model.register_forward_pre_hook(again)


def test_a_random_state_that_is_set_again_for_each_micro_batch_is_seen(tmp_path):
    """Each step begins with another one, and its micro-batches drop the same elements."""
    settings = ["training.max_steps=5", "lora.dropout=0.1", "training.gradient_accumulation_steps=2"]

    assert failed(rehearsed(tmp_path / "healthy", *settings), *settings) == set()
    broken = rehearsed(tmp_path, *settings, faults=(seeded_for_each_micro_batch,))
    assert "dropout_varies" in failed(broken, *settings)


class PermutedGradient:
    """Turn the rows of one adapter's gradient around in steps 2 to 5."""

    def __init__(self, name, steps=range(2, 6)):
        self.name, self.steps = name, steps

    def __call__(self, session):
        """Hook the tensor; the window tells the step."""
        window, now = session.batches.window, [0]

        def counted(step):
            now[0] = step
            return window(step)

        session.batches.window = counted
        parameter = dict(session.model.named_parameters())[self.name]

        def turned(p):
            if now[0] in self.steps:
                p.grad.copy_(p.grad.flip(0))

        parameter.register_post_accumulate_grad_hook(turned)


@pytest.mark.parametrize("module", ["layers.0.self_attn.q_proj.lora_B", "layers.1.self_attn.v_proj.lora_A"])
def test_a_gradient_that_is_permuted_in_some_steps_is_seen(tmp_path, module):
    """Its norm is right, and so is every other tensor's, and the steps of the oracle."""
    settings = ["training.max_steps=10", "probes.oracle_steps=[-2, -1]", "training.gradient_accumulation_steps=1"]
    fault = PermutedGradient(f"base_model.model.model.{module}.default.weight")

    assert "weight_gradients" in failed(rehearsed(tmp_path, *settings, faults=(fault,)), *settings)


@pytest.mark.parametrize("stale", [False, True])
def test_a_cache_of_the_prompt_before_is_seen_in_bf16(tmp_path, monkeypatch, stale):
    """One position's values: tokens that are decoded see a little of what was asked before."""
    from transformers.cache_utils import DynamicLayer

    update, before = DynamicLayer.update, {}

    def updated(layer, keys, values, *args, **kwargs):
        found = update(layer, keys, values, *args, **kwargs)
        if keys.shape[2] > 1 and (last := before.get(keys.shape[1:2])) is not None and stale:
            layer.values[:, :, 5] = last[:, :, 4].to(values.dtype)
        if keys.shape[2] > 1:
            before[keys.shape[1:2]] = values.clone()
        return found

    monkeypatch.setattr(DynamicLayer, "update", updated)
    settings = ["training.max_steps=3", "training.precision=bf16", "probes.generate=true"]

    assert ("generation_is_greedy" in failed(rehearsed(tmp_path, *settings), *settings)) is stale
