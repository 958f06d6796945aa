"""A LoraConfig whose layers compute otherwise than LoRA: peft says so, layer by layer, and its formula is not ours."""

from __future__ import annotations

from typing import Any

import peft
import pytest
from footprint import watch_probes
from torch.nn.functional import cross_entropy
from transformers import Trainer

from benchmarks.scripts.script import TARGETS, Script, judged, plain_loop
from benchmarks.scripts.strangers import adapted_by
from tunecheck.listen.adapters import adapter_variant
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


class OwnForward(peft.PeftModel):
    """A script's own class, which takes two inputs and returns the logits alone."""

    def forward(self, input_ids, attention_mask):
        """Return the logits."""
        return super().forward(input_ids, attention_mask=attention_mask).logits


ADAPTED = {
    "injected": lambda model, config: (peft.inject_adapter_in_model(config, model),) * 2,
    "base called": lambda model, config: (adapted := peft.get_peft_model(model, config), adapted.get_base_model()),
    "tuner called": lambda model, config: (adapted := peft.get_peft_model(model, config), adapted.base_model),
    "own class": lambda model, config: (OwnForward(model, config),) * 2,
}


@pytest.mark.parametrize("case", ADAPTED)
def test_adapters_without_a_call_of_pefts_model_are_no_missing_ones(case, tmp_path):
    """The model inside is called, by whose names no configuration enumerates adapters."""

    def loop(script, model, batches):
        adapted, called = ADAPTED[case](model, peft.LoraConfig(task_type="CAUSAL_LM", **SETTINGS))
        for name, parameter in adapted.named_parameters():
            parameter.requires_grad_("lora_" in name)

        def loss(_, batch):
            given = {name: batch[name] for name in ("input_ids", "attention_mask")}
            if case != "own class":
                return called(**given, labels=batch["labels"]).loss
            return cross_entropy(called(**given)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

        plain_loop(script, adapted, batches, loss=loss)

    row = judged(Script(lora=None, rows=20, steps=4, loop=loop), tmp_path)

    assert [*row.failed, *row.suspected] == []
    assert row.outcome == "pass", row.reason
    assert "optimizer_coverage" in {finding.check for finding in row.passed}


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
