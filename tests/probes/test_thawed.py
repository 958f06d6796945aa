"""Layers that a script thaws in the middle of a training, and weights that it keeps: neither is a leak or a fault."""

from __future__ import annotations

import copy
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import tunecheck
from tunecheck.probes.resources import _of_anothers

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


class Classifier(torch.nn.Module):
    """Two layers and a loss."""

    def __init__(self):
        super().__init__()
        self.lower, self.upper = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x, target):
        """Return the loss."""
        return {"loss": torch.nn.functional.cross_entropy(self.upper(self.lower(x).tanh()), target)}


class Thaw(TrainerCallback):
    """Gradual unfreezing, as of ULMFiT (arXiv 1801.06146)."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        """Thaw the lower layer."""
        if state.global_step == 4:
            model.lower.requires_grad_(True)


class Temperature(Trainer):
    """Its loss has a parameter of its own, as losses of sentence-transformers and margins of ArcFace have."""

    used = torch.nn.Parameter(torch.ones(()))

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        """Return the model's loss at a temperature that learns."""
        outcome = model(**inputs)
        loss = outcome["loss"] * self.used.exp()
        return (loss, outcome) if return_outputs else loss


def watched(tmp_path, model, optimizer, trainer=Trainer, **more):
    """Train this model for eight steps and return the findings."""
    rows = [{"x": torch.randn(4), "target": torch.tensor(at % 2)} for at in range(32)]
    args = TrainingArguments(
        str(tmp_path / "out"),
        max_steps=8,
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        remove_unused_columns=False,
    )
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    training = trainer(model, args, train_dataset=rows, optimizers=(optimizer, constant), **more)
    with tunecheck.watch(training, folder=tmp_path / "report", steps=8, tell=False) as told:
        training.train()
    return {finding.check: finding for finding in told.findings}


@pytest.mark.parametrize("learns", [True, False], ids=["of the loss", "of nothing"])
def test_a_tensor_beside_the_model_is_no_fault(learns, tmp_path):
    """With a gradient or without, as a guide's that a loss holds: it takes the place of none of the model's."""
    torch.manual_seed(0)
    model = Classifier()
    beside = Temperature.used if learns else torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*model.parameters(), beside], lr=1e-2)
    found = watched(tmp_path, model, optimizer, Temperature)

    assert found["optimizer_coverage"].passed
    assert not [name for name, finding in found.items() if finding.status.value == "failed"]


@pytest.mark.parametrize("held", [True, False], ids=["the optimizer holds them", "it does not"])
def test_layers_thawed_by_a_callback(held, tmp_path):
    """Passes, and where the optimizer was made of what learnt at first, that alone is told."""
    torch.manual_seed(0)
    model = Classifier()
    model.lower.requires_grad_(False)
    learnt = model if held else model.upper
    found = watched(tmp_path, model, torch.optim.AdamW(learnt.parameters(), lr=1e-2), callbacks=[Thaw()])

    assert found["optimizer_coverage"].passed == held
    for name in ("state_in_training", "gradient_norm_reported", "live_tensors_flat"):
        assert found[name].passed, found[name].detail


def test_a_copy_of_the_weights_is_told_from_what_leaks():
    """Of all weights or of those that learn alone; gradients and the optimizer's state are no tensors that pile up."""
    model = Classifier()
    model.lower.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.upper.parameters())
    session = SimpleNamespace(model=model, optimizer=optimizer, device=torch.device("cpu"))

    def grown(before):
        now = _of_anothers(session, [0])
        return tuple(now[name] - before[name] for name in ("tensors", "copies", "copied"))

    gc.collect()  # what other tests have left
    start = _of_anothers(session, [0])
    model(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))["loss"].backward()
    optimizer.step()
    assert grown(start) == (0, 0, 0)

    best = copy.deepcopy(model.state_dict())
    assert grown(start) == (4, 1, 4)
    learnt = {name: best[name].clone() for name in best if name.startswith("upper")}
    assert grown(start) == (6, 2, 6)
    kept = torch.randn(7, 7)
    assert grown(start) == (7, 2, 6)
    assert len(learnt) + len(kept) == 9


def test_a_model_that_begins_to_learn_late_is_no_leak():
    """Its optimizer's state and its gradients are not counted; optimizers that are kept in a list are."""
    model, critic = Classifier(), Classifier()
    session = SimpleNamespace(model=model, optimizer=torch.optim.AdamW(model.parameters()), device=torch.device("cpu"))
    values = torch.optim.AdamW(critic.parameters())
    gc.collect()
    start = _of_anothers(session, [0])["tensors"]
    assert _of_anothers(session, [0])["learning"] == 0

    def learnt(optimizer):
        critic(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))["loss"].backward()
        optimizer.step()
        return _of_anothers(session, [0])["tensors"] - start

    assert learnt(values) == 0
    assert _of_anothers(session, [0])["learning"] == 4
    kept = [torch.optim.AdamW(critic.parameters()) for _ in range(3)]
    assert [learnt(optimizer) for optimizer in kept] == [8, 16, 24]


@pytest.mark.parametrize(("leaked", "asked"), [(0, False), (3, True)])
def test_a_critic_that_steps_from_the_fifth_step_on(leaked, asked, tmp_path):
    """What is kept in each step beside it is asked about as ever."""
    torch.manual_seed(0)
    model, critic, kept = Classifier(), Classifier(), []
    optimizer, values = (torch.optim.AdamW(each.parameters()) for each in (model, critic))
    watching = tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=6, tell=False)
    with watching as told:
        for step in range(8):
            given = torch.randn(8, 4), torch.arange(8) % 2
            for net, each in ((model, optimizer), (critic, values))[: 1 + (step > 3)]:
                net(*given)["loss"].backward()
                each.step()
                each.zero_grad()
            kept += [torch.randn(5) for _ in range(leaked)]
    found = next(finding for finding in told.findings if finding.check == "live_tensors_flat")

    assert (found.status.value == "suspected") is asked, found.detail


@pytest.mark.parametrize("steps", [3, 8])
def test_nothing_of_a_loop_is_kept(steps, tmp_path):
    """However early it ends: what reads back later saves does not need it."""
    model = Classifier()
    optimizer, seen = torch.optim.AdamW(model.parameters()), weakref.ref(model)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=6, tell=False):
        for _ in range(steps):
            model(torch.randn(8, 4), torch.arange(8) % 2)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    del model, optimizer
    gc.collect()

    assert seen() is None
