"""Scripts that let products of fp32 matrices lose bits, which a card does by TF32. fp32, CPU."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.core.evidence import Setup
from tunecheck.core.trace import read
from tunecheck.listen.launch import rows_of
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options
from tunecheck.training.restore import MATMULS


class Rounded(torch.autograd.Function):
    """A product whose factors keep 10 bits, as on a card, unless the setting says otherwise."""

    @staticmethod
    def forward(ctx, x, weight):
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return _rounded(x) @ _rounded(weight).t()

    @staticmethod
    def backward(ctx, gradient):
        """Multiply what arrives in the same way."""
        x, weight = ctx.saved_tensors
        rows = _rounded(gradient).flatten(0, -2)
        return _rounded(gradient) @ _rounded(weight), rows.t() @ _rounded(x).flatten(0, -2)


def _rounded(tensor):
    if MATMULS[0].fp32_precision != "tf32":
        return tensor
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def heard(folder, set_up):
    """Train a small model under watch in a script that sets this, and return its trace and row."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.2, **size))
    options = Options(folder=str(folder), name="script", steps=3)
    hooks = LoopHooks(options)
    hooks.attach()
    set_up()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        ids = torch.randint(3, 64, (4, 16))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (row,) = rows_of(folder, options, 0)
    (path,) = folder.glob("watch-*.jsonl")
    return read(path), row


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Have linears multiply as a card does, begin as a new process does, and put torch's settings back."""
    everywhere, before = torch.backends.fp32_precision, [backend.fp32_precision for backend in MATMULS]
    for backend in (torch.backends, *MATMULS):
        backend.fp32_precision = "none"
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight, bias=None: Rounded.apply(x, weight))
    yield
    torch.backends.fp32_precision = everywhere
    torch.set_float32_matmul_precision("highest")
    for backend, precision in zip(MATMULS, before, strict=True):
        backend.fp32_precision = precision


@pytest.mark.parametrize("newer", [True, False], ids=["newer names", "older functions"])
def test_a_script_may_allow_tf32(newer, tmp_path):
    """Its products then have the limits of 16 bit. Our own keep their bits, and so are the device's judged."""

    def allow():
        if newer:
            torch.backends.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("medium")

    trace, row = heard(tmp_path, allow)

    assert trace.one(Setup).numerics["tf32_matmul"]
    assert row.outcome == "pass", [(f.check, f.detail) for f in (*row.failed, *row.unjudged)]
    passed = {finding.check for finding in row.findings if finding.passed}
    assert passed >= {"loss_oracle", "accumulation_oracle", "weight_gradients", "forward_matches_architecture"}
    assert passed >= {"matmul_precision"}


def test_a_product_that_is_rounded_unasked_is_named(tmp_path, monkeypatch):
    """As where only the environment has TF32 on: nothing declares it, and the limits are those of fp32."""
    monkeypatch.setattr("test_products._rounded", lambda tensor: tensor.bfloat16().float())
    _, row = heard(tmp_path, lambda: None)

    assert row.outcome == "fail"
