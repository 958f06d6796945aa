"""The lean profile is the plain training in less memory: the same losses step by step, never all logits at once."""

from __future__ import annotations

import pytest
import tiny
import torch

from tunecheck import assets as models
from tunecheck.config import find_run, load_run
from tunecheck.config.schema import PROFILES, Run
from tunecheck.training import native
from tunecheck.training.events import Probes
from tunecheck.training.session import Session

STEPS = 8


def run_with(*settings: str) -> Run:
    """The quick run on a tiny model, at a rate that makes losses move."""
    common = [f"training.max_steps={STEPS}", "training.learning_rate=2e-3", "probes.oracle_steps=[]"]
    return load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, *common, *settings])


def session_of(run: Run) -> Session:
    """A session on the CPU, ready for its first step."""
    found = models.resolve(run.model, allow_random=True)
    return native.build(run, found.path, torch.device("cpu"))


def losses(*settings: str) -> list[float]:
    """The loss of every step."""
    run = run_with(*settings)
    found: list[float] = []
    native.train(session_of(run), Probes((), lambda *records: None), range(STEPS), lambda step: found.append(step.loss))
    return found


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("fp32", 1e-6), ("bf16", 5e-4)],  # measured over 30 steps: 1.6e-7 and 6.5e-5
)
def test_lean_trains_as_plain_does(precision, tolerance):
    """Every step's loss agrees within the rounding of the arithmetic."""
    plain = losses(f"training.precision={precision}")
    lean = losses(f"training.precision={precision}", "profile=lean", "training.loss_chunk_tokens=32")

    assert lean == pytest.approx(plain, rel=tolerance)
    assert plain[-1] < plain[0]


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_a_loss_in_chunks_is_the_loss(chunk_tokens):
    """Loss and gradient are the same wherever the chunks are cut, and no more logits exist than were allowed."""
    whole, parts = session_of(run_with()), session_of(run_with(f"training.loss_chunk_tokens={chunk_tokens}"))
    batch = whole.batches.window(0)[0]
    rows = len(batch.input_ids)
    widths: list[int] = []
    parts.model.get_output_embeddings().register_forward_hook(lambda _m, _in, out: widths.append(out.shape[1]))

    wanted = native.forward(whole, batch, batch.supervised_tokens)
    got = native.forward(parts, batch, batch.supervised_tokens)
    wanted.backward()
    got.backward()

    assert float(got.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert (a.grad is None and b.grad is None) or torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7)
    assert max(widths) <= max(1, chunk_tokens // rows) + 1


def test_mixed_adapters_keep_fp32_weights_and_no_fp32_input():
    """Products are in the model's dtype, weights and gradients in fp32."""
    session = session_of(run_with("training.precision=bf16", "lora.adapter_dtype=mixed"))
    seen = set()
    for name, module in session.model.named_modules():
        if name.endswith((".lora_A.default", ".lora_B.default")):
            assert module.weight.dtype == torch.float32
            inner = module.forward
            module.forward = lambda x, inner=inner: (seen.add((x.dtype, inner(x).dtype)), inner(x))[1]

    batch = session.batches.window(0)[0]
    native.forward(session, batch, batch.supervised_tokens).backward()

    assert seen == {(torch.bfloat16, torch.bfloat16)}
    gradients = [p.grad for name, p in session.model.named_parameters() if ".lora_B." in name]
    assert gradients
    assert all(gradient.dtype == torch.float32 and gradient.any() for gradient in gradients)


def test_a_profile_presets_keys_and_the_yaml_wins():
    """What the YAML says is kept; the profile itself is no part of the fingerprint."""
    lean = run_with("profile=lean", "training.gradient_checkpointing=false")
    same = run_with("lora.adapter_dtype=mixed", "training.loss_chunk_tokens=32")

    assert not lean.training.gradient_checkpointing
    assert lean.training.loss_chunk_tokens == PROFILES["lean"]["training"]["loss_chunk_tokens"]
    assert lean.fingerprint == same.fingerprint != run_with().fingerprint
