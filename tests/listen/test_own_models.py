"""Models of the script's own, in plain loops: what they see, what they leave out, and what fills rows up. fp32, CPU."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from footprint import watch_probes
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options
from tunecheck.listen.trained_model import is_transformers

TOKENS, WIDTH, STEPS = 40, 16, 4


def judged(check, tmp_path, model, step, optimizer=None, after=lambda number: None):
    """Train a model with the losses that `step` returns, under watch; return the finding of this check.

    `after` is called behind each optimizer step.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for number in range(STEPS):
        step(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number)
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    return CHECKS[check]()(read(path))


class Reader(nn.Module):
    """A layer of attention over [rows, positions], or [positions, rows], and scores of the next token, maybe flat."""

    def __init__(self, *, causal, turned=False, flat=False):
        super().__init__()
        torch.manual_seed(0)
        self.causal, self.turned, self.flat = causal, turned, flat
        self.table, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.1, batch_first=not turned)

    def forward(self, ids):
        """Return scores."""
        length = ids.shape[0 if self.turned else 1]
        places = self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        x = self.table(ids) + (places[:, None] if self.turned else places)
        scores = self.head(self.layer(x, mask))
        return scores.flatten(0, 1) if self.flat else scores


class Wrapper(nn.Module):
    """Returns the loss alone."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids):
        """Return the mean over all tokens but the first."""
        return cross_entropy(self.net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def next_tokens(turned):
    """Return the step of a language model."""

    def step(model):
        ids = torch.randint(1, TOKENS, (6, 13))
        if isinstance(model, Wrapper):
            return model(ids)
        ids = ids.t() if turned else ids
        read, wanted = (ids[:-1], ids[1:]) if turned else (ids[:, :-1], ids[:, 1:])
        scores = model(read.contiguous())
        return cross_entropy(scores.reshape(-1, TOKENS), wanted.flatten())

    return step


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("way", ["columns", "flat", "flat columns", "within a wrapper"])
def test_a_model_that_sees_its_targets(way, causal, tmp_path):
    """However its tokens and scores are laid out, and also where a part of it alone returns scores."""
    turned = "columns" in way
    model = Reader(causal=causal, turned=turned, flat="flat" in way)
    model = Wrapper(model) if way == "within a wrapper" else model
    finding = judged("no_target_leakage", tmp_path, model, next_tokens(turned))

    assert finding.status is (Status.PASSED if causal else Status.FAILED), finding.detail
    assert re.search(r"none of \d rows attends" if causal else r"in (\d) of \1 rows", finding.detail)


@pytest.mark.parametrize(("turned", "status"), [(False, Status.SUSPECTED), (True, Status.SUSPECTED)])
def test_targets_two_tokens_ahead_in_columns(turned, status, tmp_path):
    """Which a script may mean."""

    def step(model):
        ids = torch.randint(1, TOKENS, (6, 13))
        read, wanted = ids[:, :-2], ids[:, 2:]
        read, wanted = (read.t().contiguous(), wanted.t()) if turned else (read, wanted)
        return cross_entropy(model(read).flatten(0, 1), wanted.flatten())

    finding = judged("no_target_leakage", tmp_path, Reader(causal=True, turned=turned), step)
    assert finding.status is status, finding.detail


def test_rows_of_one_token_are_no_columns(tmp_path):
    """The parity of a row of one bit is that bit."""

    def step(model):
        ids = torch.randint(0, 2, (64, 1))
        return cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    finding = judged("no_target_leakage", tmp_path, Reader(causal=True), step)
    assert finding.status is Status.UNJUDGED, finding.detail


@pytest.mark.parametrize("learned", [True, False])
def test_a_loss_on_what_fills_rows_up(learned, tmp_path):
    """No object names the token; a script may mean it, so this is a question."""

    def step(model):
        ids = torch.randint(1, TOKENS, (4, 13))
        for row, length in enumerate((4, 6, 9, 12)):
            ids[row, length:] = 0
        return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1 if learned else 0)

    finding = judged("no_loss_on_padding", tmp_path, Reader(causal=True), step)
    assert finding.status is (Status.SUSPECTED if learned else Status.PASSED), finding.detail


@pytest.mark.parametrize("training", [True, False])
def test_a_mode_within_a_wrapper(training, tmp_path):
    """Whose own mode says nothing."""
    model = Reader(causal=True)
    model.train(training)
    finding = judged("state_in_training", tmp_path, nn.DataParallel(model), next_tokens(turned=False))

    assert finding.status is (Status.PASSED if training else Status.SUSPECTED), finding.detail


class Normalised(nn.Module):
    """A layer behind a batch normalisation, which may be frozen as it was built, or with statistics."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)
        if how == "pretrained":
            self.norm(torch.randn(64, WIDTH))
        self.norm.train(how == "trained")

    def forward(self, x):
        """Return scores of three classes."""
        return self.head(self.norm(x))


@pytest.mark.parametrize("how", ["trained", "pretrained", "as built"])
def test_a_normalisation_by_no_statistics(how, tmp_path):
    """A frozen one has those of its pretraining."""
    finding = judged(
        "state_in_training",
        tmp_path,
        Normalised(how),
        lambda model: cross_entropy(model(torch.randn(8, WIDTH)), torch.arange(8) % 3),
    )

    assert finding.status is (Status.SUSPECTED if how == "as built" else Status.PASSED), finding.detail
    assert ("norm normalise by their first statistics" in finding.detail) is (how == "as built")


