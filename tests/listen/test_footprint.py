"""Listening changes nothing: no probe, no operation within the window, and nothing is left after it. fp32, CPU."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import pickle
import threading
import warnings
import weakref
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from footprint import differences, of_model, of_patches, watch_probes
from in_process import train_here
from small_net import ROW, Net, answer
from tiny_runs import run_with
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainerCallback

from benchmarks.scripts.script import MODEL, Script, judged, libraries_heard, plain_loop, trained
from tunecheck.core.trace import read
from tunecheck.listen import unheard
from tunecheck.listen.launch import rows_of
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

STEPS = 4


def half_disabled(model):
    """Every second layer's adapters are off, as a script may have them."""
    for layer in [module for module in model.modules() if hasattr(module, "_disable_adapters")][1::2]:
        layer.enable_adapters(False)


@pytest.mark.parametrize("loop", [plain_loop, None], ids=["loop", "Trainer"])
@pytest.mark.parametrize(
    ("lora", "change"),
    [({"lora_dropout": 0.1}, half_disabled), ({"modules_to_save": ["o_proj"]}, None), (None, None)],
    ids=["half disabled", "saved modules", "full"],
)
def test_a_probe_leaves_everything_as_it_was(loop, lora, change, tmp_path, monkeypatch):
    """Modules, hooks, adapters' switches, gradients, optimizer, random states, settings, open files and threads."""
    seen, changed = watch_probes(monkeypatch)
    script = Script(steps=STEPS, rows=16, loop=loop)
    script.lora = None if lora is None or script.lora is None else {**script.lora, **lora}
    script.adapted += [] if change is None else [change]
    judged(script, tmp_path)

    assert not changed
    assert len(seen) > 50


