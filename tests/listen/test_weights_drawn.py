"""Models that have a checkpoint's configuration and none of its weights, whole, and as a part of the script's. fp32."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
    configuration_utils,
)

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.declared import weights_drawn
from tunecheck.listen.imports import hear
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

BERT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "num_layers": 2, "num_heads": 2, "d_ff": 32, "num_decoder_layers": 2}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder of a model that has learnt: its norms are no longer 1."""
    torch.manual_seed(1)
    folder, model = tmp_path_factory.mktemp("bert"), BertModel(BertConfig(**BERT))
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" in name:
            nn.init.normal_(parameter, 1, 0.1)
    model.save_pretrained(folder)
    return folder


def told(model):
    """The matrices of each part that was never loaded."""
    return [(seen.model, seen.tensors > 9) for seen in weights_drawn(model)]


def test_a_model_that_is_built_from_a_configuration_is_told_from_one_that_is_loaded(bert):
    """In 16 bit, too, and below adapters; where its own norms are as they were built, the matrices tell."""
    drawn = AutoModel.from_config(AutoConfig.from_pretrained(bert))
    loaded = BertModel.from_pretrained(bert, dtype=torch.bfloat16)
    assert (told(drawn), told(loaded)) == ([("BertModel", True)], [])

    for module in loaded.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
    assert told(loaded) == []
    assert told(get_peft_model(drawn, LoraConfig(target_modules=["query"]))) == [("BertModel", True)]


def fill(model, folder):
    """Copy the file's values by hand, as after a conversion."""
    values = BertModel.from_pretrained(folder).state_dict()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(values[name])


def learn(model, folder):
    """Go on from another training, which left nothing as it was drawn."""
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter))


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({"num_hidden_layers": 1}, None),
        ({"intermediate_size": 48}, None),
        ({"hidden_size": 32}, None),
        ({}, fill),
        ({}, learn),
    ],
    ids=["fewer layers", "other layers", "all of another size", "filled by hand", "trained before"],
)
def test_a_configuration_may_begin_another_model(bert, changes, then):
    """A student borrows its teacher's, say."""
    model = BertModel(AutoConfig.from_pretrained(bert, **changes))
    if then is not None:
        then(model, bert)
    assert told(model) == []


def test_a_configuration_of_the_scripts_own_has_no_file(bert):
    """Though it has the same sizes."""
    assert told(BertModel(BertConfig(**BERT))) == []


class Around(nn.Module):
    """A model of transformers below a head of the script's own."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(16, 3)

    def forward(self, ids):
        """Return scores."""
        return self.head(self.body(ids).last_hidden_state[:, 0])


@pytest.mark.parametrize(
    ("build", "status"),
    [
        (lambda folder: BertModel(BertConfig.from_pretrained(folder)), Status.SUSPECTED),
        (BertModel.from_pretrained, Status.UNJUDGED),
    ],
    ids=["configuration", "weights"],
)
@pytest.mark.parametrize("loads", [False, True], ids=["", "loads a state"])
def test_a_part_that_was_never_loaded_is_asked_about(bert, build, status, loads, tmp_path):
    """A configuration that its own class reads does not say from where; a script may load what it has elsewhere."""
    with hear(configuration_utils), hear(torch):
        model = Around(build(bert))
        if loads:
            model.body.load_state_dict(model.body.state_dict())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=2))
        hooks.attach()
        for _ in range(2):
            cross_entropy(model(torch.randint(0, 40, (6, 9))), torch.arange(6) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
        hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["base_matches_file"]()(read(path))

    assert finding.status is (Status.UNJUDGED if loads else status), finding.detail
    assert ("matrices of the BertModel has its values in" in finding.detail) is (finding.status is Status.SUSPECTED)


def test_an_encoder_decoder_is_compared_in_full(tmp_path):
    """By the configuration of its own class, as everywhere."""
    with hear(configuration_utils):
        T5ForConditionalGeneration(T5Config(**T5)).save_pretrained(tmp_path)
        drawn = T5ForConditionalGeneration(T5Config.from_pretrained(tmp_path))
        assert told(drawn) == [("T5ForConditionalGeneration", True)]
        assert told(T5ForConditionalGeneration.from_pretrained(tmp_path)) == []
