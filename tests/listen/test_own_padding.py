"""Rows that are padded without a mask, before a model of the script's own: the tokenizer says what padding is. fp32."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput

from benchmarks.scripts.script import MODEL
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen import trained_model
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

TOKENS = 300


class Net(torch.nn.Module):
    """Scores of the next token."""

    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(TOKENS, 8), torch.nn.Linear(8, TOKENS)

    def forward(self, input_ids):
        """Return the scores alone."""
        return self.head(self.table(input_ids))


class Derived(PreTrainedModel):
    """The same as a class of transformers', which holds no other such model."""

    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.net = Net()

    def forward(self, input_ids):
        """Return an output with scores and no hidden states."""
        return CausalLMOutput(logits=self.net(input_ids))


@pytest.fixture(scope="module")
def tokenizer():
    """That of the shipped model, which has a token for padding."""
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.mark.parametrize("learned", [False, True], ids=["ignored", "learned"])
@pytest.mark.parametrize("made", [Net, lambda: Derived(PretrainedConfig())], ids=["own", "derived"])
def test_padding_that_is_learned_without_a_mask(made, learned, tokenizer, tmp_path):
    """Rows end in more or less of the tokenizer's padding."""
    torch.manual_seed(0)
    model, pad = made(), tokenizer.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=3), tokenizer=tokenizer)
    hooks.attach()
    for _ in range(3):
        ids = torch.randint(10, 250, (4, 13))
        for row, length in enumerate((4, 6, 9, 12)):
            ids[row, length:] = pad
        scores = getattr(out := model(ids[:, :-1]), "logits", out)
        cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-100 if learned else pad).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["no_loss_on_padding"]()(read(path))

    assert finding.status is (Status.FAILED if learned else Status.PASSED), finding.detail


def test_the_only_tokenizer_of_a_process_is_the_loops(tokenizer, monkeypatch):
    """Copies are the same one; of two that differ nobody knows which."""
    other = AutoTokenizer.from_pretrained(MODEL, pad_token="</s>")
    for held, found in (([], None), ([object(), tokenizer, tokenizer], tokenizer), ([tokenizer, other], None)):
        monkeypatch.setattr("gc.get_objects", lambda held=held: held)
        assert trained_model.only_tokenizer() is found


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda model, ids, mask, labels: model(input_ids=ids, attention_mask=mask, labels=labels), Status.PASSED),
        (lambda model, ids, mask, labels: model(ids, mask, labels=labels), Status.PASSED),
        (lambda model, ids, mask, labels: model(ids.clamp(min=1), mask, labels=labels), Status.PASSED),
        (lambda model, ids, mask, labels: model(ids, torch.ones_like(mask), labels=labels), Status.SUSPECTED),
        (lambda model, ids, mask, labels: model(input_ids=ids, labels=labels), Status.SUSPECTED),
    ],
    ids=["by name", "by place", "by the mask alone", "of ones", "none"],
)
def test_padding_that_an_encoder_reads(call, status, tmp_path):
    """A mask hides it; without one each token attends to it."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=3))
    hooks.attach()
    for _ in range(3):
        ids = torch.randint(1, 40, (6, 12))
        for row, length in enumerate(range(6, 12)):
            ids[row, length:] = config.pad_token_id
        call(model, ids, (ids != config.pad_token_id).long(), torch.arange(6) % 2).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    assert CHECKS["padding_hidden"]()(read(path)).status is status


TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def heard(model, loss_of, folder, steps=3):
    """Return the trace of a loop over rows of 40 kinds of tokens, 6 to 12 long."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(folder), name="script", steps=steps))
    hooks.attach()
    for _ in range(steps):
        ids, lengths = torch.randint(1, 40, (6, 12)), torch.arange(6, 12) + 1
        mask = (torch.arange(12) < lengths[:, None]).long()
        loss_of(ids * mask, mask, lengths).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = folder.glob("watch-*.jsonl")
    return read(path)


@pytest.mark.parametrize(
    ("pooled", "status"),
    [
        (lambda states, mask, lengths: states[torch.arange(6), lengths - 1], Status.PASSED),
        (lambda states, mask, lengths: (states * mask[..., None]).sum(1) / lengths[:, None], Status.PASSED),
        (lambda states, mask, lengths: states[:, 0], Status.SUSPECTED),
    ],
    ids=["last", "mean", "first"],
)
@pytest.mark.parametrize("masked", [True, False])
def test_a_causal_models_row_is_read_where_it_ends(pooled, status, masked, tmp_path):
    """Its first position sees one token, whatever the row says."""
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(vocab_size=40, **TINY))
    model.head = torch.nn.Linear(16, 2)

    def loss_of(ids, mask, lengths):
        states = model(ids, attention_mask=mask if masked else None).last_hidden_state
        return cross_entropy(model.head(pooled(states, mask, lengths)), torch.arange(6) % 2)

    assert CHECKS["rows_reach_loss"]()(heard(model, loss_of, tmp_path)).status is status


