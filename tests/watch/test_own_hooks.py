"""Hooks of the script's own: those that change a forward pass, and whether they are random. In fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from suite.watch.own_hooks import BY_FUNCTION, BY_VALUE, changed_by_hooks


def noisy(module, _, out):
    """Noise in training (NEFTune, arXiv 2310.05914)."""
    return out + torch.rand_like(out) if module.training else out


def doubled(module, _, out):
    """The same each time."""
    return out * 2


def looking(module, _, out):
    """What makes a checkpointed model differentiable, and most hooks: they return nothing."""
    if out.is_floating_point():
        out.requires_grad_(True)
        return
    out.sum()


class Called:
    """An object as a hook may do anything."""

    def __call__(self, module, _, out):
        """Return what it is given."""
        return out


@pytest.mark.parametrize(
    ("hook", "unjudged", "varies"),
    [
        (noisy, BY_FUNCTION + BY_VALUE, True),
        (doubled, BY_FUNCTION, False),
        (Called(), BY_FUNCTION, False),
        (looking, (), False),
        (None, (), False),
    ],
    ids=["noise", "factor", "object", "looks on", "none"],
)
def test_hooks_that_change_a_forward_pass_leave_checks_unjudged(hook, unjudged, varies):
    """By what the hook can return, and by whether two passes of training then differ; the modes stay."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).eval()
    if hook is not None:
        model.get_input_embeddings().register_forward_hook(hook)
    state = torch.random.get_rng_state()

    told, random = changed_by_hooks(model)

    assert told.keys() == set(unjudged)
    assert random is varies
    assert all("test_own_hooks.py:" in why and "model.embed_tokens" in why for why in told.values())
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), state)
