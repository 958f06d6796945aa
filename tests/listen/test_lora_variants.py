"""A LoraConfig whose layers compute otherwise than LoRA: peft says so, layer by layer, and its formula is not ours."""

from __future__ import annotations

from typing import Any

import peft
import pytest
from footprint import watch_probes
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from benchmarks.scripts.script import TARGETS, Script, judged
from benchmarks.scripts.strangers import adapted_by
from tunecheck.listen.adapters import adapter_variant, trained_tensors
from tunecheck.listen.loop_loss import OUTSIDE_FORWARD

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own
SETTINGS = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS}


@pytest.mark.skipif(not hasattr(peft, "KasaConfig"), reason="peft before 0.20 has no such variant")
def test_a_variant_of_peft_is_no_wrong_lora(tmp_path, monkeypatch):
    """KaSA puts a diagonal between A and B, and takes the smallest singular values out of the base."""
    script = Script(lora={**SETTINGS, "kasa_config": peft.KasaConfig()}, rows=20, steps=4)
    seen, changed = watch_probes(monkeypatch)
    row = judged(script, tmp_path)

    assert row.outcome == "pass"
    assert [*row.failed, *row.suspected] == []
    assert seen  # a second adapter would take singular values out of the base again
    assert not changed


class Held(Trainer):
    """Adds a penalty that no forward pass computes."""

    def compute_loss(self, model, inputs, return_outputs=False, **further):
        """Return the loss and the penalty."""
        loss = super().compute_loss(model, inputs, **further)
        return loss + sum(p.square().sum() for p in model.parameters() if p.requires_grad)


def test_a_penalty_beside_the_forward_pass_is_no_wrong_gradient(tmp_path):
    """What a layer's inputs and outputs give is not all of it, and is not held to be."""
    row = judged(Script(trainer=Held, rows=20, steps=4), tmp_path)
    unjudged = {finding.check: finding.detail for finding in row.unjudged}

    assert row.failed == []
    assert OUTSIDE_FORWARD in unjudged["weight_gradients"]


@pytest.mark.parametrize("dora", [False, True])
def test_lora_and_dora_are_known(dora):
    """The formula of both is held against what they compute."""
    model, _ = Script(lora={**SETTINGS, "use_dora": dora}).model_and_tokenizer()
    assert adapter_variant(model) == ""


def test_a_random_b_that_the_config_asks_for_is_a_question(tmp_path):
    """peft has it for tests; a training then starts from another model than the base."""
    row = judged(Script(lora={**SETTINGS, "init_lora_weights": False}, rows=20, steps=4), tmp_path)

    assert row.failed == []
    assert [finding.check for finding in row.suspected] == ["adapters_start_neutral", "lora_gradient_schedule"]


def test_adapters_that_were_injected_without_a_model_of_pefts_are_enumerated():
    """peft.inject_adapter_in_model, as transformers calls it, puts no model of its own around."""
    plain: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = peft.LoraConfig(r=4, target_modules=["q_proj"])
    model = LlamaForCausalLM(LlamaConfig(**plain, num_hidden_layers=2, num_key_value_heads=1))
    injected: Any = peft.inject_adapter_in_model(config, model)
    names, count = trained_tensors(injected, config)
    assert len(names) == 4
    assert count == sum(p.numel() for p in injected.parameters() if p.requires_grad)


OTHERS: dict[str, dict[str, Any]] = {
    "OFTConfig": {"r": 0, "oft_block_size": 8},  # weights of a rotation, which no product takes as they are
    "DeloraConfig": {"r": 4},  # keeps norms that are no modules
    "PsoftConfig": {"r": 8},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_adapters_of_peft_are_judged_by_what_holds_for_them(kind, tmp_path):
    """None of them is flagged, and no probe fails on what they put into the model."""
    if not hasattr(peft, kind):
        pytest.skip("this peft has no such adapters")
    config = getattr(peft, kind)(**{"target_modules": TARGETS, **OTHERS[kind]})
    script = Script(lora=None, base=adapted_by(config), rows=20, steps=4)
    row = judged(script, tmp_path)

    assert row.outcome == "pass", row.reason
    assert [*row.failed, *row.suspected] == []


@pytest.mark.parametrize(
    ("kind", "settings", "asked"),
    [
        pytest.param(
            *("PveraConfig", {"r": 8, "target_modules": ["q_proj"]}, ["forward_deterministic", "accumulation_oracle"]),
            id="draws_numbers",
        ),
        pytest.param("LilyConfig", {"r": 4}, ["accumulation_oracle"], id="routes_by_the_mean_over_the_batch"),
    ],
)
def test_adapters_that_may_mix_rows_or_draw_numbers_are_asked_about(kind, settings, asked, tmp_path):
    """Their formulas are not known here, so that nothing proves a gradient of theirs to be wrong."""
    if not hasattr(peft, kind):
        pytest.skip("this peft has no such adapters")
    config = getattr(peft, kind)(**{"target_modules": TARGETS, **settings})
    row = judged(Script(lora=None, base=adapted_by(config), rows=20, steps=4), tmp_path)

    assert row.failed == []
    assert [finding.check for finding in row.suspected] == asked
