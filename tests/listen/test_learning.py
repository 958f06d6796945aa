"""A script that switches what learns, where no object declares it: what was heard before the switch is judged."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import tunecheck
from tunecheck.core.finding import Status
from tunecheck.listen.listener import Learning
from tunecheck.probes import movement


def names(model):
    """The tensors that learn."""
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.fixture
def model():
    """Two layers."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))


def test_layers_switched_are_told_and_put_back_for_a_last_look(model):
    """As LISA switches them; after the look the script's own choice stands."""
    first, second = model.model.layers
    first.requires_grad_(False)
    before = names(model)
    learning = Learning(model)
    assert learning.changed() == ""

    first.requires_grad_(True)
    second.requires_grad_(False)
    after = names(model)

    assert learning.changed().startswith("9 tensors start to train (model.layers.0.")
    assert "and 9 stop training (model.layers.1." in learning.changed()
    with learning.restored():
        assert names(model) == before
    assert names(model) == after


def test_another_adapter_is_told_and_the_first_one_put_back(model):
    """Two adapters trained in turn: in the look the first one is active, and it alone learns."""
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    adapted.add_adapter("second", config)
    layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
    adapted.set_adapter("default")
    learning = Learning(adapted)

    adapted.set_adapter("second")

    assert learning.changed().startswith("4 tensors start to train")
    with learning.restored():
        assert layer.active_adapters == ["default"]
        assert all(".default." in name for name in names(adapted))
    assert layer.active_adapters == ["second"]
    assert all(".second." in name for name in names(adapted))


@pytest.mark.parametrize(("written", "status"), [(False, Status.PASSED), (True, Status.FAILED)])
def test_what_a_classifier_thaws_is_not_its_base(written, status, tmp_path):
    """Gradual unfreezing (arXiv 1801.06146), from the top; what is still frozen must stay. In fp32."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=32, num_labels=3, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.bert.requires_grad_(False)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=4, tell=False) as told:
        for step in range(5):
            if step in (1, 3):
                model.bert.encoder.layer[-step].requires_grad_(True)
            model(input_ids=torch.randint(2, 32, (4, 8)), labels=torch.randint(0, 3, (4,))).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model.bert.encoder.layer[0].output.dense.weight.add_(0.01 * written)
    found = {finding.check: finding for finding in told.findings}["base_untouched"]

    assert found.status is status, found
    assert ("1 of 39 frozen tensors changed: bert.encoder.layer.0" in found.detail) is written


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ([1e-3, 5e-4, 2e-4], "the rates of 3 layers of model.layers fall from 0.001 to 0.0002"),
        ([2e-4, 5e-4, 1e-3], ""),
        ([1e-3, 1e-3, 2e-4], ""),
        ([1e-3, 5e-4, 0.0], ""),
    ],
    ids=["the first ones most", "the last ones most", "two kinds", "the last one rests"],
)
def test_rates_that_fall_toward_the_output_are_told(rates, told):
    """The first layers of a pretrained model are to change least (ULMFiT, arXiv 1801.06146)."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
    pairs = zip(model.model.layers, rates, strict=True)
    of = {id(p): rate for layer, rate in pairs for p in layer.parameters()}

    assert movement._rates_fall(model, of) == told


def classifier():
    """Three layers of BERT."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=32, num_labels=3, **sizes))


@pytest.mark.parametrize(("decay", "status"), [(0.5, Status.SUSPECTED), (2.0, Status.UNJUDGED)])
def test_a_decay_of_the_rate_that_runs_the_wrong_way_is_asked_about(decay, status, tmp_path):
    """By the layer, from the first one on. In fp32."""
    model = classifier()
    groups = [
        {"params": layer.parameters(), "lr": 1e-3 * decay**at} for at, layer in enumerate(model.bert.encoder.layer)
    ]
    beside = [*model.bert.embeddings.parameters(), *model.bert.pooler.parameters(), *model.classifier.parameters()]
    optimizer = torch.optim.AdamW([*groups, {"params": beside}], lr=1e-3)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=4, tell=False) as told:
        for _ in range(5):
            model(input_ids=torch.randint(2, 32, (4, 8)), labels=torch.randint(0, 3, (4,))).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    found = {finding.check: finding for finding in told.findings}["usual_tensors_learn"]

    assert found.status is status, found


@pytest.mark.parametrize("backward", [True, False])
def test_a_loop_that_never_calls_backward_is_told(backward, tmp_path):
    """A condition on the accumulation skips it. In fp32."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=4, tell=False) as told:
        for _ in range(5):
            loss = model(input_ids=torch.randint(2, 32, (4, 8)), labels=torch.randint(0, 3, (4,))).loss
            if backward:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    found = {finding.check: finding for finding in told.findings}["calls_in_order"]

    assert found.status is (Status.PASSED if backward else Status.SUSPECTED), found
    assert ("no backward pass" in found.detail) is not backward