class Parts(nn.Module):
    """A body under a head, beside a part that nothing uses."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.seen = how, []
        self.body, self.norm, self.head = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """Return scores of three classes, and what nobody asks for."""
        if self.how == "detached" and not self.training:
            return x  # as a detector, which returns something else in evaluation
        if self.how == "once" and any(x is seen for seen in self.seen):
            raise TypeError("these rows were read before")
        self.seen.append(x)
        with torch.set_grad_enabled(self.how != "no_grad"):
            x = torch.relu(self.body(x))
        pooled = self.pooler(x)
        if self.how == "left out":
            self.loss = mse_loss(pooled, torch.zeros_like(pooled))
        if self.how == "moved":
            with torch.no_grad():
                self.body.bias += 1e-3
        x = x.detach() if self.how in ("detached", "moved") else x
        return {"scores": self.head(self.norm(x)), "pooled": pooled}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("trained", ""),
        ("no_grad", "body.weight"),
        ("detached", "body.weight"),
        ("moved", ""),
        ("unused", ""),
        ("left out", "pooler.weight"),
    ],
)
def test_a_part_that_no_gradient_reaches(how, told, tmp_path, monkeypatch):
    """Told from one that no result depends on, and from tensors that the script moves by itself; nothing is changed."""
    moments, changed = watch_probes(monkeypatch)

    def step(model):
        return cross_entropy(model(torch.randn(8, WIDTH))["scores"], torch.arange(8) % 3)

    model = Parts(how)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    finding = judged("trainable_moved", tmp_path, model, step)

    assert finding.status is (Status.SUSPECTED if told else Status.PASSED), finding.detail
    assert told in finding.detail
    assert ("pooler" in finding.detail) is (how == "left out")
    assert ("CutOffProbe", "backward_end") in moments
    assert not changed
    assert int(model.norm.num_batches_tracked - before["norm.num_batches_tracked"]) == STEPS


class Layer(nn.Module):
    """Two attentions of one class, as in a decoder."""

    def __init__(self, calls):
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(WIDTH, 2) for _ in range(2))
        self.calls = calls

    def forward(self, x):
        """Attend as often as there are names."""
        for name in self.calls:
            attend = getattr(self, name)
            x = x + attend(x, x, x)[0]
        return x


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (("own", "cross"), ""),
        (("own", "own"), "nothing calls 2 parts, and one like it is called twice on the same rows: 0.cross, 1.cross"),
        (("own",), ""),
    ],
    ids=["each", "one twice", "one alone"],
)
def test_a_part_that_is_called_in_place_of_another(calls, told, tmp_path):
    """As after copy and paste; one of two heads may rest."""
    torch.manual_seed(0)
    model = nn.Sequential(Layer(calls), Layer(calls))
    finding = judged("trainable_moved", tmp_path, model, lambda model: model(torch.randn(5, WIDTH)).square().mean())

    assert finding.status is (Status.SUSPECTED if told else Status.PASSED), finding.detail
    assert told in finding.detail


@pytest.mark.parametrize(("cut", "status"), [(False, Status.PASSED), (True, Status.SUSPECTED)])
def test_rows_of_a_classifier_that_are_cut_off(cut, status, tmp_path):
    """All end with one token, but those that are as long as the longest, and were longer."""
    torch.manual_seed(0)
    small = {"vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1}
    model = LlamaForSequenceClassification(LlamaConfig(**small, num_attention_heads=2, pad_token_id=0))

    def step(model):
        lengths = [5, 12, 7, 15, 9, 20]
        ids, mask = torch.zeros(6, 12, dtype=torch.long), torch.zeros(6, 12, dtype=torch.long)
        for row, length in enumerate(lengths):
            tokens = torch.tensor([*torch.randint(3, TOKENS, (length - 1,)).tolist(), 2])
            kept = tokens[:12] if cut else tokens[-12:]
            ids[row, : len(kept)], mask[row, : len(kept)] = kept, 1
        return model(input_ids=ids, attention_mask=mask).logits.square().mean()

    finding = judged("rows_whole", tmp_path, model, step)
    assert finding.status is status, finding.detail


def masked_answers(ids, mask, scores, *, behind):
    """The mean negative log-likelihood of what a mask leaves, which may lie one position behind the scores."""
    found = scores[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    kept = mask[:, :-1] if behind else mask[:, 1:]
    return -(found * kept).sum() / kept.sum()


@pytest.mark.parametrize(
    ("behind", "pad", "sign", "status"),
    [
        (True, 0, 1, Status.SUSPECTED),
        (True, 0, -1, Status.SUSPECTED),
        (True, 2, 1, Status.PASSED),
        (False, 0, 1, Status.PASSED),
    ],
    ids=["behind", "of a rejected answer", "an end token", "at its place"],
)
def test_a_mask_one_position_off(behind, pad, sign, status, tmp_path):
    """The last token of each row is then asked for the padding behind it."""
    torch.manual_seed(0)
    small = {"vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2, pad_token_id=pad, eos_token_id=2))

    def step(model):
        lengths = torch.tensor([5, 12, 7, 11])
        mask = (torch.arange(12) < lengths[:, None]).long()
        ids = torch.randint(3, TOKENS, (4, 12)).where(mask.bool(), torch.tensor(pad))
        return sign * masked_answers(ids, mask, model(input_ids=ids, attention_mask=mask).logits, behind=behind)

    finding = judged("no_loss_on_padding", tmp_path, model, step)
    assert finding.status is status, finding.detail


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (lambda learned: learned[:, 1:], ""),
        (lambda learned: learned[:, :-1], "leaves out the first label in 16 of 16"),
        (lambda learned: learned[:, 1:] & learned[:, :-1], "leaves out the first label in 16 of 16"),
        (lambda learned: learned[:, 1:] | learned[:, :-1], "uses the scores behind the last label in 16 of 16"),
        (lambda learned: torch.ones_like(learned[:, 1:]), ""),
    ],
    ids=["at its place", "behind", "without the first", "and one more", "prompts too"],
)
def test_a_divergence_counts_where_labels_are(counts, words, tmp_path):
    """Of answers whose labels the model is given; one that counts prompts, too, has no mask of answers."""
    torch.manual_seed(0)
    small = {"vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2))

    def step(model):
        ids, at = torch.randint(3, TOKENS, (4, 12)), torch.arange(12)
        learned = ((at >= 4) & (at < 10)).expand(4, 12)
        logits = model(input_ids=ids, labels=ids.where(learned, torch.tensor(-100))).logits[:, :-1]
        return -(logits.log_softmax(dim=-1).mean(dim=-1) * counts(learned)).sum()

    finding = judged("no_loss_on_padding", tmp_path, model, step)
    assert (finding.status is Status.SUSPECTED) is bool(words), finding.detail
    assert words in finding.detail


class Classifier(nn.Module):
    """A head of the script's own over adapters, whose configuration it keeps under peft's own name for its table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        small = {"vocab_size": WIDTH, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = BertConfig(**small, intermediate_size=WIDTH)
        self.peft_config = LoraConfig(r=2, target_modules=["query", "value"])
        self.body = get_peft_model(BertModel(config, add_pooling_layer=False), self.peft_config)
        self.body.enable_input_require_grads()
        self.body.gradient_checkpointing_enable()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        """Return scores."""
        return self.head(self.body(ids).last_hidden_state[:, 0])


@pytest.mark.parametrize("check", ["state_in_training", "trainable_moved", "settings_usual", "usual_tensors_learn"])
def test_adapters_within_a_model_of_the_script(check, tmp_path):
    """Their layers are recomputed, though the model around them says nothing of it."""
    labels = torch.arange(6) % 3
    finding = judged(
        check, tmp_path, Classifier(), lambda model: cross_entropy(model(torch.randint(1, WIDTH, (6, 9))), labels)
    )
    assert finding.status is Status.PASSED, finding.detail


def pulled_apart(ways):
    """Return a step of a loss of two passes, of which the second one is treated in these ways, one step each."""
    coming = iter(ways)

    def step(model):
        way = next(coming)
        one, other = torch.randint(1, TOKENS, (2, 6, 9))
        better = model(one).mean()
        with torch.set_grad_enabled(way != "without gradients"):
            worse = model(other).mean()
        return better - (worse if way == "learned" else worse.detach())

    return step


@pytest.mark.parametrize(
    ("ways", "lost"),
    [
        (["detached"] * STEPS, True),
        (["without gradients"] * STEPS, False),
        (["learned"] * STEPS, False),
        (["detached", *["without gradients"] * (STEPS - 1)], False),
    ],
    ids=["detached", "without gradients", "learned", "a look in one step"],
)
def test_a_pass_whose_results_get_no_gradient(ways, lost, tmp_path):
    """A loss that was to learn from both of two passes, and learns from one."""
    finding = judged("rows_reach_loss", tmp_path, Reader(causal=False), pulled_apart(ways))
    assert (finding.status is Status.SUSPECTED) is lost, finding.detail
    assert ("in each step: 1" in finding.detail) is lost


class Factors(nn.Module):
    """A linear whose weight stays, with two factors beside it, as LoRA has them."""

    def __init__(self, spread):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.Linear(WIDTH, 3)
        self.first, self.second = nn.Parameter(torch.randn(2, WIDTH) * spread), nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x):
        """Return scores."""
        return self.head(self.body(x) + x @ self.first.T @ self.second.T)


