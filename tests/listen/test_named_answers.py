"""Preference losses that go the wrong way round, by what the script's own data call chosen and rejected."""

from __future__ import annotations

import copy
import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, GPT2Model

import tunecheck
from tunecheck.core.finding import Status
from tunecheck.listen import imports, named_answers
from tunecheck.listen.named_answers import answers_named, data_set_made
from tunecheck.probes import preferences

PAIRS, LENGTH = 24, 24
CHECK = "better_answers_raised"


class Letters:
    """As much of a tokenizer as is needed: a token for each character."""

    pad_token_id, eos_token_id = 0, 1
    name_or_path = "letters"

    def __len__(self):
        return 128

    def batch_decode(self, rows, skip_special_tokens=False):
        """Return the texts of these tokens."""
        return ["".join(chr(token) for token in row if token > 1) for row in rows]


def data(kind="chosen", other="rejected"):
    """Questions, each with an answer of letters and one of capitals."""
    draw = torch.randint(97, 123, (PAIRS, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    texts = ["".join(map(chr, row)) for row in draw]
    return [{"prompt": "which? ", kind: text, other: text[::-1].upper()} for text in texts]


def tokens(rows, name):
    """The tokens of these prompts with their answers of this name."""
    return torch.tensor([list(map(ord, row["prompt"] + row[name])) for row in rows])


def scores_of_answers(model, ids, behind=1):
    """Each row's log likelihood behind so many tokens."""
    found = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    return found[:, behind - 1 :, 0].sum(dim=1)


def scores_of_rows(model, ids):
    """Each row's reward."""
    return model(input_ids=ids).logits[:, 0]


class OwnHead(torch.nn.Module):
    """A pretrained body with a head of the script's own."""

    def __init__(self, config):
        super().__init__()
        self.body, self.head = GPT2Model(config), torch.nn.Linear(config.n_embd, 1)

    def forward(self, input_ids):
        """Return a score for each row."""
        return self.head(self.body(input_ids).last_hidden_state[:, -1])


def scores_by_own_head(model, ids):
    """Each row's reward."""
    return model(ids)[:, 0]


def scores_by_name(model, ids):
    """Each row's reward, of a model whose forward is called past its hooks."""
    return model.forward(ids)[:, 0]


def preferring(tmp_path, kind, scores, names, rows, sign=1):
    """Train the first of these names to be likelier than the second, and return the finding."""
    torch.manual_seed(0)
    small = {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = kind(GPT2Config(**small, num_labels=1, pad_token_id=0, eos_token_id=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watching = tunecheck.watch(
        model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
    )
    with watching as told:
        for step in range(5):
            batch = rows[4 * step : 4 * step + 4]
            one, other = (scores(model, tokens(batch, name)) for name in names)
            (-logsigmoid(sign * 0.1 * (one - other)).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return next(finding for finding in told.findings if finding.check == CHECK)


KINDS = [
    pytest.param(GPT2LMHeadModel, scores_of_answers, id="policy"),
    pytest.param(GPT2ForSequenceClassification, scores_of_rows, id="reward"),
    pytest.param(OwnHead, scores_by_own_head, id="own head"),
    pytest.param(OwnHead, scores_by_name, id="by name"),
]


@pytest.mark.parametrize(("kind", "scores"), KINDS)
def test_a_preference_for_the_chosen_answers_passes(kind, scores, tmp_path):
    """In fp32."""
    found = preferring(tmp_path, kind, scores, ("chosen", "rejected"), data())

    assert found.status is Status.PASSED, found
    assert "0 of 16 better answers" in found.detail


@pytest.mark.parametrize(("kind", "scores"), KINDS)
@pytest.mark.parametrize("names", [("chosen", "rejected"), ("response_better", "response_worse")])
def test_exchanged_answers_are_asked_about(kind, scores, names, tmp_path):
    """Whatever of the two columns' names differs. In fp32."""
    found = preferring(tmp_path, kind, scores, names[::-1], data(*names))

    assert found.status is Status.SUSPECTED, found
    assert "16 of 16 worse ones" in found.detail


@pytest.mark.parametrize(("alternate", "found"), [(False, False), (True, True)])
@pytest.mark.parametrize(("kind", "scores"), KINDS)
def test_halves_of_a_batch_that_alternates_are_asked_about(kind, scores, alternate, found, tmp_path):
    """Each half then holds both answers of a prompt. Nothing names the better ones. In fp32."""
    torch.manual_seed(0)
    small = {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = kind(GPT2Config(**small, num_labels=1, pad_token_id=0, eos_token_id=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prompts = torch.randint(2, 128, (4, 4, 1, 12)).expand(4, 4, 2, 12)
    rows = torch.cat([prompts, torch.randint(2, 128, (4, 4, 2, 12))], dim=-1)
    with tunecheck.watch(
        model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
    ) as told:
        for batch in rows:
            one, other = scores(model, (batch if alternate else batch.transpose(0, 1)).flatten(0, 1)).chunk(2)
            (-logsigmoid(0.1 * (one - other)).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    finding = next(finding for finding in told.findings if finding.check == CHECK)

    assert (finding.status is Status.SUSPECTED) is found, finding
    assert ("for 16 of 16 prompts" in finding.detail) is found


def test_a_loss_of_the_wrong_sign_is_asked_about(tmp_path):
    """Though its columns are right. In fp32."""
    found = preferring(tmp_path, *KINDS[0].values, ("chosen", "rejected"), data(), sign=-1)

    assert found.status is Status.SUSPECTED, found


@pytest.mark.parametrize(("late", "status"), [(0, Status.PASSED), (1, Status.SUSPECTED)])
def test_the_first_tokens_of_answers_are_learned(late, status, tmp_path):
    """Which a mask leaves out that is not shifted with the targets."""
    scores = partial(scores_of_answers, behind=len("which? ") + late)
    finding = preferring(tmp_path, GPT2LMHeadModel, scores, ["chosen", "rejected"], data())

    assert finding.status is status, finding.detail
    assert ("first token that differs in 16 of 16" in finding.detail) is bool(late)


@pytest.mark.parametrize(("kind", "scores"), KINDS)
@pytest.mark.parametrize("alike", [True, False], ids=["all of them", "some of them"])
def test_answers_that_are_equal_are_asked_about(kind, scores, alike, tmp_path):
    """Where a length cuts off what differs, though each pass drops other numbers. In fp32."""
    rows = [{**row, "rejected": row["chosen"]} if alike or at % 2 else row for at, row in enumerate(data())]
    found = preferring(tmp_path, kind, scores, ("chosen", "rejected"), rows)

    assert found.status is (Status.SUSPECTED if alike else Status.PASSED), found
    assert ("raises and lowers the same rows" in found.detail) is alike


@pytest.mark.parametrize(
    ("sign", "centred", "maximize", "size", "status"),
    [
        (-1, True, False, 8, Status.PASSED),
        (1, True, False, 8, Status.SUSPECTED),
        (1, True, False, 1, Status.SUSPECTED),
        (1, True, True, 2, Status.PASSED),
        (1, False, False, 8, Status.UNJUDGED),
    ],
    ids=["an objective", "without its minus", "row by row", "that is maximised", "weights of rows"],
)
def test_rows_by_their_advantages(sign, centred, maximize, size, status, tmp_path):
    """Factors of a loss whose mean is 0. In fp32."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, maximize=maximize)
    watching = tunecheck.watch(
        model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
    )
    with watching as told:
        for _ in range(5):
            ids, rewards = torch.randint(2, 128, (8, 12)), torch.rand(8)
            advantages = (rewards - rewards.mean()) / rewards.std() if centred else rewards
            for rows, each in zip(ids.split(size), advantages.split(size), strict=True):
                likelihoods = scores_of_answers(model, rows)
                ratios = (likelihoods - likelihoods.detach()).exp()
                (sign * torch.min(ratios * each, ratios.clamp(0.8, 1.2) * each)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = next(finding for finding in told.findings if finding.check == CHECK)

    assert found.status is status, found


@pytest.mark.parametrize(("clips", "status"), [(True, Status.SUSPECTED), (False, Status.FAILED)])
def test_a_policy_may_learn_in_eval_mode(clips, status, tmp_path):
    """Its ratios would be noise in train mode; a loss of its own data has none. In fp32."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watching = tunecheck.watch(
        model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
    )
    with watching as told:
        for _ in range(5):
            likelihoods, advantages = scores_of_answers(model, torch.randint(2, 128, (8, 12))), torch.randn(8)
            ratios = (likelihoods - likelihoods.detach()).exp()
            clipped = torch.min(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
            (-(clipped if clips else likelihoods)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = next(finding for finding in told.findings if finding.check == "state_in_training")

    assert found.status is status, found


@pytest.mark.parametrize("size", [8, 1])
def test_a_minus_may_stand_before_the_advantages(size, tmp_path):
    """They are then negative factors of a loss that is right."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watching = tunecheck.watch(
        model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
    )
    with watching as told:
        for _ in range(5):
            ids, rewards = torch.randint(2, 128, (8, 12)), torch.rand(8)
            advantages = (rewards - rewards.mean()) / rewards.std()
            costs = zip(ids.split(size), advantages.split(size), strict=True)
            sum((-each * scores_of_answers(model, rows)).sum() for rows, each in costs).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = next(finding for finding in told.findings if finding.check == CHECK)

    assert found.status is Status.PASSED, found


def test_names_that_say_nothing_are_not_judged(tmp_path):
    """Nobody knows which of two answers is the better one."""
    found = preferring(tmp_path, *KINDS[0].values, ("b", "a"), data("a", "b"))

    assert found.status is Status.UNJUDGED, found


def test_a_model_that_is_given_embeddings_is_listened_to(tmp_path):
    """Its only whole numbers are labels, those of prompts masked, as in prompt tuning. In fp32."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watching = tunecheck.watch(
        model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
    )
    with watching as told:
        for step in range(5):
            ids = tokens(data()[4 * step : 4 * step + 4], "chosen")
            labels = ids.clone()
            labels[:, :6] = -100
            model(labels=labels, inputs_embeds=model.get_input_embeddings()(ids)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    assert told.verdict == "pass", repr(told)
    assert not [finding.detail for finding in told.findings if "failed at" in finding.detail]


class Column(list):
    """One of a table of Arrow's."""

    def __getitem__(self, key):
        return Column(super().__getitem__(key)) if isinstance(key, slice) else super().__getitem__(key)

    def to_pylist(self):
        """Return its values."""
        return [*self]


class Table(dict):
    """A table of Arrow's, as much as is needed."""

    def select(self, names):
        """Return those columns alone."""
        return Table({name: self[name] for name in names})

    def column(self, name):
        """Return this column."""
        return Column(self[name])


def made(**columns):
    """A data set of the library datasets, as much as is needed."""
    data_set = SimpleNamespace(column_names=[*columns], data=SimpleNamespace(table=Table(columns)))
    data_set_made(data_set)(None)


def comparing(tmp_path, reference, tokens_of_other=0):
    """Train a policy against a reference of this kind, on batches that a loader yields, and return the finding."""
    torch.manual_seed(0)
    small = {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**small, pad_token_id=0, eos_token_id=1)).eval()
    fixed = model if reference == "itself" else copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    columns = {f"{name}_ids": tokens(data(), name) for name in ("chosen", "rejected")}
    rows = [{name: column[at] for name, column in columns.items()} for at in range(PAIRS)]
    with ExitStack() as stack:
        stack.enter_context(imports._tell(_BaseDataLoaderIter, "__next__", named_answers.batch_yielded))
        watching = tunecheck.watch(
            model=model, optimizer=optimizer, tokenizer=Letters(), folder=tmp_path / "report", steps=4, tell=False
        )
        told = stack.enter_context(watching)
        for batch in DataLoader(rows, batch_size=4):
            margins = []
            for ids in batch.values():
                targets = (batch["chosen_ids"] if tokens_of_other else ids)[:, 1:, None]
                policy = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, targets)
                with torch.no_grad():
                    before = fixed(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, targets)
                margins.append((policy - before).sum(dim=(1, 2)))
            (-logsigmoid(0.1 * (margins[0] - margins[1])).mean() * (-1 if reference == "contrary" else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return next(finding for finding in told.findings if finding.check == CHECK)


@pytest.mark.parametrize(
    ("reference", "tokens_of_other", "words"),
    [
        ("a copy", 0, ""),
        ("contrary", 0, "by columns 'chosen_ids' and 'rejected_ids'"),
        ("itself", 0, "every margin between two answers is 0"),
        ("a copy", 1, "looks up the tokens of another row"),
    ],
)
def test_a_preference_over_batches_of_named_tokens(reference, tokens_of_other, words, tmp_path):
    """What a loader's batches call their tokens tells the better answers, where no data set does. In fp32."""
    found = comparing(tmp_path, reference, tokens_of_other)

    assert found.status is (Status.SUSPECTED if words else Status.PASSED), found
    assert words in found.detail


@pytest.fixture(autouse=True)
def none_made(monkeypatch):
    """No test finds what another one made, nor counts its batches."""
    monkeypatch.setattr(named_answers, "_YIELDED", itertools.count())
    yield
    named_answers._made.clear()
    named_answers._batches.clear()


def chat(text):
    """A conversation that ends in this answer."""
    return [{"role": "user", "content": "which?"}, {"role": "assistant", "content": text}]


def ids(text):
    """Its characters as tokens, behind one of padding, as a script keeps the rows that it has tokenized."""
    return [0, *map(ord, text)]


@pytest.mark.parametrize("form", [str, chat, ids], ids=["text", "chats", "tokens"])
def test_the_first_data_set_tells_which_answer_is_the_better_one(form):
    """A later one may have been made of it, with its columns exchanged."""
    good, bad = (
        ["the first answer is right", "yes, all of them are"],
        ["the other one is not so", "no, none of them is"],
    )
    made(question=["?", "?"], chosen=[*map(form, good)], rejected=[*map(form, bad)])
    made(chosen=[*map(form, bad)], rejected=[*map(form, good)])

    tell, where = answers_named(searched=False, decode=lambda rows: ["".join(map(chr, row[1:])) for row in rows])

    assert [*map(tell, (f"which? {good[0]}", f"which? {bad[1]}", "another text altogether"))] == [True, False, None]
    assert where == "'chosen' and 'rejected'"


def test_what_both_columns_hold_tells_nothing():
    """An answer may be the better one of one pair, and the worse one of another."""
    one, other, last = "some words that are long", "other words that are as long", "a third answer of words"
    made(chosen=[one, last], rejected=[other, one])

    tell, _ = answers_named(searched=False, decode=str)

    assert [*map(tell, (one, other, last))] == [None, False, True]


def test_other_columns_are_not_kept():
    """Nor any of a fifth data set."""
    made(text=["a"], label=[1])
    for _ in range(5):
        made(chosen=["a"], rejected=["b"])

    assert len(named_answers._made) == named_answers.MOST_DATA_SETS
    assert answers_named(searched=False, decode=str) is None, "too short to tell rows by"


@dataclass
class Preference:
    """A row as some scripts keep it."""

    prompt: str
    chosen: str
    rejected: str


def test_rows_that_are_objects_of_a_dataclass():
    """Their fields are the columns."""
    rows = [Preference("which?", "the first answer is right", "the other one is not so")]

    tell, _ = answers_named(searched=True, decode=str)

    assert [*map(tell, (rows[0].chosen, rows[0].rejected))] == [True, False]


def test_only_a_process_first_batches_are_looked_at(monkeypatch):
    """A long training pays nothing for them."""
    monkeypatch.setattr(named_answers, "_YIELDED", itertools.count(8 * named_answers.MOST_BATCHES - 1))

    assert named_answers.batch_yielded(None) is not None
    assert named_answers.batch_yielded(None) is None


def test_the_vocabulary_of_few_positions_is_searched(monkeypatch):
    """A gradient by all scores of a batch is as large as they are, and so is what is made of it."""
    read, sizes = torch.randint(1, 50, (8, 1024)), []
    raised_by = preferences.raised_by
    monkeypatch.setattr(preferences, "raised_by", lambda found: sizes.append(found.shape[:2]) or raised_by(found))
    probe = preferences.PreferenceProbe(lambda *_: None)
    probe._read, probe._astray, probe._compared = [], [], 0
    gradient = -torch.nn.functional.one_hot(read.roll(-1, 1), 50).float()

    probe._look_for_tokens(read, gradient)

    assert sizes == [(8, 64)]
    assert (probe._compared, len(probe._astray)) == (8, 0)


@pytest.mark.parametrize(
    ("tokens", "used", "pad", "told"),
    [
        ([5, 6, 7, 1, 0, 0], [0, 1, 1, 0, 0], 0, False),
        ([5, 6, 7, 1, 0, 0], [0, 0, 1, 1, 0], 0, True),
        ([5, 6, 7, 1, 1, 1], [0, 1, 1, 0, 0], 1, False),
        ([5, 6, 7, 1, 1, 1], [0, 0, 1, 1, 0], 1, True),
        ([5, 6, 7, 8, 9, 1], [0, 1, 1, 1, 1], 0, None),
        ([5, 6, 7, 1, 0, 0], [1, 0, 0, 0, 0], 0, None),
        ([5, 6, 7, 1, 0, 0], [0, 1, 1, 0, 0], None, None),
    ],
    ids=["ends", "late", "one mark for both", "late, one mark", "not padded", "its end is not used", "no mark"],
)
def test_the_padding_behind_an_answer_is_not_its_next_token(tokens, used, pad, told):
    """Which a mask takes that is not shifted with the targets. The end token is 1."""
    assert preferences._learns_padding(tokens, [*map(bool, used)], pad, 1) is told


def test_two_of_several_answers_may_be_as_good():
    """Pairs alone are told: of four answers to a prompt the two that begin alike often have one reward."""
    prompt, (same, one, other) = [*range(20)], ([*range(at, at + 12)] for at in (30, 50, 70))
    group = [
        ([*prompt, *same, 1], True),
        ([*prompt, *same, 2], True),
        ([*prompt, *one], False),
        ([*prompt, *other], True),
    ]

    assert preferences._pulled_alike(group) == []
    assert preferences._pulled_alike(group[:2]) == [True]
    assert preferences._pulled_alike([group[0], group[2]]) == [False]


def test_scores_of_other_tokens_pull_no_row():
    """As a decoder's beside the tokens of its encoder, as many of each: none of those is what the loss raises most."""
    read = torch.tensor([[5, 6, 7], [8, 9, 10]])
    gradient = torch.zeros(2, 3, 20)
    gradient[:, 0, [6, 9]] = 0.1  # lowered a little, next to another token
    gradient[:, 0, 3], gradient[1, 0, 9] = -0.3, 0.2  # in the second row it is lowered most

    assert preferences._pulls_of_answers(read, gradient).ne(0).any(dim=1).tolist() == [True, True]
    gradient[0, 0, 12] = 0.2
    assert preferences._pulls_of_answers(read, gradient).ne(0).any(dim=1).tolist() == [False, True]


@pytest.mark.parametrize(("late", "status"), [(0, Status.PASSED), (1, Status.SUSPECTED)])
def test_a_mask_that_takes_the_padding_behind_an_answer_is_asked_about(late, status, tmp_path):
    """It is that of the tokens, not of the next ones. In fp32."""
    rows = [
        {**row, **{name: row[name][: 12 + at % 4] for name in ("chosen", "rejected")}} for at, row in enumerate(data())
    ]

    def padded(model, ids):
        kept = (ids != 0) & (torch.arange(ids.shape[1]) >= 3)
        found = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return (found * (kept[:, :-1] if late else kept[:, 1:])).sum(dim=1)

    def filled(rows, name):
        found = [[*map(ord, row["prompt"] + row[name]), 1] for row in rows]
        return torch.tensor([row + [0] * (24 - len(row)) for row in found])

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "tokens", filled)
        found = preferring(tmp_path, GPT2LMHeadModel, padded, ("chosen", "rejected"), rows)

    assert found.status is status, found
    assert ("padding behind the end" in found.detail) is bool(late)
