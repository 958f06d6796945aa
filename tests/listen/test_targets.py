"""Targets that are cut off, copied or filled up, and rows that a model is to go on with. Tiny models, fp32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, ctc_loss
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

TOKENS, WIDTH, ROWS, STEPS = 300, 16, 6, 5
PAD, END = 0, 1


@pytest.fixture(autouse=True)
def no_other_tokenizer(monkeypatch):
    """A tokenizer that an earlier test's training left in this process is none of these scripts'."""
    monkeypatch.setattr("tunecheck.listen.loop_steps.only_tokenizer", lambda: None)


def judged(check, tmp_path, model, step, *, steps=STEPS):
    """Train this model by these losses, and return the finding of a check."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=steps))
    hooks.attach()
    for _ in range(steps):
        step(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    return CHECKS[check]()(read(path))


def expect(finding, words):
    """Hold a finding to be a question with these words, or none without any."""
    assert (finding.status is Status.SUSPECTED) is bool(words), finding.detail
    assert words in finding.detail


def texts(least, most):
    """Return rows of random tokens, without padding and end."""
    return [torch.randint(3, TOKENS, (int(torch.randint(least, most, ())),)) for _ in range(ROWS)]


def encoder_decoder():
    """Return a tiny T5."""
    torch.manual_seed(0)
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=TOKENS, decoder_start_token_id=PAD, **sizes))


@pytest.mark.parametrize(
    ("cut", "check", "words"),
    [
        (lambda row, target: target, "rows_whole", ""),
        (
            lambda row, target: target[:9],
            "rows_whole",
            "targets have 10 tokens, the most of all, and have an end token",
        ),
        (lambda row, target: target, "no_target_leakage", ""),
        (lambda row, target: row, "no_target_leakage", "targets stand in the rows that the encoder reads"),
        (lambda row, target: row[2:11], "no_target_leakage", "targets stand in the rows that the encoder reads"),
        (lambda row, target: row[10:14], "no_target_leakage", ""),
        (lambda row, target: torch.where(torch.rand(row.shape) < 0.2, PAD + 2, row), "no_target_leakage", ""),
    ],
    ids=["whole", "cut off", "summaries", "the input", "its beginning", "an extract", "an input with other words"],
)
def test_targets_of_an_encoder_decoder(cut, check, words, tmp_path):
    """Cut off before a kept end, or read from the column of the inputs."""

    def step(model):
        rows = texts(20, 40)
        targets = [torch.cat([cut(*pair), torch.tensor([END])]) for pair in zip(rows, texts(8, 30), strict=True)]
        ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
        labels = pad_sequence(targets, batch_first=True, padding_value=-100)
        return model(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss

    expect(judged(check, tmp_path, encoder_decoder(), step), words)


def causal():
    """Return a tiny Llama."""
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=TOKENS, pad_token_id=PAD, eos_token_id=END, **sizes))


@pytest.mark.parametrize(
    ("side", "words"), [("left", ""), ("right", "rows that generate() goes on with end in padding")]
)
def test_rows_that_a_decoder_goes_on_with(side, words, tmp_path):
    """Behind padding on the right it goes on with padding."""

    def step(model):
        ids = pad_sequence(texts(3, 9), batch_first=True, padding_value=PAD, padding_side=side)
        mask = (ids != PAD).long()
        written = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, do_sample=True)
        mask = torch.cat([mask, torch.ones_like(written[:, ids.shape[1] :])], dim=1)
        scores = model(input_ids=written, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        each = scores.gather(2, written[:, 1:, None])[:, ids.shape[1] - 1 :, 0]
        return -(torch.randn(ROWS, 1) * each).mean()

    expect(judged("padding_hidden", tmp_path, causal(), step), words)


@pytest.mark.parametrize("dropped", [True, False])
def test_a_policy_that_keeps_its_last_logits_alone(dropped, tmp_path):
    """One more than there are answers' tokens, and the last one is to be dropped."""

    def step(model):
        ids, kept = torch.randint(3, TOKENS, (ROWS, 12)), 8
        logits = model(ids, logits_to_keep=kept + dropped).logits[:, :kept]
        likelihoods = logits.log_softmax(-1).gather(2, ids[:, -kept:, None])
        return -(torch.exp(likelihoods - likelihoods.detach()) * torch.randn(ROWS, 1, 1)).mean()

    finding = judged("no_target_leakage", tmp_path, causal(), step)
    assert finding.status is (Status.PASSED if dropped else Status.FAILED), finding.detail


class Own(nn.Module):
    """A causal model of a script's own, of which nothing is known but its scores."""

    def __init__(self, tokens=TOKENS):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mix, self.head = nn.Embedding(tokens, WIDTH), nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, tokens)

    def forward(self, ids):
        """Return scores, [rows, positions, tokens]."""
        return self.head(self.mix(self.table(ids).transpose(0, 1))[0].transpose(0, 1))