@pytest.mark.parametrize(("spread", "status"), [(1.0, Status.PASSED), (0.0, Status.SUSPECTED)])
def test_two_factors_of_which_both_are_0(spread, status, tmp_path):
    """Each one's gradient has the other as a factor, so that neither ever moves."""
    labels = torch.arange(8) % 3
    finding = judged(
        "trainable_moved", tmp_path, Factors(spread), lambda model: cross_entropy(model(torch.randn(8, WIDTH)), labels)
    )
    assert finding.status is status, finding.detail
    assert ("2 of 4 trained tensors are matrices of 0" in finding.detail) is (not spread)


def normed(*, trained):
    """A network whose norms were built, or were trained already."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    for number in (1, 3) if trained else ():
        nn.init.normal_(model[number].weight, 1.0, 0.1)
    return model


@pytest.mark.parametrize(
    ("own", "reference", "told"),
    [(True, False, True), (True, True, False), (False, False, False)],
    ids=["never loaded", "loaded", "from scratch"],
)
def test_a_reference_with_the_weights_of_its_first_draw(own, reference, told, tmp_path):
    """Beside a model that was loaded."""
    teacher = normed(trained=reference).eval()

    def step(model):
        given = torch.randn(8, WIDTH)
        with torch.no_grad():
            wanted = teacher(given)
        return mse_loss(model(given), wanted)

    finding = judged("usual_tensors_learn", tmp_path, normed(trained=own), step)
    assert ("Sequential is called and learns nothing" in finding.detail) is told, finding.detail
    assert (finding.status is Status.SUSPECTED) is told


class Halves(nn.Module):
    """Is never called itself: the script calls one part, and hands the other one what it gave."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), nn.Linear(WIDTH, 3)


