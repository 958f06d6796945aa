"""Hooks in a training's own passes: an error of ours ends them and nothing else; one of the training's passes."""

from __future__ import annotations

import ast
import inspect
import pickle
import signal
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tunecheck.core.paths import shipped_folder
from tunecheck.probes.movement import MovementProbe
from tunecheck.training.events import Probes
from tunecheck.training.hooks import Hooks, OwnHooks, nothing

SUITE = shipped_folder() / "suite" / "tunecheck"


class Model(torch.nn.Module):
    """One linear, which may refuse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.refuses = torch.nn.Linear(4, 4), False

    def forward(self, x):
        """Return the product. Raises ValueError where it refuses."""
        if self.refuses:
            raise ValueError("of the training")
        return self.linear(x)


def trained(hooks=None, wrong=lambda *_, **__: None):
    """Train two steps with everything hooked; the weights."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hooks is not None:
        hooks.before(model, wrong, with_kwargs=True)
        hooks.after(model, wrong, always_call=True)
        hooks.after(model.linear, lambda _m, _args, out: hooks.gradient(out, wrong))
        hooks.before(None, wrong, with_kwargs=True)
        hooks.optimizer_steps(wrong, wrong)
        hooks.function(torch.nn.utils, "clip_grad_norm_", before=wrong, after=wrong)
        hooks.function(model, "forward", before=wrong, after=wrong)
    for _ in range(2):
        loss = model(torch.ones(2, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.linear.weight.detach()


def fails(*_, **__):
    """Raise."""
    raise RuntimeError("of ours")


@pytest.mark.parametrize("wrong", [fails, lambda *_, **__: torch.full((2, 4), torch.nan)], ids=["raises", "returns"])
def test_neither_an_error_nor_what_a_hook_returns_changes_the_training(wrong):
    """The weights are the same, and the first error is kept with its place."""
    told = []
    with Hooks(told.append) as hooks:
        got = trained(hooks, wrong if wrong is fails else lambda *given, **_: None)
        if wrong is not fails:  # what an optimizer's hook returns are its arguments; all others are dropped
            model = Model()
            hooks.after(model, wrong)
            assert torch.equal(model(torch.ones(2, 4)), Model()(torch.ones(2, 4)))

    assert torch.equal(got, trained())
    assert told == ([hooks.error] if wrong is fails else [])
    if wrong is fails:
        assert "RuntimeError: of ours (test_hooks.py:" in hooks.error


def test_after_an_error_nothing_is_called_any_more():
    """What was left half done must not go on; a context is left all the same."""
    calls, left, model = [], [], Model()

    @contextmanager
    def context():
        try:
            yield
        finally:
            left.append(True)

    with Hooks() as hooks:
        hooks.around(model, context)
        hooks.before(model, lambda *_: calls.append(1) or fails())
        for _ in range(3):
            model(torch.ones(1, 4))

    assert (len(calls), len(left)) == (1, 1)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_error_of_the_training_passes_unchanged():
    """The same object, nothing around it, and the training's own frame is the innermost."""
    model, left = Model(), []
    model.refuses = True

    @contextmanager
    def context():
        try:
            yield
        finally:
            left.append(True)

    with Hooks() as hooks:
        hooks.around(model, context)
        hooks.before(model, lambda *_: None)
        hooks.after(model, lambda *_: None, always_call=True)
        hooks.function(model, "forward", before=lambda *_: None, after=lambda *_: None)
        with pytest.raises(ValueError, match="of the training") as raised:
            model(torch.ones(1, 4))

    assert raised.value.__context__ is None
    assert raised.traceback[-1].name == "forward"
    assert (hooks.error, left) == ("", [True])


def test_a_step_that_calls_the_one_it_overrides_is_one_step():
    """torch hooks both."""

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    calls, model = [], Model()
    torch.optim.SGD(model.parameters(), lr=0.1)  # torch hooks a class as it makes the first of it
    optimizer = Own(model.parameters(), lr=0.1)
    with Hooks() as hooks:
        hooks.optimizer_steps(lambda *_: calls.append("before"), lambda *_: calls.append("after"))
        optimizer.step()
    optimizer.step()

    assert calls == ["before", "after"]


def test_a_backward_pass_under_a_default_device_is_one():
    """torch's function modes have a method call itself once more: a watched loop's loss counted twice."""
    hooks, seen = Hooks(), []
    hooks.function(torch.Tensor, "backward", before=lambda *_, **__: seen.append(1))
    try:
        with torch.device("cpu"):
            for _ in range(2):
                torch.ones(1, requires_grad=True).sum().backward()
    finally:
        hooks.remove()

    assert len(seen) == 2


def test_a_method_of_a_class_gets_the_class_that_it_is_called_on():
    """As from_pretrained of a configuration, which a base defines for all."""

    class Base:
        @classmethod
        def made(cls, number):
            return cls.__name__, number

    class Own(Base):
        pass

    hooks, seen, before = Hooks(), [], vars(Base)["made"].__func__
    hooks.function(Base, "made", before=lambda kind, number: seen.append((kind, number)))
    assert Own.made(1) == ("Own", 1)

    hooks.remove()
    assert Own.made(2) == ("Own", 2)
    assert seen == [(Own, 1)]
    assert vars(Base)["made"].__func__ is before


def test_a_warning_names_the_line_that_calls():
    """Not that of a hook, however many there are: torch warns of the caller of what is hooked."""
    optimizer = torch.optim.SGD(Model().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with Hooks() as first, Hooks() as second:
        for hooks in (first, second):
            hooks.function(torch.optim.lr_scheduler.LRScheduler, "step")
        with pytest.warns(UserWarning, match="before `optimizer.step") as warned:
            schedule.step()
    assert [Path(each.filename).name for each in warned] == [Path(__file__).name]


def test_in_passes_of_our_own_an_error_is_the_pass_s():
    """And what a hook returns takes its place."""
    model = Model()
    with OwnHooks() as hooks:
        hooks.after(model, lambda _m, _args, out: out * 0)
        assert not model(torch.ones(1, 4)).any()
        hooks.before(model, fails)
        with pytest.raises(RuntimeError, match="of ours"):
            model(torch.ones(1, 4))


def test_nothing_is_hooked_around_the_guard():
    """Whoever registers a hook elsewhere can end a user's training: twice one did."""
    guilty = {
        f"{path.relative_to(SUITE).as_posix()}: {node.func.attr}"
        for package in ("probes", "training", "watch")
        for path in (SUITE / package).rglob("*.py")
        if path.name != "hooks.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr.startswith("register_") and ("hook" in node.func.attr)
    }

    assert guilty == set()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_a_hook_is_no_part_of_what_is_compiled(monkeypatch):
    """torch.compile would make it one, and fail in it: what it traces is the training's alone. A step is heard."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    monkeypatch.setattr(torch._dynamo.config, "disable", False)
    model, called = Model(), []

    def note(module, *_):
        called.append(module.training)

    def in_compiled(x):
        return model(x)

    with Hooks() as hooks:
        hooks.before(model.linear, note)
        out = torch.compile(in_compiled, backend="eager", fullgraph=True)(torch.ones(1, 4))
        assert not called
        out.sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        hooks.optimizer_steps(lambda *_: called.append(torch.compiler.is_compiling()), nothing)
        torch.compile(lambda: optimizer.step(), backend="eager")()

    assert torch.equal(out, model(torch.ones(1, 4)))
    assert called == [False]
    assert not hooks.error


def test_a_hook_is_no_part_of_what_a_cuda_graph_captures(monkeypatch):
    """Whatever reads a tensor meanwhile has the capture fail, and so the training."""
    model, called = Model(), []
    with Hooks() as hooks:
        hooks.after(model.linear, lambda *_: called.append("captured"))
        for name in ("is_initialized", "is_current_stream_capturing"):
            monkeypatch.setattr(torch.cuda, name, lambda: True)
        model(torch.ones(1, 4))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        assert not called
        model(torch.ones(1, 4))

    assert called == ["captured"]


def test_what_a_gradients_hook_computes_is_not_cast():
    """Where backward is called within autocast."""
    model, seen = Model(), []

    def note(gradient):
        seen.append((gradient.float() @ torch.ones(4, 4)).dtype)

    with Hooks() as hooks, torch.autocast("cpu", torch.bfloat16):
        out = model(torch.ones(1, 4))
        hooks.gradient(out, note)
        out.sum().backward()
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(4, 4) @ torch.ones(4, 4)).dtype is torch.bfloat16

    assert seen == [torch.float32]


def test_a_hook_before_sees_what_the_modules_own_hooks_hand_on():
    """And is no hook of the module while that computes, nor while it rests."""
    seen, within = [], []

    class Looking(torch.nn.Linear):
        def forward(self, x):
            within.append(dict(self._forward_pre_hooks))
            return super().forward(x)

    module = Looking(1, 1)
    own = module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    hooks = OwnHooks()
    with hooks:
        hooks.before(module, lambda _, args: seen.append(float(args[0])))
        module(torch.ones(1))
        module.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            module(torch.ones(1))

    assert seen == [2.0]
    assert [*within[0]] == [own.id]
    assert len(module._forward_pre_hooks) == 2
    assert not module._forward_pre_hooks_with_kwargs


class Distilled(Model):
    """One linear, and the functions that a script may keep beside it."""

    def __init__(self):
        super().__init__()
        self.loss, self.clip = torch.nn.functional.kl_div, torch.nn.utils.clip_grad_norm_


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_a_function_that_is_heard_stays_what_it_was():
    """A model that holds it is pickled in the window and after it, and what calls it is scripted."""
    model, called = Distilled(), []
    likely, wanted = torch.zeros(2, 4), torch.full((2, 4), 0.25)
    signature = inspect.signature(model.loss)
    first, second = Hooks(), Hooks()
    for number, hooks in enumerate((first, second)):
        hooks.function(torch.nn.functional, "kl_div", after=lambda *_, at=number, **__: called.append(at))
        hooks.function(torch.nn.utils, "clip_grad_norm_", before=lambda *_, at=number, **__: called.append(at))
    model.loss(likely, wanted, reduction="batchmean")
    model.clip(model.parameters(), 1.0)
    scripted = torch.jit.script(torch.nn.KLDivLoss(reduction="sum"))(likely, wanted)
    assert called == [0, 1, 1, 0]
    for hooks in (first, second, None):  # the first ends before the second
        assert pickle.loads(pickle.dumps(model)).loss is torch.nn.functional.kl_div
        assert inspect.signature(model.loss) == signature
        if hooks is not None:
            hooks.remove()
    model.loss(likely, wanted, reduction="batchmean")

    assert called == [0, 1, 1, 0]
    assert not vars(model.loss)
    assert torch.equal(scripted, model.loss(likely, wanted, reduction="sum"))


class Preempted(Exception):
    """What a script raises when a signal comes."""


WORK = {
    "hook": trained,
    "probe": lambda *_: Probes((MovementProbe,), nothing).start(
        SimpleNamespace(device=torch.device("cpu"), seen_whole=nullcontext)
    ),
}


@pytest.mark.parametrize("whose", WORK)
def test_what_a_signals_handler_raises_is_the_scripts(whose, monkeypatch):
    """Also while ours is at work: a script that is preempted saves then."""

    def preempted(*_):
        raise Preempted

    def at_work(*_, **__):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, preempted)
    try:
        monkeypatch.setattr(MovementProbe, "start", at_work)
        with Hooks() as hooks, pytest.raises(Preempted):
            WORK[whose](hooks, at_work)
    finally:
        signal.signal(signal.SIGUSR1, before)


SAVED = []


def saving(module, _):
    """Write the module, once."""
    if not SAVED:
        SAVED.append(pickle.dumps(module))


def test_a_model_that_a_hook_of_its_own_saves():
    """Nothing of ours is in what its hook writes, though at that moment we are one of its hooks."""
    model, row = Model(), torch.ones(1, 4)
    model.register_forward_pre_hook(saving)
    with Hooks() as hooks:
        hooks.before(model, fails, with_kwargs=True)
        model(row)
    assert b"tunecheck" not in SAVED[0]
    assert torch.equal(pickle.loads(SAVED[0])(row), model.linear(row))
