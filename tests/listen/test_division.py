"""Who divides the losses of a window's micro-batches, told by calling compute_loss with other numbers. fp32, CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.hf_trainer import TrainerListener
from tunecheck.listen.launch import rows_of
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


class Tagger(torch.nn.Module):
    """A model of the script's own, whose forward takes whatever it is handed, and ignores it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3)

    def forward(self, input_ids, labels=None, **further):
        """Return the mean loss, and scores."""
        scores = self.head(self.embedding(input_ids))
        return {"loss": cross_entropy(scores.flatten(0, 1), labels.flatten()), "logits": scores}


class Strict(Tagger):
    """The same, which takes nothing else: the Trainer divides."""

    def forward(self, input_ids, labels=None):
        """Return the mean loss, and scores."""
        return super().forward(input_ids, labels)


def losing(loss):
    """A Trainer whose compute_loss is this, of scores, labels, the number of tokens and the Trainer."""

    class Losing(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            self.calls = getattr(self, "calls", 0) + 1
            self.log({"called": self.calls})
            scores = model(**inputs, labels=labels)["logits"].flatten(0, 1)
            return loss(scores, labels.flatten(), num_items_in_batch, self)

    return Losing


def heard(folder, trainer, model, several=2):
    """Who divides, as the trace says, and the Trainer."""
    torch.manual_seed(0)
    rows = [{"input_ids": torch.randint(0, 20, (6,)), "labels": torch.randint(0, 3, (6,))} for _ in range(16)]
    arguments = TrainingArguments(
        folder / "out",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=several,
        max_steps=2,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    built = trainer(model=model(), args=arguments, train_dataset=rows)
    with TrainerListener(built, Options(folder=str(folder), name="script", steps=2)):
        built.train()
    (path,) = folder.glob("watch-*.jsonl")
    return [seen.by for seen in read(path).main.all(e.LossDivided)], built


DIVIDED = {
    "by items": lambda scores, labels, items, trainer: cross_entropy(scores, labels, reduction="sum") / items,
    "by steps": lambda scores, labels, items, trainer: (
        cross_entropy(scores, labels) / trainer.current_gradient_accumulation_steps
    ),
    "by the argument": lambda scores, labels, items, trainer: (
        cross_entropy(scores, labels) / trainer.args.gradient_accumulation_steps
    ),
    "by a number": lambda scores, labels, items, trainer: 0.5 * (cross_entropy(scores, labels) + scores.mean()),
}


@pytest.mark.parametrize("how", DIVIDED)
def test_a_loss_that_divides_itself_is_divided(how, tmp_path):
    """By whatever says how many there are; what the Trainer counts is as it was."""
    by, trainer = heard(tmp_path, losing(DIVIDED[how]), Tagger)

    assert by == ["compute_loss"]
    assert trainer.calls == 4
    assert [log["called"] for log in trainer.state.log_history if "called" in log] == [1, 2, 3, 4]


def test_a_loss_that_leaves_the_number_out_is_not(tmp_path):
    """Nor is that of a model whose forward ignores it."""
    by, _ = heard(tmp_path, losing(lambda scores, labels, items, trainer: cross_entropy(scores, labels)), Tagger)
    assert by == [""]

    (tmp_path / "other").mkdir()
    assert heard(tmp_path / "other", Trainer, Tagger)[0] == [""]


def of_two_rows(scores, labels, items, trainer):
    """A loss of two rows of six tokens, and of no others."""
    return cross_entropy(scores.view(2, 6, 3).flatten(0, 1), labels)


def contrasted(scores, labels, items, trainer):
    """Each row against all others of the batch."""
    return cross_entropy(scores @ scores.T, torch.arange(len(scores)))


@pytest.mark.parametrize(
    "loss",
    [lambda scores, labels, items, trainer: cross_entropy(scores, labels, reduction="sum"), contrasted, of_two_rows],
    ids=["a sum", "rows against each other", "a fixed number of rows"],
)
def test_of_a_sum_over_the_rows_nobody_can_tell(loss, tmp_path):
    """Micro-batches add up to it; rows that are compared with each other are not those of a larger batch.

    A loss that refuses more rows tells nothing either.
    """
    assert heard(tmp_path, losing(loss), Tagger)[0] == []
    (path,) = tmp_path.glob("watch-*.jsonl")
    assert not read(path).records(e.ProbeFailed)


def test_the_trainer_divides_where_the_model_takes_no_number(tmp_path):
    """And of a single micro-batch there is nothing to divide."""
    assert heard(tmp_path, Trainer, Strict)[0] == ["the Trainer"]

    (tmp_path / "other").mkdir()
    assert heard(tmp_path / "other", Trainer, Tagger, several=1)[0] == []


def added_up(model, batches):
    """Both means as they are."""
    for ids, labels in batches:
        cross_entropy(model(ids).flatten(0, 1), labels.flatten()).backward()


def averaged(model, batches):
    """Half of each, one of them with a term of its own."""
    for ids, labels in batches:
        scores = model(ids)
        (
            (cross_entropy(scores.flatten(0, 1), labels.flatten()) + 0.1 * scores.square().mean()) / len(batches)
        ).backward()


def cleared(model, batches):
    """A look at the gradient, which is thrown away."""
    for ids, labels in batches:
        model.zero_grad()
        cross_entropy(model(ids).flatten(0, 1), labels.flatten()).backward()


def of_one_pass(model, batches):
    """Two tasks."""
    (ids, labels), _ = batches
    scores = model(ids)
    cross_entropy(scores.flatten(0, 1), labels.flatten()).backward(retain_graph=True)
    cross_entropy(scores[:, 0], labels[:, 0]).backward()


def of_another_kind(model, batches):
    """A sum over the tokens, and a mean of squares."""
    for ids, labels in batches:
        scores = model(ids)
        cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum").backward(retain_graph=True)


def over_tokens(model, batches, share=1.0):
    """The losses of tokens, in two parts, that a loop sums and divides by the number of those that count."""
    for ids, labels in batches:
        labels = labels.masked_fill(ids < 5, -100)
        parts = zip(model(ids).split(4, dim=1), labels.split(4, dim=1), strict=True)
        each = [cross_entropy(some.flatten(0, 1), wanted.flatten(), reduction="none") for some, wanted in parts]
        (share * torch.cat(each).sum() / (labels != -100).sum()).backward()


def over_tokens_by_share(model, batches):
    """The same, each half of it."""
    over_tokens(model, batches, 1 / len(batches))


def by_a_mask(model, batches):
    """Half of each sum over the tokens that a mask leaves."""
    for ids, labels in batches:
        mask = (ids >= 5).float()
        each = cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="none").view_as(mask)
        ((each * mask).sum() / mask.sum() / len(batches)).backward()


def regressed(model, batches, share=1.0):
    """Means of squares, with a smaller term."""
    for ids, labels in batches:
        scores = model(ids)
        (share * (mse_loss(scores[..., 0], labels.float()) + 0.1 * scores.abs().mean())).backward()


def regressed_by_share(model, batches):
    """The same, each half of it."""
    regressed(model, batches, 1 / len(batches))


def of_pairs(model, batches):
    """Two passes each, as of a chosen and a rejected answer."""
    for good, bad in batches:
        torch.nn.functional.softplus(model(bad).mean((1, 2)) - model(good).mean((1, 2))).mean().backward()


def by_two_calls(model, batches):
    """Of what is real and what is not, as a GAN's critic has them."""
    (real, _), (made, _) = batches
    mse_loss(model(real).mean(-1), torch.ones(2, 6)).backward()
    mse_loss(model(made).mean(-1), torch.zeros(2, 6)).backward()


def scaled_afterwards(model, batches):
    """The gradients are divided."""
    regressed(model, batches)
    for parameter in model.parameters():
        parameter.grad.div_(len(batches))


@pytest.mark.parametrize(
    ("window", "by"),
    [
        *((added_up, [""]), (averaged, ["the loop"]), (cleared, []), (of_one_pass, []), (of_another_kind, [])),
        *((over_tokens, [""]), (over_tokens_by_share, ["the loop"]), (by_a_mask, ["the loop"])),
        *((regressed, [""]), (regressed_by_share, ["the loop"]), (by_two_calls, []), (scaled_afterwards, [""])),
        (of_pairs, [""]),
    ],
)
def test_a_loop_is_seen_to_divide_in_its_losses_graph(window, by, tmp_path):
    """Where each of several passes' mean is added to the gradient; nothing is told of what is no such mean."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=3))
    hooks.attach()
    for _ in range(3):
        window(model, [(torch.randint(0, 20, (2, 6)), torch.randint(0, 3, (2, 6))) for _ in range(2)])
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    trace = read(path)
    finding = CHECKS["loss_normalised_over_accumulation"]()(trace)

    assert [seen.by for seen in trace.main.all(e.LossDivided)] == by
    assert (finding.status is Status.SUSPECTED) == (by == [""] and window is not scaled_afterwards)


@pytest.mark.parametrize("divides", [False, True])
def test_a_loop_of_a_language_model_that_does_not_divide_is_named_as_a_trainer_is(divides, tmp_path):
    """By the same check; what its loss and gradient then are follows from it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = Options(folder=str(tmp_path), name="script", steps=3)
    hooks = LoopHooks(options)
    hooks.attach()
    for _ in range(3):
        for _ in range(2):
            ids = torch.randint(0, 32, (2, 12))
            (model(input_ids=ids, labels=ids).loss / (2 if divides else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    [row] = rows_of(tmp_path, options, 0)

    roots = [finding for finding in row.failed if not finding.because]
    assert [finding.check for finding in roots] == ["loss_normalised_over_accumulation"] * (not divides)
    assert divides or roots[0].meaning.startswith("The loop calls backward")
    assert divides or "num_items_in_batch" not in roots[0].meaning


class OfPairs(Trainer):
    """Its collator gives pairs of tensors, which only its own compute_loss takes apart."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of the pair."""
        ids, labels = inputs
        return model(ids, labels=labels)["loss"]

    def get_train_dataloader(self):
        """Batches that are no dictionaries."""
        torch.manual_seed(0)
        return [(torch.randint(0, 20, (2, 6)), torch.randint(0, 3, (2, 6))) for _ in range(8)]


def test_batches_that_are_no_dictionaries_are_listened_to(tmp_path):
    """The Trainer divides their loss itself, as it counts no items in them."""
    by, _ = heard(tmp_path, OfPairs, Tagger)
    assert by == ["the Trainer"]