@pytest.mark.parametrize("detached", [False, True])
def test_results_that_are_detached_on_their_way_to_another_part(detached, tmp_path):
    """They lie at the same place in memory, with a gradient and without."""

    def step(model):
        given = model.body(torch.randn(8, WIDTH))
        return cross_entropy(model.head(given.detach() if detached else given), torch.arange(8) % 3)

    finding = judged("trainable_moved", tmp_path, Halves(), step)
    assert finding.status is (Status.SUSPECTED if detached else Status.PASSED), finding.detail
    assert ("2 trained tensors get no gradient" in finding.detail) is detached


class Pairs(nn.Module):
    """An encoder for each side of pairs, the second of which may run without gradients."""

    def __init__(self, grads):
        super().__init__()
        torch.manual_seed(0)
        self.grads, self.one, self.other = grads, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, read):
        """Return both sides."""
        with torch.set_grad_enabled(self.grads):
            other = self.other(read)
        return self.one(read), other


@pytest.mark.parametrize("grads", [True, False])
@pytest.mark.parametrize("uses", [True, False])
def test_a_side_of_pairs_that_runs_without_gradients(grads, uses, tmp_path):
    """Its results are factors of the loss, unless nothing is computed of them."""

    def step(model):
        one, other = model(torch.randn(8, WIDTH))
        return cross_entropy(one @ (other if uses else one).t(), torch.arange(8))

    finding = judged("trainable_moved", tmp_path, Pairs(grads), step)
    assert (finding.status is Status.SUSPECTED) is (uses and not grads), finding.detail
    assert ("other.weight" in finding.detail) is (uses and not grads)


def test_a_model_that_cannot_be_called_again(tmp_path):
    """What moved is judged, and what could not be seen is said."""
    finding = judged(
        "trainable_moved",
        tmp_path,
        Parts("once"),
        lambda model: cross_entropy(model(torch.randn(8, WIDTH))["scores"], torch.arange(8) % 3),
    )

    assert finding.status is Status.PASSED
    assert "CutOffProbe failed at backward of step 2: TypeError: these rows were read before" in finding.detail