@pytest.mark.parametrize(("shift", "status"), [(1, Status.PASSED), (0, Status.FAILED)])
def test_targets_that_are_lowered_are_targets_too(shift, status, tmp_path):
    """A policy gradient lowers what did worse than its group: half of its rows."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **TINY))

    def loss_of(ids, mask, lengths):
        likely = model(ids, attention_mask=mask).logits[:, : 12 - shift].log_softmax(-1)
        likely = likely.gather(-1, ids[:, shift:, None])[..., 0] * mask[:, shift:]
        return -(likely.sum(1) * (torch.arange(6) % 2 - 0.5)).mean()

    assert CHECKS["no_target_leakage"]()(heard(model, loss_of, tmp_path)).status is status


@pytest.mark.parametrize(("shifts", "status"), [((1, 1), Status.PASSED), ((0, 1), Status.FAILED)])
def test_each_pass_of_a_step_is_looked_at(shifts, status, tmp_path):
    """Of a preference loss the chosen answers' targets alone may be off."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **TINY))

    def likely(ids, mask, shift):
        found = model(ids, attention_mask=mask).logits[:, : 12 - shift].log_softmax(-1)
        return (found.gather(-1, ids[:, shift:, None])[..., 0] * mask[:, shift:]).sum(1)

    def loss_of(ids, mask, lengths):
        chosen, rejected = likely(ids, mask, shifts[0]), likely(ids.flip(0), mask.flip(0), shifts[1])
        return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()

    assert CHECKS["no_target_leakage"]()(heard(model, loss_of, tmp_path)).status is status


class Places(torch.nn.Module):
    """A score of each place, of tokens of which the table says that 0 is padding."""

    def __init__(self, around=None):
        super().__init__()
        self.table = torch.nn.Embedding(40, 16, padding_idx=0)
        self.around, self.head = around, torch.nn.Linear(16, 1)

    def forward(self, ids, mask):
        """Return them, [rows, places]; of an encoder's states, as a tuple, if there is one."""
        states = self.table(ids) if self.around is None else self.around(ids, mask, return_dict=False)[0]
        return self.head(states)[..., 0]


@pytest.mark.parametrize(("how", "status"), [("masked", Status.PASSED), ("padded", Status.SUSPECTED)])
@pytest.mark.parametrize("around", [False, True], ids=["table", "tuple"])
def test_places_that_a_table_calls_padding(around, how, status, tmp_path):
    """No place of padding is to be scored; that of an encoder of transformers is proven to be some."""
    torch.manual_seed(0)
    model = Places(BertModel(BertConfig(vocab_size=40, **TINY)) if around else None)

    def loss_of(ids, mask, lengths):
        scores = model(ids, mask)
        wanted = torch.rand(scores.shape)
        if how == "masked":
            scores, wanted = scores[mask.bool()], wanted[mask.bool()]
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted)

    found = CHECKS["no_loss_on_padding"]()(heard(model, loss_of, tmp_path))
    assert found.status is (Status.FAILED if around and how == "padded" else status), found.detail


class Embeds(torch.nn.Module):
    """A text's embedding, of as many numbers as there are positions, or scores of where an answer stands in it."""

    def __init__(self, how):
        super().__init__()
        self.bert = BertModel(BertConfig(vocab_size=40, **{**TINY, "hidden_size": 12}))
        self.how, self.head = how, torch.nn.Linear(12, 1)

    def forward(self, ids, mask):
        """Return [rows, 12]."""
        states = self.bert(ids, mask).last_hidden_state
        if self.how == "chosen":
            return self.head(states)[..., 0]
        shown = mask[..., None] if self.how == "masked" else torch.ones_like(states)
        return torch.nn.functional.normalize((states * shown).sum(1), dim=1)


@pytest.mark.parametrize(
    ("how", "status"), [("masked", Status.PASSED), ("mean", Status.FAILED), ("chosen", Status.UNJUDGED)]
)
def test_an_embedding_is_no_choice_among_positions(how, status, tmp_path):
    """Its gradients are balanced as those of a softmax are: a norm has left all embeddings without a mean."""
    torch.manual_seed(0)
    model = Embeds(how)

    def loss_of(ids, mask, lengths):
        found = model(ids, mask)
        scores = found if how == "chosen" else found @ model(ids.flip(0), mask.flip(0)).T
        return cross_entropy(scores, torch.arange(6))

    assert CHECKS["no_loss_on_padding"]()(heard(model, loss_of, tmp_path)).status is status


@pytest.mark.parametrize(
    ("filling", "status"), [(0, Status.FAILED), (103, Status.SUSPECTED)], ids=["padding", "[MASK]"]
)
def test_what_a_mask_hides_may_be_no_padding(filling, status, tmp_path):
    """ColBERT fills its queries up with [MASK], hides them from attention, and scores documents by them."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=TOKENS, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=3))
    hooks.attach()
    for _ in range(3):
        ids, mask = torch.randint(110, 250, (4, 12)), torch.ones(4, 12, dtype=torch.long)
        for row, length in enumerate((4, 6, 9, 12)):
            ids[row, length:], mask[row, length:] = filling, 0
        model(input_ids=ids, attention_mask=mask).last_hidden_state.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()

    (path,) = tmp_path.glob("watch-*.jsonl")
    assert CHECKS["no_loss_on_padding"]()(read(path)).status is status
