"""Gradients of several optimizers: each clears its own before it steps again. fp32, CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

STEPS = 6


def judged(tmp_path, train, check="calls_in_order"):
    """Train two networks against each other under watch; return what this check finds."""
    torch.manual_seed(0)
    made, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-3) for network in (made, critic)]
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        train(made, critic, *optimizers)
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    return CHECKS[check]()(read(path))


@pytest.mark.parametrize(
    ("held", "suspected"),
    [("the critic's", False), ("the first's", True), ("the first's twice", False), ("all", False)],
)
def test_an_optimizer_holds_its_own_model(held, suspected, tmp_path):
    """Not the tensors of the first one alone: several losses of one model may have an optimizer each."""
    torch.manual_seed(0)
    made, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of = {"the critic's": [critic], "the first's": [made], "the first's twice": [made], "all": [made, critic]}[held]
    first = torch.optim.Adam(made.parameters(), lr=1e-3)
    second = torch.optim.Adam([p for network in of for p in network.parameters()], lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        first.zero_grad()
        made(torch.randn(8, 4)).square().mean().backward()
        first.step()
        second.zero_grad()
        learns = made if held == "the first's twice" else critic
        (learns(torch.randn(8, 4)) - 1).square().mean().backward()
        second.step()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["steps_applied"]()(read(path))
    assert (finding.status is Status.SUSPECTED) is suspected, finding.detail
    assert ("and 2 with gradients have none" in finding.detail) is suspected


def fakes(made):
    """A batch of the generator's."""
    return made(torch.randn(8, 4))


def cleared_before(made, critic, first, second, by=lambda optimizer: optimizer.zero_grad()):
    """As in most GANs: the critic's gradients of the generator's loss are cleared before its own."""
    by(first)
    critic(fakes(made)).mean().backward()
    first.step()
    by(second)
    (critic(torch.randn(8, 4)) - critic(fakes(made).detach())).mean().backward()
    second.step()


def cleared_by_hand(made, critic, first, second):
    """In place."""

    def clear(optimizer):
        for parameter in optimizer.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.zero_()

    cleared_before(made, critic, first, second, clear)


def never_cleared(made, critic, first, second):
    """Those of the critic."""
    cleared_before(made, critic, first, second, lambda optimizer: optimizer is second or optimizer.zero_grad())


def critic_in_micro_batches(made, critic, first, second):
    """Two backward passes for one step."""
    first.zero_grad()
    critic(fakes(made)).mean().backward()
    first.step()
    second.zero_grad()
    for _ in range(2):
        (critic(torch.randn(8, 4)) - critic(fakes(made).detach())).mean().backward()
    second.step()


@pytest.mark.parametrize(
    ("train", "passed"),
    [(cleared_before, True), (cleared_by_hand, True), (critic_in_micro_batches, True), (never_cleared, False)],
)
def test_gradients_of_another_optimizer(train, passed, tmp_path):
    """They may hold those of another loss until they are cleared."""
    finding = judged(tmp_path, train)
    assert finding.passed is passed, finding.detail
    assert ("another optimizer uses gradients again" in finding.detail) is not passed


def critic_never_steps(made, critic, first, second):
    """Its gradients are computed, and cleared."""
    second.step, step = lambda: None, second.step
    cleared_before(made, critic, first, second)
    second.step = step


def critic_without_loss(made, critic, first, second):
    """It steps, though no loss depends on it."""
    first.zero_grad()
    fakes(made).square().mean().backward()
    first.step()
    second.step()


def critic_not_yet(made, critic, first, second):
    """It is to be trained later."""
    first.zero_grad()
    fakes(made).square().mean().backward()
    first.step()


def critic_with_loss_of_0(made, critic, first, second):
    """As long as the weight of its loss is 0."""
    critic_not_yet(made, critic, first, second)
    (0 * critic(torch.randn(8, 4)).mean()).backward()
    second.step()


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (cleared_before, ""),
        (cleared_by_hand, ""),
        (critic_not_yet, ""),
        (critic_with_loss_of_0, ""),
        (critic_never_steps, "a further Adam of 2 tensors never steps, though they have gradients in 6 of 6 steps"),
        (critic_without_loss, "a further Adam of 2 tensors steps 5 times, each time without a gradient"),
    ],
)
def test_an_optimizer_beside_the_models(train, told, tmp_path):
    """It steps where its tensors have gradients, and only there."""
    finding = judged(tmp_path, train, "steps_applied")
    assert finding.status is (Status.SUSPECTED if told else Status.PASSED), finding.detail
    assert finding.detail.startswith(told)


class Exact(torch.optim.SGD):
    """Steps by what a gradient differs from that of the batch before at the same weights, as MARS can do it exactly."""

    keeps = True

    def keep(self):
        """Hold on to the gradients that are about to be cleared."""
        for parameter in self.param_groups[0]["params"] if self.keeps else ():
            self.state[parameter]["previous_grad"] = parameter.grad.clone()