@pytest.mark.parametrize(
    ("gamma", "every", "status"),
    [(0.7, 1, Status.SUSPECTED), (0.99, 1, Status.PASSED), (0.7, 2, Status.PASSED)],
    ids=["in each step", "slowly", "in each epoch"],
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_decay_of_epochs_that_is_stepped_in_each_batch(kind, gamma, every, status, tmp_path):
    """Also where the optimizer counts no steps."""
    model = Parts("trained")
    optimizer = kind(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)

    def step(model):
        return cross_entropy(model(torch.randn(8, WIDTH))["scores"], torch.arange(8) % 3)

    def after(number):
        if number % every == 0:
            schedule.step()

    finding = judged("schedule_ends", tmp_path, model, step, optimizer, after)
    assert finding.status is status, finding.detail


class ByMethods(Reader):
    """Returns nothing that the loss is computed of: the script calls its methods."""

    def encode(self, ids):
        """Return states."""
        self.head, head = nn.Identity(), self.head
        try:
            return self.forward(ids)
        finally:
            self.head = head


MISTAKES = {
    "none": (Status.PASSED, True, lambda ids: (ids[:, :-1], ids[:, 1:])),
    "the label is the input": (Status.FAILED, True, lambda ids: (ids[:, :-1], ids[:, :-1])),
    "shifted twice": (Status.SUSPECTED, True, lambda ids: (ids[:, :-2], ids[:, 2:])),
    "no mask": (Status.FAILED, False, lambda ids: (ids[:, :-1], ids[:, 1:])),
    "an autoencoder": (Status.UNJUDGED, False, lambda ids: (ids, ids)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("second", [False, True])
def test_a_model_that_is_called_by_its_methods(mistake, second, tmp_path):
    """Tokens and scores are read off the loss's graph, wherever the classes stand."""
    status, causal, shifted = MISTAKES[mistake]

    def step(model):
        read, wanted = shifted(torch.randint(1, TOKENS, (6, 13)))
        scores = model.head(model.encode(read))
        flat = scores.reshape(-1, TOKENS), wanted.reshape(-1)
        return cross_entropy(scores.transpose(1, 2), wanted) if second else cross_entropy(*flat)

    finding = judged("no_target_leakage", tmp_path, ByMethods(causal=causal), step)
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("given", [None, (1,), {"seed": 1}], ids=["none", "by place", "by name"])
def test_noise_that_is_drawn_after_a_seed(given, tmp_path):
    """Outside of a forward pass that draws nothing."""

    def step(model):
        if given is not None:
            torch.manual_seed(**given) if isinstance(given, dict) else torch.manual_seed(*given)
        noise = torch.randn(6, 4)
        return (model(noise) - noise).square().mean()

    finding = judged("randomness_varies", tmp_path, nn.Linear(4, 4), step)
    assert finding.status is (Status.SUSPECTED if given else Status.UNJUDGED), finding.detail


class ByItsForward(nn.Module):
    """Calls the model that it holds by its `forward`, which no hook hears."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=WIDTH, num_attention_heads=2)
        config.num_hidden_layers = 1
        self.inner, self.head = LlamaForCausalLM(config), nn.Linear(WIDTH, 1)

    def forward(self, ids):
        """Return a number for each row."""
        return self.head(self.inner.forward(input_ids=ids, output_hidden_states=True).hidden_states[-1][:, -1])


def test_a_model_whose_forward_is_called_by_another(tmp_path):
    """It is judged with what holds it, from the second pass on."""

    def step(model):
        return model(torch.randint(1, TOKENS, (6, 13))).square().mean()

    finding = judged("trainable_moved", tmp_path, ByItsForward(), step)
    assert finding.passed, finding.detail


def test_seeds_are_no_longer_heard_after_an_error(tmp_path):
    """A training that ends in its window leaves torch's functions as they were."""
    before = torch.manual_seed
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    model(torch.randn(2, 4)).square().mean().backward()
    assert torch.manual_seed is not before
    optimizer.step()
    hooks.detach(RuntimeError("the script's own"))
    assert torch.manual_seed is before


class Student(nn.Module):
    """A small network that drops."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, 3))

    def forward(self, x):
        """Return scores of three classes."""
        return self.layers(x)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("train", Status.SUSPECTED),
        ("eval", Status.PASSED),
        ("trained elsewhere", Status.PASSED),
        ("averaged", Status.PASSED),
        ("itself", Status.PASSED),
        ("frozen", Status.SUSPECTED),
        ("learning", Status.PASSED),
        ("frozen, normalising", Status.SUSPECTED),
        ("frozen, normalising, eval", Status.PASSED),
    ],
)
def test_a_teacher_in_train_mode(how, status, tmp_path):
    """It is called before the student is. What learns elsewhere may drop, and so may the student."""
    torch.manual_seed(0)
    student, other = Student(), Student()
    if "normalising" in how:
        other.layers[1] = nn.BatchNorm1d(WIDTH)
    other.requires_grad_("frozen" not in how)
    teacher = student if how == "itself" else other.train("eval" not in how)

    def step(model):
        x = torch.randn(8, WIDTH)
        with torch.set_grad_enabled("frozen" in how or how == "learning"):
            wanted = teacher(x)
        return mse_loss(model(x), wanted.detach())

    def after(_number):
        pairs = zip(other.parameters(), student.parameters(), strict=False)
        with torch.no_grad():
            for mean, now in pairs if how in ("averaged", "trained elsewhere") else ():
                mean.lerp_(now if how == "averaged" else mean + 1, 0.1)

    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    finding = judged("state_in_training", tmp_path, student, step, optimizer, after)
    assert finding.status is status, finding.detail


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("the other", Status.PASSED),
        ("itself", Status.SUSPECTED),
        ("itself, on other rows", Status.PASSED),
        ("itself, and the other", Status.PASSED),
        ("itself, alone", Status.PASSED),
    ],
)
def test_a_student_in_place_of_its_teacher(how, status, tmp_path):
    """Which nothing else calls."""
    torch.manual_seed(0)
    student, other = Student(), None if "alone" in how else Student().requires_grad_(False).eval()

    def step(model):
        x = torch.randn(8, WIDTH)
        with torch.no_grad():
            wanted = torch.zeros(8, 3)
            for teacher in filter(None, [model if "itself" in how else None, other if "other" in how[-5:] else None]):
                wanted = wanted + teacher(x + 1 if "rows" in how else x)
        return mse_loss(model(x), wanted + 1)

    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    finding = judged("trainable_moved", tmp_path, student, step, optimizer)
    assert finding.status is status, finding.detail
    assert ("another Student" in finding.detail) is (status is Status.SUSPECTED)
    assert other is None or not other.training


@pytest.mark.parametrize(
    ("causal", "at", "status"),
    [(True, 0, Status.SUSPECTED), (True, -1, Status.PASSED), (False, 0, Status.PASSED)],
    ids=["first", "last", "both ways"],
)
def test_a_row_is_read_where_a_model_of_the_scripts_own_has_seen_it(causal, at, status, tmp_path):
    """A classifier of tokens, by the scores of one position."""

    def step(model):
        ids = torch.randint(1, TOKENS, (6, 12))
        return cross_entropy(model(ids)[:, at], ids.sum(1) % TOKENS)

    finding = judged("rows_reach_loss", tmp_path, Reader(causal=causal), step)
    assert finding.status is status, finding.detail


class Opaque:
    """Holds its numbers where nobody finds them, as an object of another language does."""

    __slots__ = ("numbers",)

    def __init__(self, numbers):
        self.numbers = numbers


class OfAnObject(nn.Module):
    """A layer over numbers of an object, and others beside it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, held, beside):
        """Return scores."""
        return self.layer(beside + held.numbers)


@pytest.mark.parametrize(
    ("held", "beside", "status"),
    [
        ("opaque", "same", Status.UNJUDGED),
        ("opaque", "new", Status.PASSED),
        ("read", "same", Status.SUSPECTED),
        ("sparse", "same", Status.SUSPECTED),
        ("new sparse", "same", Status.PASSED),
    ],
)
def test_batches_of_objects_that_nobody_can_look_into(held, beside, status, tmp_path):
    """Equal or not, nobody can tell; tensors beside them can tell that they differ."""
    fixed = torch.randn(8, WIDTH)

    def step(model):
        numbers = torch.randn(8, WIDTH) if held == "opaque" else fixed
        if "sparse" in held:
            numbers = (torch.randn(8, WIDTH) if "new" in held else fixed).to_sparse()
        given = Opaque(numbers) if held == "opaque" else SimpleNamespace(numbers=numbers)
        scores = model(given, torch.randn(8, WIDTH) if beside == "new" else fixed)
        return cross_entropy(scores, torch.arange(8) % 3)

    finding = judged("batches_change", tmp_path, OfAnObject(), step)
    assert finding.status is status, finding.detail


class Counted(torch.autograd.Function):
    """The identity; counts its backward passes."""

    passes = 0

    @staticmethod
    def forward(_, x):
        """Return it."""
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        """Return it."""
        Counted.passes += 1
        return gradient


@pytest.mark.parametrize("way", ["function", "function of scores", "hook"])
def test_code_of_the_script_runs_once_in_each_backward_pass(way, tmp_path):
    """No part of a backward pass is made again with a function or a hook of the script's own in it."""
    arrived = []
    ordinary = next_tokens(turned=False)

    def hooked(_module, _args, out):
        if way == "hook":
            out.register_hook(arrived.append)
            return None
        return Counted.apply(out) if way == "function of scores" else None

    def step(model):
        loss = ordinary(model)
        return Counted.apply(loss) if way == "function" else loss

    Counted.passes = 0
    model = Reader(causal=True)
    model.layer.register_forward_hook(hooked)
    finding = judged("no_target_leakage", tmp_path, model, step)

    assert Counted.passes + len(arrived) == STEPS
    assert finding.status is Status.PASSED


class Derived(PreTrainedModel):
    """A model of the script's own that derives from transformers', which finds its head and not its embeddings."""

    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.net = Reader(causal=True)
        self.lm_head = self.net.head

    def forward(self, ids):
        """Return scores."""
        return self.net(ids)


def test_a_model_whose_embeddings_transformers_does_not_find_is_the_scripts_own(tmp_path):
    """Judged by what its losses show."""
    model = Derived()
    model.config.vocab_size = TOKENS
    assert not is_transformers(model)
    with pytest.raises(NotImplementedError):
        model.get_input_embeddings()

    assert judged("no_target_leakage", tmp_path, model, next_tokens(turned=False)).status is Status.PASSED


class OfGivenWeights(nn.Module):
    """Keeps its weights in a list, which its `parameters` returns as it is: no generator, and no argument."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, WIDTH) / 4), nn.Parameter(torch.zeros(WIDTH))])
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)

    def parameters(self):
        """Override nn.Module's."""
        return self.weights

    def forward(self, given, weights=None):
        """Return the outputs of these weights, or its own."""
        weight, bias = weights or self.weights
        return given @ weight + bias


class MetaLearner(nn.Module):
    """Takes its optimizer's step within its own forward pass, after one on the inner weights, as MAML's authors do."""

    def __init__(self):
        super().__init__()
        self.net = OfGivenWeights()

    def forward(self, given, targets):
        """Return the loss after an inner step."""
        inner = torch.autograd.grad(mse_loss(self.net(given), targets), [*self.net.parameters()], create_graph=True)
        fast = [weight - 0.1 * gradient for weight, gradient in zip(self.net.parameters(), inner, strict=True)]
        loss = mse_loss(self.net(given, fast), targets)
        self.net.optimizer.zero_grad()
        loss.backward()
        self.net.optimizer.step()
        return loss.item()


@pytest.mark.parametrize("kind", [MetaLearner, OfGivenWeights])
def test_a_model_that_overrides_parameters_and_one_that_steps_in_its_forward_pass(kind, tmp_path):
    """No healthy one is flagged, nor left unwatched."""
    model = kind()
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        given = torch.randn(8, WIDTH)
        if kind is MetaLearner:
            model(given, given.flip(1))
        else:
            model.optimizer.zero_grad()
            mse_loss(model(given), given.flip(1)).backward()
            model.optimizer.step()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    trace = read(path)
    found = {name: CHECKS[name]()(trace).status for name in ("updates_match_adamw", "state_in_training")}
    state = Status.UNJUDGED if kind is MetaLearner else Status.PASSED
    assert [*found.values()] == [Status.PASSED, state]


def test_a_model_that_is_given_one_number_at_a_time(tmp_path):
    """A character of a text, say: a tensor without a dimension is one row."""
    torch.manual_seed(0)
    cell, text = nn.Embedding(TOKENS, TOKENS), torch.randint(0, TOKENS, (STEPS, 9))

    def step(model):
        row = text[torch.randint(0, STEPS, ())]
        return sum(cross_entropy(model(now)[None], after[None]) for now, after in pairwise(row))

    assert judged("updates_match_adamw", tmp_path, cell, step).status is Status.PASSED


class InParts(Reader):
    """A reader with a frozen table, so that no graph tells its tokens, whose head scores five positions at a time."""

    def __init__(self):
        super().__init__(causal=True)
        self.table.requires_grad_(requires_grad=False)

    def forward(self, ids):
        """Return scores, [rows, 5, tokens] each."""
        return [*super().forward(ids).split(5, dim=1)]


PAD, END, TEMPLATE = 0, 1, (2, 3, 4)


def answers(*, end=True, at=0, inverted=False, whole=False):
    """Return tokens and labels of rows with an answer behind a template, learned from its token `at` on, or whole."""
    rows, labels = [], []
    for _ in range(6):
        prompt = [*torch.randint(5, TOKENS, (int(torch.randint(3, 6, ())),)).tolist(), *TEMPLATE]
        answer = torch.randint(5, 12, (int(torch.randint(5, 11, ())),)).tolist() + [END] * end
        learned = [*[-100] * (len(prompt) + at), *answer[at:]]
        rows.append(torch.tensor(prompt + answer))
        learned = [*prompt, *[-100] * len(answer)] if inverted else prompt + answer if whole else learned
        labels.append(torch.tensor(learned))
    padded = nn.utils.rnn.pad_sequence
    return padded(rows, True, float(PAD)), padded(labels, True, -100.0)


@pytest.mark.parametrize(
    ("given", "check", "words"),
    [
        ({}, "rows_reach_loss", ""),
        ({}, "written_answers_end", ""),
        ({}, "no_target_leakage", ""),
        ({}, "no_loss_on_padding", ""),
        ({"inverted": True}, "rows_reach_loss", "rows are learned from their first token on, and none to its end"),
        ({"at": 2}, "rows_reach_loss", "the first 2 tokens of every answer, behind the template, are not learned"),
        ({"whole": True}, "rows_reach_loss", "of the learned tokens are prompt, before the template's end"),
        ({"end": False}, "written_answers_end", "answers end with a token that others have within"),
        ({"shift": 2}, "no_target_leakage", "have the token after the next one as their target"),
        ({"padding": True}, "no_loss_on_padding", "of the gradient is at"),
    ],
)
def test_scores_that_a_model_returns_in_parts(given, check, words, tmp_path):
    """As litgpt and torchtune have them; what their loss uses of each row tells its prompt and its answer."""
    shift, padding = given.pop("shift", 1), given.pop("padding", False)

    def step(model):
        ids, labels = answers(**given)
        labels = ids if padding else labels
        scores = torch.cat(model(ids), dim=1)
        return cross_entropy(scores[:, :-shift].flatten(0, 1), labels[:, shift:].flatten())

    finding = judged(check, tmp_path, InParts(), step)
    assert finding.status is (Status.SUSPECTED if words else Status.PASSED), finding.detail
    assert words in finding.detail


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"end": False}, ""),
        ({"inverted": True}, "from their first token on"),
        ({"at": 3}, "the first 3 tokens"),
    ],
)
def test_a_policys_loss_uses_its_answers(given, words, tmp_path):
    """Of a model of transformers, by a loss that nobody follows; what it writes itself need have no end."""
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=TOKENS, **sizes))

    def step(model):
        ids, labels = answers(**given)
        mask = ids != PAD
        scores = model(input_ids=ids, attention_mask=mask.long()).logits[:, :-1].log_softmax(-1)
        each = scores.gather(2, ids[:, 1:, None])[..., 0]
        return -(torch.randn(len(ids), 1) * each * (labels[:, 1:] != -100)).sum(1).mean()

    reach, ends = (judged(check, tmp_path / check, model, step) for check in ("rows_reach_loss", "written_answers_end"))
    assert reach.status is (Status.SUSPECTED if words else Status.PASSED), reach.detail
    assert words in reach.detail
    assert ends.status is Status.UNJUDGED


