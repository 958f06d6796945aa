"""Hooks of the script's own: those that add noise in training, and those that change the function. In fp32."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.scripts.script import Script, judged
from tunecheck.listen.user_code import code_of, noise_by_hooks, overrides


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


def always_noisy(module, _, out):
    """Noise in evaluations, too."""
    return out + torch.rand_like(out)


class Called:
    """An object as a hook may do anything."""

    def __call__(self, module, _, out):
        """Add noise in training."""
        return noisy(module, _, out)


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (noisy, "noisy (test_user_hooks.py:"),
        (Called(), "Called (test_user_hooks.py:"),
        (always_noisy, ""),
        (doubled, ""),
        (looking, ""),
        (None, ""),
    ],
    ids=["noise", "object", "noise always", "factor", "looks on", "none"],
)
def test_noise_in_training_alone_is_the_scripts_own(hook, told):
    """Whatever changes the function in eval mode is not: it is judged. The modes and the random state stay."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).eval()
    if hook is not None:
        model.get_input_embeddings().register_forward_hook(hook)
    state = torch.random.get_rng_state()

    found = noise_by_hooks(model)

    assert (told in found) if told else not found
    assert not model.training
    model.get_input_embeddings()._forward_hooks.clear()
    model.model.layers[0].register_forward_hook(noisy)
    assert noise_by_hooks(model) == ""  # behind the embeddings
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_full_training_with_declared_noise_passes(tmp_path):
    """The noise is in what the embedding returns, which is then no product of its weights."""
    row = judged(Script(lora=None, arguments={"neftune_noise_alpha": 5}, rows=20, steps=4), tmp_path)

    assert row.outcome == "pass", [(finding.check, finding.detail) for finding in row.failed]


def test_a_method_that_an_older_trainer_lacks_is_not_the_scripts():
    """transformers 4.45 has no get_batch_samples."""
    assert not overrides(object(), "get_batch_samples")


@pytest.mark.parametrize("installed", [True, False])
def test_what_pip_puts_into_any_folder_is_a_librarys(installed, tmp_path, monkeypatch):
    """As with --target, beside a module of the script's own."""
    (tmp_path / "bought.py").write_text("def loss(): ...\n")
    (tmp_path / "bought-1.0.dist-info").mkdir()
    listed = "bought.py,,\n" if installed else "another.py,,\n"
    (tmp_path / "bought-1.0.dist-info" / "RECORD").write_text(listed)
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("bought").loss
    del sys.modules["bought"]

    assert (code_of("loss", function) is None) is installed
