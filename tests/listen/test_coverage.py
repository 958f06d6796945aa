"""What an optimizer of a loop holds, and at which rate: found though no object says what was meant. fp32, CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from small_net import Net

from tunecheck.listen.launch import rows_of
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options


def judged(folder, train):
    """Listen to this loop as the command does, and judge it: the checks that failed, with their details."""
    options = Options(folder=str(folder), name="train", steps=4)
    hooks = LoopHooks(options)
    hooks.attach()
    try:
        train()
    finally:
        hooks.detach()
    [row] = rows_of(folder, options, 0)
    return {finding.check: finding.detail for finding in row.findings if finding.status.value == "failed"}, row


def loop(model, optimizer, steps=5):
    """Train a classifier."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        scores = model(torch.randn(6, 8, generator=generator))
        loss = torch.nn.functional.cross_entropy(scores, torch.randint(4, (6,), generator=generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def before_a_copy():
    """The copy is trained, the original is in the optimizer."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loop(copy.deepcopy(model), optimizer)


def head_left_out():
    """The head learns nothing."""
    model = Net()
    loop(model, torch.optim.AdamW(model.body.parameters(), lr=1e-2))


@pytest.mark.parametrize(
    ("train", "told"),
    [(before_a_copy, "4 trainable tensors are not in the optimizer"), (head_left_out, "head.bias, head.weight")],
    ids=["of a copy", "without the head"],
)
def test_an_optimizer_without_what_learns_is_named(train, told, tmp_path):
    """First of all findings."""
    failed, _ = judged(tmp_path, train)
    assert next(iter(failed)) == "optimizer_coverage"
    assert told in failed["optimizer_coverage"]


def test_a_prompt_before_a_model_that_nobody_froze_is_no_mistake(tmp_path):
    """The model's tensors get gradients, and the optimizer's do: it may be meant to train these alone."""

    def train():
        model, prompt = Net(), torch.nn.Parameter(torch.zeros(8))
        optimizer = torch.optim.AdamW([prompt], lr=1e-2)
        for _ in range(5):
            model(torch.ones(6, 8) + prompt).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    failed, _ = judged(tmp_path, train)
    assert "optimizer_coverage" not in failed


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.0, 1e-2), (1e-2, 0.0)], ids=["all", "first group", "second group"])
def test_a_rate_of_zero_where_something_is_to_learn_is_named(rates, tmp_path):
    """Of all groups or of one."""

    def train():
        model = Net()
        groups = [{"params": part.parameters(), "lr": lr} for part, lr in zip(model.children(), rates, strict=True)]
        loop(model, torch.optim.AdamW(groups))

    failed, _ = judged(tmp_path, train)
    assert ("rate is 0" if any(rates) else "learning rate above zero") in failed["trainable_moved"]


@pytest.mark.parametrize(
    ("steps", "stepped", "meant"),
    [(5, False, True), (5, True, False), (1, True, True)],
    ids=["per epoch", "per step", "one step"],
)
def test_a_schedule_that_holds_the_rate_at_zero_is_a_question_until_it_is_stepped(steps, stepped, meant, tmp_path):
    """A warm-up may begin at 0. Where it is stepped per epoch, the whole first epoch has no rate."""

    def train():
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: epoch // 9)
        for _ in range(steps):
            loop(model, optimizer, steps=1)
            if stepped:
                schedule.step()

    failed, row = judged(tmp_path, train)
    asked = {finding.check: finding.detail for finding in row.findings if finding.status.value == "suspected"}
    assert "learning rate above zero" in (asked if meant else failed)["trainable_moved"]
    assert not meant or not failed


def test_a_loop_shorter_than_the_window_is_judged(tmp_path):
    """As one that is listened to whole."""
    model = Net()
    failed, row = judged(tmp_path, lambda: loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps=3))

    assert not failed
    assert row.outcome == "pass"


def test_sparse_gradients_are_read(tmp_path):
    """An embedding's, as SparseAdam takes them."""

    def train():
        torch.manual_seed(0)
        model = torch.nn.Embedding(16, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
        for step in range(5):
            model(torch.tensor([step, step + 3])).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    failed, row = judged(tmp_path, train)
    assert not failed
    assert row.outcome == "pass"


class Halves(torch.Tensor):
    """A matrix that is stored as twice its numbers: of few operators, as those of torchao."""

    stored: torch.Tensor

    @staticmethod
    def __new__(cls, stored):
        """Wrap what is stored."""
        made = torch.Tensor._make_wrapper_subclass(cls, stored.shape, dtype=stored.dtype)
        made.stored = stored
        return made

    def dequantize(self):
        """Return what it stands for."""
        return self.stored / 2

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Decode it for a product."""
        if function is torch.nn.functional.linear:
            return function(args[0], args[1].dequantize(), *args[2:])
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Know no operator but that for a parameter."""
        if function is torch.ops.aten.detach.default:
            return cls(args[0].stored)
        raise NotImplementedError(f"Halves has no {function}")


def test_a_base_of_an_encoding_class_is_read(tmp_path):
    """Its numbers are looked at, which it decodes, and by no operator that it lacks."""

    def train():
        model = Net()
        model.body.requires_grad_(False)
        model.body.weight = torch.nn.Parameter(Halves(torch.randn(model.body.weight.shape)), requires_grad=False)
        loop(model, torch.optim.AdamW(model.head.parameters(), lr=1e-2))

    failed, row = judged(tmp_path, train)
    assert not failed
    assert not [finding.detail for finding in row.unjudged if "Halves" in finding.detail]
    assert {"trainable_moved", "usual_tensors_learn"} <= {finding.check for finding in row.passed}


def test_a_window_that_ends_with_the_interpreter_is_read(tmp_path, monkeypatch):
    """No thread starts then."""

    def refuses(*_):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refuses)
    model = Net()
    failed, row = judged(tmp_path, lambda: loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps=3))

    assert not failed
    assert row.outcome == "pass"