@pytest.mark.parametrize(("keeps", "status"), [(True, Status.PASSED), (False, Status.FAILED)])
def test_gradients_that_an_optimizer_keeps_are_not_lost(keeps, status, tmp_path):
    """They are cleared before it steps, and its state holds them."""
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = Exact(network.parameters(), lr=1e-3)
    optimizer.keeps = keeps

    def train(*_):
        for last in (False, True):
            network(torch.randn(8, 4)).square().mean().backward()
            if last:
                optimizer.step()
            else:
                optimizer.keep()
            optimizer.zero_grad()

    finding = judged(tmp_path, train)
    assert finding.status is status, finding.detail
    assert ("keep" in finding.detail) is keeps


class LowRank(torch.optim.Optimizer):
    """Keeps Adam's averages of the gradient's first columns alone, as GaLore does of a projection."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        """Move along the averages' signs."""
        for parameter in self.param_groups[0]["params"]:
            state, gradient = self.state[parameter], parameter.grad[..., :2]
            first, second = (state.setdefault(key, torch.zeros_like(gradient)) for key in ("exp_avg", "exp_avg_sq"))
            state["step"] = state.get("step", 0) + 1
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 1e-3)
            parameter[..., :2] -= 1e-3 * first.sign()


def test_averages_of_another_shape_are_no_adams(tmp_path):
    """What does not rest on them is judged all the same."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer, hooks = LowRank(model.parameters()), LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")

    assert CHECKS["steps_applied"]()(read(path)).status is Status.PASSED


@pytest.mark.parametrize("detached", [True, False])
def test_what_an_optimizer_holds_beside_the_model_learns(detached, tmp_path):
    """A head outside of a causal model, whose loss is added."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model, head = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)), nn.Linear(16, 2)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        ids = torch.randint(32, (4, 8))
        out = model(input_ids=ids, labels=ids, output_hidden_states=True)
        scored = head(out.hidden_states[-1].mean(1))
        (out.loss + nn.functional.cross_entropy(scored.detach() if detached else scored, ids[:, 0] % 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["steps_applied"]()(read(path))

    assert finding.status is (Status.SUSPECTED if detached else Status.PASSED)
    assert ("part of the AdamW of 2 tensors steps 6 times, each time without a gradient" in finding.detail) is detached


class Distances(nn.Module):
    """A loss with a layer of its own, which maps states to another width."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 20)

    def forward(self, states):
        """Return the loss."""
        return self.layer(states).square().mean()


@pytest.mark.parametrize(
    ("how", "told"),
    [("left out", True), ("optimized", False), ("frozen", False)],
)
def test_layers_of_a_loss_learn(how, told, tmp_path):
    """What gets gradients is optimized, or frozen."""
    torch.manual_seed(0)
    model, loss = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16)), Distances()
    loss.requires_grad_(how != "frozen")
    groups = [*model.parameters(), *(loss.parameters() if how == "optimized" else ())]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        loss(model(torch.randn(8, 8))).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["trainable_moved"]()(read(path))

    assert (finding.status is Status.SUSPECTED) is told, finding.detail
    assert ("no optimizer holds 1 part with gradients: Distances (2 tensors)" in finding.detail) is told


def test_a_copy_of_the_model_is_no_part_of_it(tmp_path):
    """A reference whose gradients are computed for nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16))
    reference, optimizer = copy.deepcopy(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        x = torch.randn(8, 8)
        (model(x) - reference(x + 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    assert CHECKS["trainable_moved"]()(read(path)).status is Status.PASSED


@pytest.mark.parametrize("prepared", [True, False])
def test_an_optimizer_that_accelerate_does_not_hold_back(prepared, tmp_path):
    """It steps after each micro-batch, though accelerate is told to accumulate two."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    torch.manual_seed(0)
    AcceleratorState._reset_state(True)  # of the whole process, which may have had a Trainer before
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model = accelerator.prepare(model)
    optimizer = accelerator.prepare(optimizer) if prepared else optimizer
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(2 * STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(8, 4)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    hooks.detach()
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["calls_in_order"]()(read(path))

    assert finding.passed is prepared, finding.detail
    assert ("the optimizer steps while accelerate accumulates" in finding.detail) is not prepared


def test_a_schedule_may_step_before_the_next_optimizer_does(tmp_path):
    """Each optimizer's rates are those at its own step, as where a CRF learns faster than its encoder."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizers = [torch.optim.AdamW(part.parameters(), lr=rate) for part, rate in ((model[0], 1e-3), (model[2], 1e-1))]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: (step + 1) / 9) for each in optimizers]
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))
    hooks.attach()
    for _ in range(STEPS):
        nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    hooks.detach()

    (path,) = tmp_path.glob("watch-*.jsonl")
    found = CHECKS["updates_match_adamw"]()(read(path))
    assert found.status is Status.PASSED, found.detail
