"""A classifier's head, which no file of a base has, beside adapters: it learns, whatever the task_type. In fp32."""

from __future__ import annotations

import re

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from benchmarks.scripts.healthy import other_labels
from benchmarks.scripts.script import MODEL, Script, judged

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own


def classifier(dtype, **settings):
    """The shipped model's body, adapted, under a head that is drawn anew."""
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, dtype=dtype, pad_token_id=0)
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **settings))


def thaw(model):
    """Have the head learn, as a script does by hand."""
    model.base_model.model.score.requires_grad_(True)


@pytest.mark.parametrize(
    ("settings", "adapted", "failed"),
    [
        ({}, [], {"trainable_set", "state_in_training"}),
        ({}, [thaw], set()),
        ({"task_type": "SEQ_CLS"}, [], set()),
        ({"modules_to_save": ["score"]}, [], set()),
    ],
    ids=["frozen", "thawed by hand", "by its task", "by name"],
)
def test_a_head_that_was_drawn_learns(settings, adapted, failed, tmp_path):
    """Without a task peft leaves it as it is, frozen."""
    script = Script(lora=None, base=lambda dtype: classifier(dtype, **settings), adapted=adapted, rows=16, steps=4)
    other_labels(script)
    row = judged(script, tmp_path)

    assert {finding.check for finding in row.failed} == failed
    assert all("score.weight" in finding.detail for finding in row.failed)


@pytest.mark.parametrize(
    ("names", "failed"), [("norm", set()), ("norm|o_proj", {"trainable_set"})], ids=["norms", "and matrices"]
)
def test_what_is_thawed_by_hand_beside_adapters_is_asked_about(names, failed, tmp_path):
    """Embeddings and norms may be meant, as LongLoRA has it. In fp32."""

    def thaw_named(model):
        for name, parameter in model.named_parameters():
            if re.search(names, name):
                parameter.requires_grad_(True)

    row = judged(Script(rows=16, steps=4, adapted=[thaw_named]), tmp_path)

    assert failed <= {finding.check for finding in row.failed}
    assert failed or not row.failed, row.failed
    assert ("trainable_set" in {finding.check for finding in row.suspected}) is not bool(failed)