class Pictures(nn.Module):
    """A convolution and classes; it may divide bytes by 255 itself."""

    def __init__(self, divisor):
        super().__init__()
        torch.manual_seed(0)
        self.divisor, self.layers = (
            divisor,
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        )

    def forward(self, pictures):
        """Return scores of three classes."""
        return self.layers(pictures / self.divisor if self.divisor > 1 else pictures)


@pytest.mark.parametrize(("scale", "divisor"), [(255, 1), (1, 1), (255, 255)], ids=["bytes", "scaled", "by the model"])
def test_bytes_that_a_layer_multiplies_as_they_are(scale, divisor, tmp_path):
    """Its weights are drawn for inputs near 1."""

    def step(model):
        return cross_entropy(model(scale * torch.rand(8, 1, 8, 8)), torch.arange(8) % 3)

    finding = judged("inputs_scaled", tmp_path, Pictures(divisor), step)

    expected = Status.UNJUDGED if divisor > 1 else Status.SUSPECTED if scale > 1 else Status.PASSED
    assert finding.status is expected, finding.detail


class BodyAndHead(nn.Module):
    """A body with most of the weights, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Linear(32, 3)

    def forward(self, inputs):
        """Return scores of three classes."""
        return self.head(self.body(inputs).relu())


@pytest.mark.parametrize(("held", "status"), [("head", Status.SUSPECTED), ("body", Status.FAILED)])
def test_an_optimizer_that_leaves_out_most_of_a_model_or_a_few_tensors(held, status, tmp_path):
    """Who trains a head alone need not freeze the body; who trains the body has forgotten the head."""
    model = BodyAndHead()
    optimizer = torch.optim.AdamW(getattr(model, held).parameters(), lr=1e-3)

    def step(model):
        return cross_entropy(model(torch.randn(12, 8)), torch.arange(12) % 3)

    finding = judged("optimizer_coverage", tmp_path, model, step, optimizer)
    trace = read(next(tmp_path.glob("watch-*.jsonl")))

    assert finding.status is status, finding.detail
    assert CHECKS["trainable_moved"]()(trace).status is (Status.PASSED if held == "head" else Status.FAILED)
    assert CHECKS["updates_match_adamw"]()(trace).status is Status.PASSED


def test_targets_in_front_of_the_tokens_that_are_read(tmp_path):
    """Inputs and targets are exchanged, so that a causal model has read what it is asked for."""

    def step(model):
        ids = torch.randint(1, TOKENS, (6, 13))
        return cross_entropy(model(ids[:, 1:]).flatten(0, 1), ids[:, :-1].flatten())

    finding = judged("no_target_leakage", tmp_path, Reader(causal=True), step)

    assert finding.status is Status.SUSPECTED
    assert "the previous token" in finding.detail


class Digits(nn.Module):
    """Holds its weights itself, and may compute its first layer without gradients."""

    def __init__(self, gradients):
        super().__init__()
        torch.manual_seed(0)
        self.gradients = gradients
        self.first, self.last = nn.Parameter(torch.randn(8, 16) / 4), nn.Parameter(torch.randn(16, 3) / 4)

    def forward(self, inputs):
        """Return scores of three classes."""
        with torch.set_grad_enabled(self.gradients):
            hidden = inputs @ self.first
        return hidden.relu() @ self.last


@pytest.mark.parametrize("gradients", [True, False])
def test_a_weight_of_the_model_itself_that_is_used_without_gradients(gradients, tmp_path):
    """The model is called once a step, and its first weight never learns."""

    def step(model):
        return cross_entropy(model(torch.randn(12, 8)), torch.arange(12) % 3)

    finding = judged("trainable_moved", tmp_path, Digits(gradients), step)

    assert finding.status is (Status.PASSED if gradients else Status.SUSPECTED), finding.detail
    assert gradients or "first" in finding.detail


class Twice(torch.autograd.Function):
    """Makes a pass within the backward pass, as reversible layers and checkpoints do."""

    @staticmethod
    def forward(ctx, hidden, layer):
        """Call the layer without a graph."""
        ctx.layer, ctx.hidden = layer, hidden.detach()
        return layer(hidden)

    @staticmethod
    def backward(ctx, gradient):
        """Call it again, and differentiate that."""
        with torch.enable_grad():
            hidden = ctx.hidden.requires_grad_()
            torch.autograd.backward(ctx.layer(hidden), gradient)
        return hidden.grad, None


class Reversible(BodyAndHead):
    """Its body's gradients come from passes within the backward pass."""

    def forward(self, inputs):
        """Return scores of three classes."""
        return self.head(Twice.apply(inputs.requires_grad_(), self.body).relu())