def next_tokens(model, ids):
    """Return the mean loss of each row's next tokens, without those of -100."""
    return cross_entropy(model(ids.clamp(min=0))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def rows_of_patches(*, learned):
    """Return texts behind a place for a picture, which is one token again and again."""
    rows = [torch.cat([torch.full((20,), 2), text, torch.tensor([END])]) for text in texts(8, 20)]
    ids = pad_sequence(rows, batch_first=True, padding_value=-100)
    return ids if learned else torch.where(ids == 2, -100, ids)


def resting(rows=ROWS):
    """Return codes of a signal that rests now and then, and takes the same code elsewhere, too."""
    codes = torch.randint(0, 4, (rows, 64))
    codes[:, 20:30] = 3
    return codes


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda: rows_of_patches(learned=True), "runs of at least 16 equal targets"),
        (lambda: rows_of_patches(learned=False), ""),
        (lambda: pad_sequence(texts(8, 40), batch_first=True, padding_value=-100), ""),
        (resting, ""),
        (lambda: torch.where(torch.rand(ROWS, 24) < 0.96, 2, torch.randint(3, TOKENS, (ROWS, 24))), "one and the same"),
    ],
    ids=["placeholders", "placeholders that are not learned", "texts", "a signal", "words that are unknown"],
)
def test_targets_that_are_one_token(rows, words, tmp_path):
    """Again and again, or nearly all."""
    expect(judged("no_loss_on_padding", tmp_path, Own(), lambda model: next_tokens(model, rows())), words)


@pytest.mark.parametrize(("masked", "words"), [(True, ""), (False, "of the gradient is at")])
def test_padding_that_a_mask_multiplies_by_0(masked, words, tmp_path):
    """Of the loss of each position: its targets are nearly all padding, and learned without the mask alone."""

    def step(model):
        ids = pad_sequence([*texts(4, 6), torch.zeros(160, dtype=torch.long)], batch_first=True)[:ROWS]
        losses = cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        mask = (ids[:, 1:].flatten() != 0).float() if masked else torch.ones(len(losses))
        return (losses * mask).sum() / mask.sum()

    finding = judged("no_loss_on_padding", tmp_path, Own(), step)
    expect(finding, words)
    assert finding.status is not Status.UNJUDGED, finding.detail


DIVIDED = {
    "by all": (lambda losses, mask: (losses * mask).mean() / 2, "divided by all their positions"),
    "by those that learn": (lambda losses, mask: (losses * mask).sum() / mask.sum() / 2, ""),
    "by a constant": (lambda losses, mask: (losses * mask).sum() / 100, ""),
    "by rows": (lambda losses, mask: (losses * mask).sum() / ROWS, ""),
    "without a mask": (lambda losses, mask: losses.mean(), ""),
    "summed": (lambda losses, mask: (losses * mask).sum(), ""),
}
"""Losses of all positions, and a mask of those that are to learn."""


@pytest.mark.parametrize("how", DIVIDED)
def test_a_mean_is_of_what_learns(how, tmp_path):
    """Else rows with much padding teach less."""
    joined, words = DIVIDED[how]

    def step(model):
        ids = torch.randint(3, TOKENS, (ROWS, 24))
        losses = cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return joined(losses, (torch.rand(len(losses)) < 0.2 + 0.6 * torch.rand(())).float())

    expect(judged("no_loss_on_padding", tmp_path, Own(), step), words)


@pytest.mark.parametrize("how", ["ignored", "learned"])
def test_a_sum_that_is_divided_by_all_positions(how, tmp_path):
    """Though torch leaves ignored labels out of it."""

    def step(model):
        ids = torch.randint(3, TOKENS, (ROWS, 24))
        labels = torch.where(torch.rand(ids.shape) < 0.2 + 0.6 * torch.rand(()), -100, ids)[:, 1:].flatten()
        total = cross_entropy(model(ids)[:, :-1].flatten(0, 1), labels, reduction="sum")
        return total / (labels.numel() if how == "ignored" else (labels != -100).sum())

    expect(judged("no_loss_on_padding", tmp_path, Own(), step), "divided by all" if how == "ignored" else "")


@pytest.mark.parametrize(("spelt", "words"), [(True, "labels of one length, filled up"), (False, "")])
def test_labels_of_ctc(spelt, words, tmp_path):
    """Which end in padding, and whose lengths are that of the longest one."""
    torch.manual_seed(0)

    def step(model):
        labels = [torch.randint(2, 30, (int(torch.randint(4, 12, ())),)) for _ in range(ROWS)]
        targets = pad_sequence(labels, batch_first=True, padding_value=1)
        lengths = torch.tensor([targets.shape[1] if spelt else len(row) for row in labels])
        scores = model(torch.randn(40, ROWS, WIDTH)).log_softmax(-1)
        return ctc_loss(scores, targets, torch.full((ROWS,), 40), lengths)

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 30))
    expect(judged("no_loss_on_padding", tmp_path, model, step), words)


ITEMS = 40


