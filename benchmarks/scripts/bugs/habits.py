"""What a loop may mean, and seldom does: each of these is told as a question."""

from __future__ import annotations

import torch

from benchmarks.scripts.bugs.alone import adamw, mistake_alone
from benchmarks.scripts.plain.models import GPT, GPTConfig, token_batches


@mistake_alone("randomness_varies")
def seeded_in_each_step(steps: int) -> None:
    """A loop sets the seed again in each step, so that dropout takes the same each time."""
    model = GPT(GPTConfig(dropout=0.1))
    optimizer = adamw(model)
    for batch in token_batches(steps):
        torch.manual_seed(0)
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("state_in_training")
def never_in_train_mode(steps: int) -> None:
    """A model that drops is in eval mode from its first step on."""
    model = GPT(GPTConfig(dropout=0.1)).eval()
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("no_target_leakage")
def targets_shifted_twice(steps: int) -> None:
    """The data set shifts the targets, and the loop does so again."""
    model = GPT()
    optimizer = adamw(model)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        model(ids[:, :-1], targets[:, 1:])[1].backward()
        optimizer.step()


@mistake_alone("schedule_ends")
def schedule_of_micro_batches(steps: int) -> None:
    """A schedule is made for micro-batches, and stepped with the optimizer."""
    model = GPT()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * steps)
    batches = token_batches(4 * steps)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(4):
            (model(*next(batches))[1] / 4).backward()
        optimizer.step()
        schedule.step()


@mistake_alone("clipping_leaves_gradients")
def clipped_to_nothing(steps: int) -> None:
    """The limit of clipping is taken for a factor."""
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        optimizer.step()
