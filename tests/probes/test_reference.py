"""The forward pass's reference: what it accepts of a healthy model, and what it sees of one that is less exact."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.detection.bugs.forward import norms_in_sixteen_bit, rotary_table_in_bf16
from tunecheck.checks.forward import EPSILON, ForwardMatchesArchitecture
from tunecheck.models.description import Architecture
from tunecheck.probes.reference.architecture import (
    ROTARY,
    WatchedAttention,
    deviations,
    has_formulas,
    recorded,
    worst_gain,
)
from tunecheck.probes.reference.backward import layer_errors
from tunecheck.training.hooks import OwnHooks

ARCHITECTURE = Architecture(
    model_type="llama",
    vocab_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


@pytest.fixture
def model() -> Any:
    """Two random layers, the norms' weights off 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**ARCHITECTURE.model_dump(exclude={"model_type"}, exclude_none=True))).eval()
    for name, parameter in made.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter.data, 0.5, 1.5)
    return made


def seen(model: Any) -> tuple[dict[str, float], float | None]:
    """The relations' errors and the worst gain's, of one row."""
    ids = torch.arange(64)[None]
    with torch.no_grad(), recorded(model) as calls:
        logits = model(input_ids=ids, use_cache=False).logits
    computed, exact = deviations(model, ARCHITECTURE, calls, logits)
    return computed | exact, worst_gain(model, ARCHITECTURE, calls)[0]


def test_what_is_recorded_keeps_no_graph(model: Any) -> None:
    """Also where peft asks for the gradient of the embedding's output, which a forward without gradients keeps."""
    model.enable_input_require_grads()
    with torch.no_grad(), recorded(model) as calls:
        model(input_ids=torch.arange(8)[None], use_cache=False)

    assert not [name for name, kept in calls.items() if any(tensor.requires_grad for tensor in kept)]


def test_layers_that_hold_other_modules_have_no_formulas(model: Any) -> None:
    """As where adaption prompts stand around an attention, whose linears then have other names."""
    assert has_formulas(ARCHITECTURE, model)
    model.model.layers[1].self_attn = torch.nn.Sequential(model.model.layers[1].self_attn)
    assert not has_formulas(ARCHITECTURE, model)


@pytest.mark.parametrize("padded", [slice(0, 9), slice(9, 30), slice(50, 64)], ids=["before", "within", "behind"])
def test_attention_of_a_padded_row_is_compared_at_its_positions(model: Any, padded: slice) -> None:
    """Padding within a row leaves a gap between the tokens' positions, which their rotations have, too."""
    ids, mask = torch.arange(64)[None], torch.ones(1, 64, dtype=torch.long)
    mask[:, padded] = 0
    with OwnHooks() as hooks:
        watched = WatchedAttention(model, ARCHITECTURE, lambda: [(ids, mask)], hooks)
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    rows, error = watched.seen()

    assert rows == 1
    assert error < 1e-6


def test_a_rotary_table_in_16_bit_is_seen(model: Any) -> None:
    """Even where attention, of random weights, hardly depends on it."""
    healthy = seen(model)[0]
    rotary_table_in_bf16(SimpleNamespace(model=model))  # type: ignore[arg-type]
    broken = seen(model)[0]
    limit = ForwardMatchesArchitecture().max_error_fp32

    assert max(healthy.values()) <= limit
    assert broken[ROTARY] > limit


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_norms_in_16_bit_are_told_from_norms_whose_result_is_rounded(model: Any, precision: str, dtype: Any) -> None:
    """By their gain: both round every element, and only one rounds a token's scale."""
    limit = ForwardMatchesArchitecture().max_gain_ulps * EPSILON[precision]
    model.to(dtype)
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = 0  # as torch makes the padding's, which a row without a mask holds too
    healthy = seen(model)[1]
    norms_in_sixteen_bit(SimpleNamespace(model=model))  # type: ignore[arg-type]
    broken = seen(model)[1]

    assert healthy is not None
    assert broken is not None
    assert healthy <= limit / 2
    assert broken >= 2 * limit


def test_a_scale_of_nearly_one_tells_nothing_of_a_norm_in_16_bit(model: Any) -> None:
    """It moves no element from its place, so that all are off by as much as the scale is off 1. bf16."""
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        sizes = 1 + torch.linspace(0.1, 0.3, len(weight)) * EPSILON["bf16"]
        weight *= sizes[:, None] / weight.square().mean(1, keepdim=True).sqrt()
    gain = seen(model.to(torch.bfloat16))[1]

    assert (gain or 0.0) <= ForwardMatchesArchitecture().max_gain_ulps * EPSILON["bf16"] / 2


def errors_of_layers(model: Any) -> dict[str, float]:
    """Those in fp32 arithmetic, of the model in bf16 in train mode; its rotary frequencies stay in fp32."""
    frequencies = model.model.rotary_emb.inv_freq
    model.to(torch.bfloat16).train()
    model.model.rotary_emb.inv_freq = frequencies
    return layer_errors(model, ARCHITECTURE, torch.device("cpu"), training=True, widened=True)


def test_every_layer_is_held_against_its_formulas_and_left_as_it_was(model: Any) -> None:
    """In fp32 arithmetic, forwards and backwards, and no mode or dtype is another one afterwards."""
    errors = errors_of_layers(model)

    assert max(errors.values()) < 1e-5
    assert "first layer's attention" in errors
    assert "layer 1's activation, its gradient by up, padded" in errors
    assert all(module.training for module in model.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_layer_that_is_another_function_in_train_mode_is_seen(model: Any) -> None:
    """Two thousandths are lost in the rounding of 16 bit; the first layer, and every layer in eval mode, is right."""
    activation = model.model.layers[1].mlp.act_fn
    activation.register_forward_hook(lambda module, _args, out: 1.002 * out if module.training else out)

    wrong = {name for name, error in errors_of_layers(model).items() if error > 1e-4}

    assert wrong
    assert all(name.startswith("layer 1's activation") for name in wrong)
