"""Healthy trainings without transformers: nothing of these may be flagged."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.scripts.plain.models import (
    GPT,
    GPTConfig,
    Lion,
    Muon,
    Pictures,
    Recurrent,
    Towers,
    pictures,
    token_batches,
    with_lora,
)

Training = Callable[[int], None]
"""Takes this many steps."""
ALONE: dict[str, Training] = {}


def healthy(training: Training) -> Training:
    """Add a healthy training, by its docstring."""
    ALONE[(training.__doc__ or "").strip(".")] = training
    return training


def entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all tokens."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@healthy
def nano(steps: int) -> None:
    """nanoGPT: two groups, cosine by hand, clipping, accumulation, bf16 under autocast with a scaler."""
    model = GPT(GPTConfig(dropout=0.1))
    optimizer, scaler = torch.optim.AdamW(model.groups(), lr=1e-3, betas=(0.9, 0.95)), torch.amp.GradScaler("cpu")
    batches = token_batches(2 * steps)
    for step in range(steps):
        rate = 1e-3 * min(1.0, (step + 1) / 3) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                _, loss = model(*next(batches))
            scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


@healthy
def lstm(steps: int) -> None:
    """An LSTM, clipped by hand, with a schedule."""
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        entropy(model(ids), targets).backward()  # type: ignore[no-untyped-call]
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(torch.clamp(0.5 / norm, max=1.0))
        optimizer.step()
        schedule.step()


@healthy
def own_lora(steps: int) -> None:
    """LoRA written by hand."""
    model = with_lora(GPT())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for batch in token_batches(steps):
        model(*batch)[1].backward()
        optimizer.step()
        optimizer.zero_grad()


@healthy
def classes(steps: int) -> None:
    """Pictures with batch normalisation, SGD with momentum, an evaluation in each step with gradients enabled."""
    model = Pictures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    for x, wanted in pictures(steps):
        loss = functional.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        model(x).argmax(dim=-1)
        model.train()


@healthy
def probed(steps: int) -> None:
    """A head on a backbone that is left in eval mode, and of which the optimizer holds nothing."""
    model = Pictures()
    model.backbone.eval()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    for x, wanted in pictures(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@healthy
def lion(steps: int) -> None:
    """An optimizer of the script's own."""
    model = GPT()
    optimizer = Lion(model.parameters())
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@healthy
def muon(steps: int) -> None:
    """Two optimizers: Muon for matrices, AdamW for the rest."""
    model = GPT()
    inner = [p for p in model.h.parameters() if p.dim() > 1]
    held = {id(p) for p in inner}
    optimizers = [Muon(inner), torch.optim.AdamW([p for p in model.parameters() if id(p) not in held], lr=1e-3)]
    for batch in token_batches(steps):
        model(*batch)[1].backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()


@healthy
def averaged(steps: int) -> None:
    """An average of the weights beside them, and torch's SWA."""
    model = Recurrent()
    shadow = copy.deepcopy(model).requires_grad_(False)
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        entropy(model(ids), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            for kept, p in zip(shadow.parameters(), model.parameters(), strict=True):
                kept.lerp_(p, 0.1)
        swa.update_parameters(model)


class Student(nn.Module):
    """A model with a target network inside, an average of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return how far the two are apart."""
        with torch.no_grad():
            wanted = self.target(x)
        return functional.mse_loss(self.online(x + 0.1), wanted + 1)


@healthy
def bootstrapped(steps: int) -> None:
    """A target network that is written by hand, as BYOL's."""
    model = Student()
    optimizer = torch.optim.AdamW(model.online.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, p in zip(model.target.parameters(), model.online.parameters(), strict=True):
                kept.lerp_(p, 0.05)


@healthy
def contrastive(steps: int) -> None:
    """Two towers and a temperature, with rates by group and one cycle of a schedule."""
    model = Towers()
    groups = [
        {"params": [*model.left.parameters(), *model.right.parameters()], "lr": 1e-3},
        {"params": [model.temperature], "lr": 1e-2, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-3, 1e-2], total_steps=steps + 1)
    for _ in range(steps):
        scores = model(torch.randn(8, 16), torch.randn(8, 16))
        wanted = torch.arange(8)
        loss = (functional.cross_entropy(scores, wanted) + functional.cross_entropy(scores.T, wanted)) / 2
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


@healthy
def compiled(steps: int) -> None:
    """A model in torch.compile."""
    model: Any = torch.compile(GPT(), backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@healthy
def adversarial(steps: int) -> None:
    """A generator and a critic whose weights are clipped, in turns."""
    generator, critic = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, out)) for out in (8, 1))
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    for _ in range(steps):
        for_critic.zero_grad()
        (critic(generator(torch.randn(8, 8)).detach()).mean() - critic(torch.randn(8, 8)).mean()).backward()
        for_critic.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.05, 0.05)
        for_generator.zero_grad()
        (-critic(generator(torch.randn(8, 8))).mean()).backward()
        for_generator.step()