@pytest.mark.parametrize("cleared", [True, False])
def test_passes_within_a_backward_pass_are_a_part_of_it(cleared, tmp_path):
    """So that gradients which are cleared between micro-batches are told there, too."""
    model = Reversible()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model):
        for _ in range(2):
            cross_entropy(model(torch.randn(12, 8)), torch.arange(12) % 3).backward()
            if cleared:
                optimizer.zero_grad()
        return cross_entropy(model(torch.randn(12, 8)), torch.arange(12) % 3)

    finding = judged("calls_in_order", tmp_path, model, step, optimizer)

    assert finding.status is (Status.FAILED if cleared else Status.PASSED), finding.detail
    assert "edit" not in finding.detail


class Graph(nn.Module):
    """Passes what its nodes hold along edges that are given as a sparse matrix."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, nodes, edges):
        """Return scores of three classes for each node."""
        return self.last(torch.sparse.mm(edges, self.first(nodes)).relu())


def test_inputs_may_be_sparse(tmp_path):
    """Their numbers lie elsewhere, and have no rows."""

    def step(model):
        edges = (torch.rand(12, 12) > 0.5).float().to_sparse()
        return cross_entropy(model(torch.randn(12, 8), edges), torch.arange(12) % 3)

    assert judged("batches_change", tmp_path, Graph(), step).status is Status.PASSED


class OfItsParameters(nn.Module):
    """Registers the layers of a plain list by an attribute that is called as nn.Module's own method is."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
        self.parameters = nn.ParameterList(p for layer in self.layers for p in layer.parameters())

    def forward(self, read):
        """Use the first one alone."""
        return self.layers[0](read)


