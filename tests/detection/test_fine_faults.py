"""Faults smaller than what 16 bit rounds, or of a few steps alone, are named in fp32 and in bf16."""

from __future__ import annotations

import pytest
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


FORWARD = [embedding_too_large, head_too_large, logits_too_large, branch_too_large, residual_too_large]


@pytest.mark.parametrize("fault", FORWARD)
def test_two_percent_of_a_forward_pass_are_seen_in_bf16(tmp_path, fault):
    """Copies and sums are exact there, and the head is computed once more in fp32."""
    settings = ["training.max_steps=3", "training.precision=bf16"]

    assert "forward_matches_architecture" in failed(rehearsed(tmp_path, *settings, faults=(fault,)), *settings)