@healthy
def guarded(steps: int) -> None:
    """A bad batch now and then, which is left out."""
    model = Recurrent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, (ids, targets) in enumerate(token_batches(steps + 2)):
        loss = entropy(model(ids), targets) * (math.nan if number in (2, 5) else 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad()


@healthy
def overflowing(steps: int) -> None:
    """A scaler that begins too high."""
    model = Recurrent()
    optimizer, scaler = (
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-60),
    )
    for ids, targets in token_batches(steps + 2):
        scaler.scale(1e3 * entropy(model(ids), targets)).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@healthy
def thawed(steps: int) -> None:
    """A backbone that learns from the third step on."""
    model = Pictures()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, wanted) in enumerate(pictures(steps)):
        if step == 3:
            model.backbone.requires_grad_(True)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@healthy
def searched(steps: int) -> None:
    """L-BFGS, with a closure that it calls as often as it likes."""
    model = nn.Linear(16, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    x, wanted = torch.randn(32, 16), torch.randn(32, 1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss: Any = functional.mse_loss(model(x), wanted)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)  # type: ignore[no-untyped-call]


@healthy
def sparse(steps: int) -> None:
    """Bags of words, of which most weights see nothing, and units that are dead."""
    model = nn.Sequential(nn.Linear(200, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.init.constant_(model[0].bias, -0.2)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(steps):
        x = (torch.rand(8, 200) < 0.01).float()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), torch.randint(0, 2, (8,))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


class Fitted(nn.Module):
    """A module whose own forward is never called, as Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 4), nn.Linear(4, 16)


@healthy
def in_parts(steps: int) -> None:
    """Two parts that are called one after the other, held by a module that is not."""
    fitted = Fitted()
    optimizer = torch.optim.AdamW(fitted.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.randn(8, 16)
        optimizer.zero_grad()
        functional.mse_loss(fitted.decoder(fitted.encoder(x).relu()), x).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def preferred(policy: GPT, reference: GPT, steps: int) -> None:
    """Train by DPO (arXiv 2305.18290) on random rows, of which the first half is preferred."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)

    def likelihood(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
        scores = model(ids)[0].log_softmax(dim=-1)
        total: Tensor = scores.gather(-1, targets[..., None])[..., 0].sum(dim=-1)
        return total

    for ids, targets in token_batches(steps):
        with torch.no_grad():
            before = likelihood(reference, ids, targets)
        chosen, rejected = (likelihood(policy, ids, targets) - before).chunk(2)
        optimizer.zero_grad()
        loss: Any = -functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        loss.backward()
        optimizer.step()


@healthy
def against_a_copy(steps: int) -> None:
    """DPO by hand."""
    model = GPT()
    preferred(model, copy.deepcopy(model), steps)


@healthy
def best_kept(steps: int) -> None:
    """Early stopping: the best weights are kept, and brought back."""
    model, best, kept = GPT(), math.inf, {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(token_batches(steps)):
        optimizer.zero_grad()
        loss = model(*batch)[1]
        loss.backward()
        optimizer.step()
        if step >= steps // 2 and (now := float(loss)) < best:
            best, kept = now, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
