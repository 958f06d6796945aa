"""What one look at one moment cannot see: switches left wrong in the middle of a run, faults of every second step."""

from __future__ import annotations

import pytest
import tiny
from in_process import train_here
from peft.tuners.tuners_utils import BaseTunerLayer

from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import TrainingState

TRAINERS = ("native", "transformers")


def trained(folder, trainer, *settings, bug=None):
    """A tiny run in this process with an evaluation in its middle, and its trace."""
    settings = [*tiny.SETTINGS, "evaluation.at=[2]", "evaluation.batch_size=2", f"trainer={trainer}", *settings]
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)
    return run, train_here(run, folder, *filter(None, [bug]))


def failed(run, trace):
    """The names of the checks that fail, and their details."""
    findings = [check(trace) for check in run.resolved_checks().values()]
    return {finding.check: finding.detail for finding in findings if not finding.passed and not finding.expected}


def before_steps(session, change, chosen):
    """Have `change` done when the batches of these steps are asked for: at their beginning, before every probe."""
    window = session.batches.window

    def changed(step):
        if step in chosen:
            change()
        return window(step)

    session.batches.window = changed


def eval_mode_stays(session):
    """An evaluation in the middle that never calls model.train(): without dropout nothing else shows it."""
    evaluate = session.evaluate

    def forgetful(*arguments):
        result = evaluate(*arguments)
        session.model.eval()
        return result

    session.evaluate = forgetful


def one_module_stays_in_eval_mode(session):
    """The root's flag is right, one norm's is not."""
    before_steps(session, lambda: session.model.get_decoder().norm.eval(), {3})


def one_adapter_disabled(session):
    """A comparison with the base that leaves one layer's adapter off, in one step alone."""
    layer = next(module for module in session.model.modules() if isinstance(module, BaseTunerLayer))
    before_steps(session, lambda: layer.enable_adapters(False), {3})
    before_steps(session, lambda: layer.enable_adapters(True), {4})


def one_factor_frozen(session):
    """requires_grad is lost between two looks of the census and comes back."""
    factor = next(p for name, p in session.model.named_parameters() if ".lora_A." in name)
    before_steps(session, lambda: factor.requires_grad_(False), {3})
    before_steps(session, lambda: factor.requires_grad_(True), {4})


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_healthy_run_with_an_evaluation_in_its_middle_is_seen_at_every_forward_pass(tmp_path, trainer):
    """transformers' Trainer is in eval mode when such a step begins, and in train mode when it computes."""
    run, trace = trained(tmp_path, trainer)

    assert failed(run, trace) == {}
    accumulation = run.training.gradient_accumulation_steps
    assert trace.all(TrainingState) == [
        TrainingState(step=step, forwards=accumulation) for step in range(run.training.max_steps)
    ]


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (eval_mode_stays, "first in step 2: the model in eval mode"),
        (one_module_stays_in_eval_mode, "first in step 3: base_model.model.model.norm in eval mode"),
        (
            one_adapter_disabled,
            "wrong in 1 of 5 steps, first in step 3: base_model.model.model.layers.0.self_attn.q_proj with adapters",
        ),
        (one_factor_frozen, "wrong in 1 of 5 steps, first in step 3: base_model.model.model.layers.0.self_attn.q_proj"),
    ],
)
def test_a_switch_left_wrong_in_the_middle_of_a_run_is_named(tmp_path, bug, words):
    """By the check that looks at every step, with the first step that it is wrong in."""
    run, trace = trained(tmp_path, "native", bug=bug)

    assert words in failed(run, trace)["state_in_training"]


@pytest.mark.parametrize("parity", [0, 1])
def test_gradients_halved_in_every_second_step_are_named(tmp_path, parity):
    """The oracle computes two steps in a row again, an even and an odd one."""

    def halved(session):
        unscale = session.scaler.unscale_
        calls = iter(range(100))

        def changed(optimizer):
            unscale(optimizer)
            if next(calls) % 2 == parity:
                for parameter in session.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.5)

        session.scaler.unscale_ = changed

    run, trace = trained(tmp_path, "native", bug=halved)

    assert "accumulation_oracle" in failed(run, trace)