@pytest.mark.parametrize("loop", [plain_loop, None], ids=["loop", "Trainer"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_probe_leaves_a_quantised_base_as_it_was(bits, loop, tmp_path, monkeypatch):
    """bitsandbytes' layers take what their weights hold in the first pass, and change it in eval mode."""
    seen, changed = watch_probes(monkeypatch)
    quantised = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    base = partial(AutoModelForCausalLM.from_pretrained, MODEL, quantization_config=quantised, device_map={"": "cpu"})
    judged(Script(steps=STEPS, rows=16, loop=loop, base=lambda dtype: base(dtype=dtype)), tmp_path)

    assert not changed
    assert len(seen) > 50


def test_a_probe_of_our_own_training_leaves_everything_as_it_was(tmp_path, monkeypatch):
    """The same, with evaluations."""
    seen, changed = watch_probes(monkeypatch)
    train_here(run_with("training.precision=fp32", "device=cpu", "lora.dropout=0.1"), tmp_path)

    assert not changed
    assert len(seen) > 50


def fail_in_a_step(session):
    """Let the optimizer raise in the first step."""

    def step(*_):
        raise RuntimeError("the third-party step failed")

    session.optimizer.step = step


def test_a_training_that_raised_leaves_no_hook_behind(tmp_path):
    """Of one in this process, as --in-process has it: the next run would be listened to twice."""
    train_here(run_with("training.precision=fp32", "device=cpu"), tmp_path)  # libraries patch now what they do
    before = of_patches()
    trace = train_here(run_with("training.precision=fp32", "device=cpu"), tmp_path, fail_in_a_step)

    assert "the third-party step failed" in trace.attempts[-1].ending
    assert not differences(before, of_patches())


def saved(model):
    """Write the whole module, and read it."""
    file = io.BytesIO()
    torch.save(model, file)
    assert b"tunecheck" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)(ROW)


def spawned(model):
    """Send it to a process that is started anew."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(copy.deepcopy(model), theirs))
    process.start()
    scores = ours.recv()
    process.join()
    return torch.tensor(scores)


OPERATIONS = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model))(ROW),
    "deepcopy": lambda model: copy.deepcopy(model)(ROW),
    "torch.save": saved,
    "jit.script": lambda model: torch.jit.script(model)(ROW),
    "jit.trace": lambda model: torch.jit.trace(model, ROW)(ROW),
    "export": lambda model: torch.export.export(model, (ROW,)).module()(ROW),
    "compile": lambda model: torch.compile(model, backend="eager")(ROW),
    "fx": lambda model: torch.fx.symbolic_trace(model)(ROW),
    "spawn": spawned,
}


def trained_loop(model, operation=None, steps=STEPS + 2):
    """Train a classifier; after the second step, and when the window is over, do something with the model."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        scores = model(torch.randn(6, 8, generator=generator))
        loss = torch.nn.functional.cross_entropy(scores, torch.randint(4, (6,), generator=generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if operation is not None and step in (1, STEPS):
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                wanted = model.head(torch.relu(model.body(ROW)))
                assert torch.allclose(operation(model), wanted)
    return losses


def heard(folder, train):
    """Listen to this loop as the command does, and judge it."""
    options = Options(folder=str(folder), name="train", steps=STEPS)
    hooks = LoopHooks(options)
    hooks.attach()
    try:
        result = train()
    finally:
        hooks.detach()
    [row] = rows_of(folder, options, 0)
    return result, row


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_model_that_is_listened_to_is_a_model(name, tmp_path):
    """It is written, copied, compiled and sent as without watch, and the training goes on as without."""
    (losses, row) = heard(tmp_path, lambda: trained_loop(Net(), OPERATIONS[name]))

    assert losses == trained_loop(Net())
    assert row.outcome == "pass", [finding.detail for finding in row.failed]


def test_nothing_is_left_of_a_loop(tmp_path):
    """When its window is over, while the loop goes on."""
    trained_loop(Net())  # torch wraps a class's step when an optimizer is first made
    left, before, bare = [], of_patches(), of_model(Net()).keys()

    def train():
        model = Net()
        losses = trained_loop(model, steps=STEPS + 1)
        left.extend(differences(before, of_patches()))
        left.extend(of_model(model).keys() - bare)
        return losses

    heard(tmp_path, train)
    assert left == []
    assert differences(before, of_patches()) == []


def test_a_count_of_steps_slows_no_module(tmp_path):
    """As the command keeps it until the process ends: what a loop hooks is gone before."""
    with unheard.begin():
        heard(tmp_path, lambda: trained_loop(Net()))
        assert torch.nn.Module.__call__.__kwdefaults__ is None


class Saves(TrainerCallback):
    """A callback that writes and copies the model within the window, and looks at what is wrapped after it."""

    def __init__(self):
        self.wrapped = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Save, copy, pickle."""
        if state.global_step == 2:
            file = io.BytesIO()
            torch.save(model, file)
            assert b"tunecheck" not in file.getvalue()
            pickle.dumps(copy.deepcopy(model))
            pickle.dumps(kwargs["optimizer"].state_dict())
        if state.global_step == STEPS:
            self.wrapped.append(of_patches(Trainer, Accelerator))


def test_a_trainer_whose_callback_saves_the_model(tmp_path):
    """Nothing of the Trainer, its model or of torch is changed when it is done."""
    trainers, saves = [], Saves()
    script = Script(steps=STEPS, rows=16, built=[lambda trainer: trainer.add_callback(saves), trainers.append])
    trained(script, tmp_path)
    judged(script, tmp_path / "first")
    unheard = of_patches(Trainer, Accelerator)
    with libraries_heard():  # as the command does until it ends
        before = of_patches(Trainer, Accelerator)
        row = judged(script, tmp_path, steps=STEPS - 1)
        after = of_patches(Trainer, Accelerator)
    bare, _, watched = [
        vars(each).keys() | vars(each.accelerator).keys() | of_model(each.model).keys() for each in trainers
    ]

    assert row.outcome == "pass", [row.reason, *(finding.detail for finding in row.failed)]
    assert differences(before, saves.wrapped[-1]) == ["Trainer.evaluate", "Trainer.prediction_step"]
    assert differences(before, after) == []
    assert differences(unheard, of_patches(Trainer, Accelerator)) == []
    assert watched == bare


def test_a_model_that_is_dropped_within_the_window_is_gone(tmp_path):
    """As without watch; its steps are judged."""
    alive = []

    def train():
        model = Net()
        trained_loop(model, steps=STEPS - 1)
        kept = weakref.ref(model)
        del model
        gc.collect()
        alive.append(kept() is not None)

    _, row = heard(tmp_path, train)
    assert alive == [False]
    assert row.outcome == "pass", [finding.detail for finding in row.failed]


def test_a_model_that_is_kept_is_listened_to(tmp_path):
    """A collection between two calls of a function that trains it ends nothing."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train():
        for _ in range(STEPS):
            step(model, optimizer)
            gc.collect()

    _, row = heard(tmp_path, train)
    assert row.outcome == "pass", [finding.detail for finding in row.failed]
    [trace] = tmp_path.glob("watch-*.jsonl")
    assert len(read(trace).steps) == STEPS


class Counting(TorchDispatchMode):
    """Counts operations, as torch's counter of flops does."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Count one more."""
        self.number += 1
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_sees_nothing_of_ours(tmp_path):
    """It counts what the training computes."""

    def counted():
        with Counting() as mode:
            trained_loop(Net())
        return mode.number

    number, row = heard(tmp_path, counted)

    assert number == counted()
    assert row.outcome == "pass", [row.reason, *(finding.detail for finding in row.failed)]


def test_a_weight_that_changes_as_it_is_read_is_not_read(tmp_path):
    """torch's spectral norm iterates once more each time that the weight is asked for."""

    def normed():
        model = Net()
        torch.nn.utils.parametrizations.spectral_norm(model.body)
        return trained_loop(model)

    losses, row = heard(tmp_path, normed)

    assert losses == normed()
    assert row.outcome == "pass", [finding.detail for finding in row.failed]


def test_a_model_that_another_thread_differentiates_is_not_judged(tmp_path):
    """Its passes cannot be told from the training's, and no finding is made of them."""

    def train():
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(STEPS):
            step(model, optimizer)
            other = threading.Thread(target=lambda: torch.autograd.grad(model(ROW).sum(), list(model.parameters())))
            other.start()
            other.join()

    _, row = heard(tmp_path, train)
    assert row.outcome == "inconclusive"
    assert "another thread calls the model" in row.unjudged[0].detail


def step(model, optimizer):
    """Train one batch."""
    model(torch.randn(6, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
