"""Bytes by arithmetic: exact against reference numbers, and against transformers' own models."""

from __future__ import annotations

from math import prod

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tunecheck.config import find_run, load_model, load_run
from tunecheck.core.errors import Unsupported
from tunecheck.memory.prediction import StaticBytes, assumed_precision, packed_bytes, static_bytes
from tunecheck.models.shapes import is_layer_linear, tensor_shapes
from tunecheck.strategies import trained_shapes
from tunecheck.training.load import DTYPES

QV, QKVO = "[q_proj, v_proj]", "[q_proj, k_proj, v_proj, o_proj]"
ALL_LINEAR = "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"

# From public model configurations, cross-checked with bitsandbytes' and transformers' own figures: parameters, those of
# the quantised linears, LoRA r=8 on q and v, LoRA r=16 on every linear, transformers' get_memory_footprint() of the
# 4-bit model, and the weights in NF4 with double quantisation and the rest in bf16 (rounded to 10 kB).
REFERENCE = {
    "smollm2-135m": (134_515_008, 106_168_320, 460_800, 4_884_480, 109_777_536, 111_690_000),
    "qwen2-0.5b": (494_032_768, 357_826_560, 540_672, 8_798_208, 451_325_696, 457_190_000),
    "tinyllama-1.1b": (1_100_048_384, 968_884_224, 1_126_400, 12_615_680, 746_770_432, 762_310_000),
    "llama-7b": (6_738_415_616, 6_476_005_376, 4_194_304, 39_976_960, 3_762_823_168, 3_865_840_000),
}


def run_with(*settings):
    """The quick run with these settings."""
    return load_run(find_run("quick/smollm2-135m-qlora"), settings)


def adapters(model, rank, targets):
    """Parameters of these adapters."""
    run = run_with(f"model={model}", f"lora.r={rank}", f"lora.target_modules={targets}")
    return sum(map(prod, trained_shapes(run, tensor_shapes(run.model.architecture))))


@pytest.mark.parametrize("model", REFERENCE)
def test_reference_numbers_come_out_exactly(model):
    """Parameters, adapters and weights on the card."""
    total, linear, lora_qv, lora_all, footprint, loaded = REFERENCE[model]
    shapes = tensor_shapes(load_model(model).architecture)
    linears = [prod(shape) for name, shape in shapes.items() if is_layer_linear(name, shape)]

    assert (sum(map(prod, shapes.values())), sum(linears)) == (total, linear)
    assert (adapters(model, 8, QV), adapters(model, 16, ALL_LINEAR)) == (lora_qv, lora_all)
    assert linear // 2 + 2 * (total - linear) == footprint
    assert round(static_bytes(run_with(f"model={model}")).weights, -4) == loaded


def test_llama_with_four_targets():
    """The full tier's adapters."""
    assert adapters("llama-7b", 8, QKVO) == 8_388_608


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("smollm2-135m", {}),
        ("tinyllama-1.1b", {}),
        ("llama-7b", {}),
        ("qwen2-0.5b", {}),
        ("smollm2-135m", {"model_type": "mistral", "tie_word_embeddings": False}),
        ("smollm2-135m", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    ],
    ids=["smollm2", "tinyllama", "llama", "qwen2", "mistral", "biases"],
)
def test_tensors_are_those_of_transformers(model, changes):
    """Every name and shape, enumerated without the library, is in its model and nothing else."""
    architecture = load_model(model).architecture
    architecture = type(architecture)(**{**architecture.model_dump(), **changes, "num_hidden_layers": 2})
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture.model_dump()))

    assert tensor_shapes(architecture) == {name: tuple(weight.shape) for name, weight in theirs.named_parameters()}


def test_packed_bytes_are_those_of_bitsandbytes():
    """With and without the second level of statistics, whatever remains of the last block."""
    from bitsandbytes.functional import quantize_4bit

    for elements in (64 * 256, 64 * 300, 64 * 7):
        for double_quant in (True, False):
            packed, state = quantize_4bit(torch.randn(elements // 64, 64), compress_statistics=double_quant)
            nested = [state.offset, state.state2.absmax, state.state2.code] if double_quant else []
            tensors = [packed, state.absmax, state.code, *nested]
            assert packed_bytes(elements, double_quant) == sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["lora.adapter_dtype=fp32"], (54_998_520, 56_693_376, 1_843_200, 1_843_200, 3_686_880)),
        (["lora.adapter_dtype=mixed"], (54_998_520, 56_693_376, 1_843_200, 1_843_200, 3_686_880)),
        (["lora.adapter_dtype=model"], (54_998_520, 56_693_376, 921_600, 921_600, 1_843_680)),
        (["quantization.double_quant=false"], (59_733_120, 56_693_376, 1_843_200, 1_843_200, 3_686_880)),
        (["training.precision=fp32"], (54_998_520, 113_386_752, 1_843_200, 1_843_200, 3_686_880)),
        (["strategy=lora", "quantization=null"], (0, 269_030_016, 1_843_200, 1_843_200, 3_686_880)),
        (
            ["strategy=full", "quantization=null", "lora=null"],
            (0, 538_060_032, 0, 538_060_032, 1_076_121_152),
        ),
    ],
    ids=["fp32 adapters", "mixed", "16-bit adapters", "one level", "fp32", "lora", "full"],
)
def test_bytes_follow_the_settings(settings, expected):
    """By kind: quantised, other weights, adapters, gradients, optimizer."""
    names = ("quantised_weights", "other_weights", "adapters", "gradients", "optimizer")

    found = static_bytes(run_with(*settings))

    assert found == StaticBytes(**dict(zip(names, expected, strict=True)))
    assert found.total == sum(expected)


def test_auto_precision_is_that_of_a_recent_card():
    """And every precision has a dtype."""
    assert assumed_precision(run_with()) == "bf16"
    assert {assumed_precision(run_with(f"training.precision={name}")) for name in DTYPES} == set(DTYPES)


def test_an_unknown_architecture_is_refused():
    """With the way out."""
    run = run_with("model.architecture.model_type=gemma")
    with pytest.raises(Unsupported, match=r"model_type is 'gemma'.*llama, mistral, qwen2; add it to"):
        static_bytes(run)


def test_an_unknown_target_is_refused():
    """As the trainer does; a run whose architecture is known does not even load."""
    run = run_with()
    lora = run.lora.model_copy(update={"target_modules": ["q"]})
    with pytest.raises(Unsupported, match="'q' is in no layer"):
        static_bytes(run.model_copy(update={"lora": lora}))