class Both(nn.Module):
    """A masked model of items of a script's own, as BERT4Rec: 0 is padding, and the last one the mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(ITEMS + 2, WIDTH, padding_idx=0), nn.Embedding(24, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(WIDTH, ITEMS + 1)

    def forward(self, ids):
        """Return scores, [rows, positions, items]."""
        places = torch.arange(ids.shape[1])
        return self.head(self.layers(self.table(ids) + self.places(places), src_key_padding_mask=ids == 0))


@pytest.mark.parametrize("transformers_own", [False, True])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"mask": 7}, "is itself the target"),
        ({"learned": lambda hidden: ~hidden | hidden}, "read their own target"),
        ({"learned": lambda hidden: ~hidden}, "read their own target"),
        ({"share": 1.0}, ""),
    ],
    ids=["masked", "a mask that is an item", "all are learned", "all others are learned", "all at once"],
)
def test_masked_models(given, words, transformers_own, tmp_path):
    """The mask is no item, and what is learned is masked; or nearly all of it."""
    given = {"mask": ITEMS + 1, "learned": lambda hidden: hidden, "share": 0.3, **given}

    def step(model):
        ids = torch.randint(1, ITEMS + 1, (12, 24))
        ids[:, :5] *= torch.rand(12, 1) < 0.5
        hidden = (torch.rand(ids.shape) < given["share"]) & (ids != 0)
        labels = torch.where(given["learned"](hidden) & (ids != 0), ids, 0)
        shown = torch.where(hidden, given["mask"], ids)
        scores = model(shown)
        scores = scores.logits if transformers_own else scores
        return cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=0)

    sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    own = BertForMaskedLM(BertConfig(vocab_size=ITEMS + 2, **sizes)) if transformers_own else Both()
    expect_leak(judged("no_target_leakage", tmp_path, own, step), words)


def expect_leak(finding, words):
    """Hold a finding to be one with these words, whatever its rank, or none without any."""
    assert (finding.status in (Status.SUSPECTED, Status.FAILED)) is bool(words), finding
    assert words in finding.detail


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("turned", "words"), [(False, ""), (True, "positions that hold text")])
def test_a_key_padding_mask(turned, words, left, tmp_path):
    """Of an encoder of a script's own: True is to hide, not to show."""

    class Encoder(Both):
        def forward(self, ids):
            """Return scores of each row."""
            mask = ids != 0 if turned else ids == 0
            return self.head(self.layers(self.table(ids), src_key_padding_mask=mask).mean(dim=1))

    def step(model):
        rows = [torch.randint(1, ITEMS, (int(torch.randint(3, 20, ())),)) for _ in range(12)]
        side = "left" if left else "right"
        ids = pad_sequence(rows, batch_first=True, padding_value=0, padding_side=side)
        return cross_entropy(model(ids), torch.randint(0, 3, (12,)))

    expect(judged("padding_hidden", tmp_path, Encoder(), step), words)


@pytest.mark.parametrize("temperature", [1.0, 0.07])
@pytest.mark.parametrize(("targets", "words"), [(torch.arange(12), ""), (torch.zeros(12).long(), "are of one class")])
def test_targets_of_pairs(targets, words, temperature, tmp_path):
    """Each text is to find its own among those of the others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(ITEMS, WIDTH), nn.Flatten(), nn.Linear(8 * WIDTH, WIDTH))

    def step(model):
        one, other = (nn.functional.normalize(model(torch.randint(1, ITEMS, (12, 8))), dim=-1) for _ in range(2))
        return cross_entropy(one @ other.T / temperature, targets)

    expect(judged("batches_change", tmp_path, model, step), words)


@pytest.mark.parametrize(("turned", "words"), [(False, ""), (True, "positions that hold text")])
def test_an_attention_mask(turned, words, tmp_path):
    """Of an encoder whose padding nothing names."""
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(vocab_size=TOKENS, pad_token_id=None, **sizes))

    def step(model):
        ids = pad_sequence(texts(3, 20), batch_first=True, padding_value=2)
        mask = (ids == 2 if turned else ids != 2).long()
        return model(input_ids=ids, attention_mask=mask, labels=torch.where(ids == 2, -100, ids)).loss

    expect(judged("padding_hidden", tmp_path, model, step), words)


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (lambda drawn: drawn, ""),
        (lambda drawn: drawn // 6, "over 6 classes are of one class"),
        (lambda drawn: drawn * (drawn.flatten().cumsum(0).view(drawn.shape) < 9), ""),  # few of all
        (lambda drawn: torch.where(drawn == 1, -100, 0), "over 6 classes are of one class"),
    ],
    ids=["drawn", "scaled to 0", "rare", "with others ignored"],
)
@pytest.mark.parametrize("axes", [1, 2], ids=["positions", "pixels"])
def test_targets_of_positions_of_one_class(axes, targets, words, scale, tmp_path):
    """As of a mask that is scaled like a picture."""
    torch.manual_seed(0)
    model = (nn.Conv1d if axes == 1 else nn.Conv2d)(3, 6, 3, padding=1)
    size = [8 * scale] * axes

    def step(model):
        scores = nn.functional.interpolate(model(torch.randn(ROWS, 3, *[8] * axes)), size) if scale > 1 else None
        scores = model(torch.randn(ROWS, 3, *size)) if scores is None else scores
        return cross_entropy(scores, targets(torch.randint(6, (ROWS, *size))))

    expect(judged("batches_change", tmp_path, model, step), words)
