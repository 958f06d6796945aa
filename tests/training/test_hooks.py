"""Hooks in a training's own passes: an error of ours ends them and nothing else; one of the training's passes."""

from __future__ import annotations

import ast
from contextlib import contextmanager

import pytest
import torch

from tunecheck.core.paths import shipped_folder
from tunecheck.training.hooks import Hooks, OwnHooks

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
        hooks.first_modules(wrong)
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


def test_a_hook_is_no_part_of_what_is_compiled(monkeypatch):
    """torch.compile would make it one, and fail in it: what it traces is the training's alone."""
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

    assert torch.equal(out, model(torch.ones(1, 4)))
    assert not called
    assert not hooks.error


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