def test_a_module_may_be_called_as_a_method_is(tmp_path):
    """It is found by its place, not by its attribute."""
    model = OfItsParameters()
    optimizer = torch.optim.AdamW(nn.Module.parameters(model), lr=1e-3)
    step = lambda model: model(torch.randn(8, WIDTH)).square().mean()  # noqa: E731

    assert judged("trainable_moved", tmp_path, model, step, optimizer).status is Status.PASSED


class Offset(nn.Module):
    """A linear with a number beside it, on which the loss may hardly depend."""

    def __init__(self, weight):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.linear, self.offset = weight, nn.Linear(WIDTH, 1), nn.Parameter(torch.tensor(-5.0))

    def forward(self, read):
        """Return the scores of rows."""
        return self.linear(read) + self.weight * self.offset


@pytest.mark.parametrize(("weight", "status"), [(1e-5, Status.SUSPECTED), (0.1, Status.PASSED)])
def test_a_step_of_sgd_is_as_long_as_its_gradient(weight, status, tmp_path):
    """It may be less than the last digit of a weight, which is a question."""
    model = Offset(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = lambda model: model(torch.randn(8, WIDTH)).square().mean()  # noqa: E731

    finding = judged("trainable_moved", tmp_path, model, step, optimizer)
    assert finding.status is status, finding.detail


class Translator(nn.Module):
    """A recurrent encoder whose last state, viewed or transposed, begins the decoder's."""

    def __init__(self, *, viewed, compared=False):
        super().__init__()
        torch.manual_seed(0)
        self.viewed, self.compared = viewed, compared
        self.table, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.encoder = nn.GRU(WIDTH, 2 * WIDTH, batch_first=True)
        self.decoder = nn.GRU(WIDTH, WIDTH, 2, batch_first=True)

    def forward(self, read, begun):
        """Return scores of the next token, or how near each row is to each other."""
        (state,) = self.encoder(self.table(read))[1]
        parts = state.view(2, -1, WIDTH) if self.viewed else state.view(-1, 2, WIDTH).transpose(0, 1).contiguous()
        if self.compared:
            return state @ state.t()
        return self.head(self.decoder(self.table(begun), parts)[0])


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"viewed": False}, Status.PASSED),
        ({"viewed": True}, Status.SUSPECTED),
        ({"viewed": False, "compared": True}, Status.UNJUDGED),
    ],
    ids=["transposed", "viewed", "rows against rows"],
)
def test_rows_that_a_view_mixes_are_asked_about(given, status, tmp_path):
    """By a call with other tokens in every second row."""

    def step(model):
        read, written = torch.randint(8, TOKENS, (8, 12)), torch.randint(8, TOKENS, (8, 9))
        scores = model(read, written[:, :-1])
        if model.compared:
            return cross_entropy(scores, torch.arange(8))
        return cross_entropy(scores.flatten(0, 1), written[:, 1:].flatten())

    finding = judged("rows_reach_loss", tmp_path, Translator(**given), step)
    assert finding.status is status, finding.detail
    assert ("if other rows of their batch have other tokens" in finding.detail) is given["viewed"]
