"""Tokens a second and model FLOPs: against arithmetic done by hand, and against the multiplications torch counts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from metered import metered
from torch.utils.flop_counter import FlopCounterMode
from traces import with_record

from tunecheck.checks.speed import ModelFlopsUtilization
from tunecheck.checks.utilization import flops_per_token, formula, peak_flops_per_second, tokens_per_second
from tunecheck.config import find_run, load_run
from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.snapshot import RunSnapshot
from tunecheck.models.layer_names import layer_of
from tunecheck.strategies import STRATEGIES

CHECK = ModelFlopsUtilization(min_utilization=0.01)
SMALL = ["model.architecture.num_hidden_layers=4", "model.parameters=42472512"]


def asked(*overrides: str) -> RunSnapshot:
    """The quick run as a trace holds it."""
    return RunSnapshot(load_run(find_run("quick/smollm2-135m-qlora"), overrides).model_dump(mode="json"))


def test_the_figures_of_smollm2_are_those_of_arithmetic_by_hand() -> None:
    """4(N+H) with N = 106,168,320 and H = 49,152 x 576, attention 6 L T q, adapters 6 x 460,800; as at T = 512."""
    flops = flops_per_token(asked(), 512, 460_800, ())

    assert flops == 4 * (106_168_320 + 49_152 * 576) + 6 * 30 * 512 * 576 + 6 * 460_800


@pytest.mark.parametrize("untied", [False, True], ids=["tied head", "untied head"])
@pytest.mark.parametrize(
    "strategy", [name for name, strategy in STRATEGIES.items() if not strategy.sections and name != "bitfit"]
)
def test_training_the_base_is_what_torch_counts(strategy, untied) -> None:
    """A forward and a backward of the real architecture; attention apart, whose causal half torch counts whole."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = [*SMALL, f"strategy={strategy}", "lora=null", "quantization=null"]
    settings += ["model.architecture.tie_word_embeddings=false"] if untied else []
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)
    model = LlamaForCausalLM(LlamaConfig(**run.model.architecture.model_dump(), attn_implementation="eager"))
    STRATEGIES[strategy].adapt(model, run)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, 32, dtype=torch.long), use_cache=False).logits.sum().backward()
    half_a_square = 2 * 32 * 576
    below = any("embed_tokens" in name for name in trained)  # as a tied head is: the gradient passes every layer
    passed = 4 if below else 4 - min(number for name in trained if (number := layer_of(name)) is not None)

    wanted = (
        flops_per_token(RunSnapshot(run.model_dump(mode="json")), 32, 0, trained) + (4 + 2 * passed) * half_a_square
    )

    # the rotary frequencies are a product too, and the first layer's input is an embedding
    assert counter.get_total_flops() / 32 == pytest.approx(wanted, rel=1e-3)


def test_the_rate_is_a_median_after_the_warm_up() -> None:
    """The first two steps and a hiccup do not count, nor those that probes look at where there are later ones."""
    steps = metered(steps=100).steps

    rate = tokens_per_second(steps)

    assert rate is not None
    assert 1000 < rate < 3000
    assert tokens_per_second(steps[:2]) is None
    probed = [dataclasses.replace(step, seconds=9 * step.seconds) for step in steps[:20]]
    assert tokens_per_second([*probed, *steps[20:38]]) == tokens_per_second(steps[:2] + steps[20:38])


@pytest.mark.parametrize(
    ("card", "precision", "tflops"),
    [("NVIDIA H200", "bf16", 989.4), ("NVIDIA H100 PCIe", "fp16", 756.0), ("NVIDIA L40S", "bf16", 362.1)],
)
def test_a_known_card_has_its_datasheet_rate(card, precision, tflops) -> None:
    """By its whole name."""
    assert peak_flops_per_second(card, precision) == tflops * 1e12


@pytest.mark.parametrize(
    "card",
    ["NVIDIA L40", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"],
)
def test_a_card_whose_name_only_begins_alike_has_none(card) -> None:
    """Another chip, or a part of one."""
    assert peak_flops_per_second(card, "bf16") is None


def test_an_unknown_card_has_no_peak_rate() -> None:
    """So its utilization is unjudged, as expected, and the tokens a second are told all the same."""
    finding = CHECK(with_record(metered(), e.Setup, device_name="NVIDIA Unheard Of"))

    assert peak_flops_per_second("NVIDIA H200", "fp32") is None
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)
    assert "NVIDIA Unheard Of in bf16 has no peak rate" in finding.detail
    assert "tokens/s x" in finding.detail


def test_a_run_without_a_timed_step_is_unjudged() -> None:
    """Nothing was measured, which is no expected gap."""
    finding = CHECK(metered(steps=2))

    assert (finding.status, finding.expected) == (Status.UNJUDGED, False)
    assert "no step after the warm-up was timed" in finding.detail


def test_the_formula_is_told() -> None:
    """For each kind of training."""
    assert "frozen weights have no gradient" in formula(asked())
    assert "twice that backward" in formula(asked("strategy=full", "lora=null", "quantization=null"))
    assert "the lowest trained layer" in formula(
        asked("model=qwen2-0.5b", "strategy=bitfit", "lora=null", "quantization=null")
    )
