"""Mistakes in trainings without transformers, as far as they can be known of a model that nobody else knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.plain.healthy import Training, entropy, preferred
from benchmarks.scripts.plain.models import GPT, WIDTH, GPTConfig, Recurrent, token_batches, with_lora
from benchmarks.scripts.script import Script


def mistake_alone(*checks: str, **expect: Any) -> Callable[[Training], Training]:
    """Add a mistake that one of these checks must name, under these expectations."""

    def add(training: Training) -> Training:
        def change(script: Script) -> None:
            script.alone, script.expect = training, expect

        change.__name__, change.__doc__ = f"alone_{training.__name__}", training.__doc__
        mistake(*checks)(change)
        return training

    return add


def adamw(model: nn.Module, **settings: Any) -> torch.optim.AdamW:
    """Return the usual optimizer of all that learns."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **{"lr": 1e-3, **settings})


@mistake_alone("optimizer_coverage")
def head_left_out(steps: int) -> None:
    """The optimizer is not given the head."""
    model = Recurrent()
    optimizer = torch.optim.AdamW([*model.embedding.parameters(), *model.rnn.parameters()], lr=1e-3)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        entropy(model(ids), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@mistake_alone("calls_in_order")
def never_cleared(steps: int) -> None:
    """Gradients are never cleared."""
    model = GPT()
    optimizer = adamw(model)
    for batch in token_batches(steps):
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("calls_in_order")
def cleared_early(steps: int) -> None:
    """Gradients are cleared between backward and step."""
    model = GPT()
    optimizer = adamw(model, weight_decay=0.1)
    for batch in token_batches(steps):
        model(*batch)[1].backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@mistake_alone("calls_in_order")
def clipped_late(steps: int) -> None:
    """Clipping stands behind the step."""
    model = GPT()
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)


@mistake_alone("calls_in_order")
def clipped_scaled(steps: int) -> None:
    """Gradients are clipped before they are unscaled."""
    model = GPT()
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu")
    for batch in token_batches(steps):
        optimizer.zero_grad()
        scaler.scale(model(*batch)[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@mistake_alone("calls_in_order", "updates_match_adamw")
def never_unscaled(steps: int) -> None:
    """The loss is scaled, and the optimizer steps with scaled gradients."""
    model = GPT()
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu")
    for batch in token_batches(steps):
        optimizer.zero_grad()
        scaler.scale(model(*batch)[1]).backward()
        optimizer.step()


@mistake_alone("calls_in_order")
def schedule_first(steps: int) -> None:
    """The schedule is stepped before the optimizer."""
    model = GPT()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        schedule.step()
        optimizer.step()


@mistake_alone("learning_rate_trace", schedule="cosine", learning_rate=1e-3, schedule_steps=6)
def schedule_forgotten(steps: int) -> None:
    """The schedule is made and never stepped."""
    model = GPT()
    optimizer = adamw(model)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("state_in_training")
def left_in_eval(steps: int) -> None:
    """An evaluation after the second step leaves the model in eval mode."""
    model = GPT(GPTConfig(dropout=0.1))
    optimizer = adamw(model)
    for step, batch in enumerate(token_batches(steps)):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()
        if step == 1:
            model.eval()


@mistake_alone("calls_in_order")
def stepped_each_time(steps: int) -> None:
    """The optimizer steps after each micro-batch, and gradients are cleared after four."""
    model = GPT()
    optimizer = adamw(model)
    for number, batch in enumerate(token_batches(steps + 4)):
        (model(*batch)[1] / 4).backward()
        optimizer.step()
        if number % 4 == 3:
            optimizer.zero_grad()


@mistake_alone("calls_in_order")
def stepped_twice(steps: int) -> None:
    """The optimizer steps twice with the same gradients."""
    model = GPT()
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()
        optimizer.step()


@mistake_alone("finite")
def not_a_number(steps: int) -> None:
    """The loss becomes NaN, and the training goes on."""
    model = GPT()
    optimizer = adamw(model)
    for step, batch in enumerate(token_batches(steps)):
        optimizer.zero_grad()
        (model(*batch)[1] * (math.nan if step == 3 else 1.0)).backward()
        optimizer.step()


@mistake_alone("trainable_moved")
def rate_of_a_group_zero(steps: int) -> None:
    """One group's rate is 0."""
    model = GPT()
    groups = model.groups()
    optimizer = torch.optim.AdamW([groups[0], {**groups[1], "lr": 0.0}], lr=1e-3)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


class Rounded(torch.optim.AdamW):
    """AdamW whose weights were kept in 16 bit for a moment."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step, and round."""
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(p.bfloat16().float())


@mistake_alone("trainable_moved")
def rounded(steps: int) -> None:
    """The optimizer keeps its weights in 16 bit."""
    model = GPT()
    optimizer = Rounded(model.parameters(), lr=1e-3)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("live_tensors_flat")
def graphs_kept(steps: int) -> None:
    """Every loss is kept with its graph, for a mean at the end."""
    model, losses = GPT(), []
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        loss = model(*batch)[1]
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)


@mistake_alone("as_expected", trained=r"^h\.0\.c_attn\.a$")
def adapters_detached(steps: int) -> None:
    """LoRA by hand: A and B were made anew as plain tensors in one layer, and do not learn."""
    model = with_lora(GPT())
    model.h[0].c_attn.a.requires_grad_(False)  # type: ignore[union-attr]
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("as_expected", trained="^rnn")
def part_detached(steps: int) -> None:
    """The recurrent part runs without gradients."""
    model = Recurrent()
    optimizer = adamw(model)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        with torch.no_grad():
            hidden = model.rnn(model.embedding(ids))[0]
        entropy(model.head(hidden), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@mistake_alone("as_expected", accumulation=2)
def window_of_three(steps: int) -> None:
    """Three micro-batches are added up where two were meant."""
    model = GPT()
    optimizer = adamw(model)
    for number, batch in enumerate(token_batches(3 * steps)):
        (model(*batch)[1] / 2).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


@mistake_alone("as_expected", frozen=r"^wte\.")
def not_frozen(steps: int) -> None:
    """The embedding was to be frozen."""
    model = GPT()
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


class Ahead(nn.Module):
    """One layer of attention whose window reaches as far ahead as back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = GPT()
        nn.init.normal_(self.inner.wpe.weight, std=0.02)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        at = torch.arange(ids.shape[1])
        x = self.inner.wte(ids) + self.inner.wpe(at)
        mixed = self.attention(x, x, x, attn_mask=(at[:, None] - at).abs() >= 8)[0]
        scores: torch.Tensor = self.inner.lm_head(self.inner.ln_f(x + mixed))
        return scores


@mistake_alone("no_target_leakage")
def window_reaches_ahead(steps: int) -> None:
    """The mask of a sliding window has no triangle."""
    model = Ahead()
    optimizer = torch.optim.AdamW([p for name, p in model.named_parameters() if ".h." not in name], lr=1e-3)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        entropy(model(ids), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@mistake_alone("loss_receives_logits")
def divergence_of_probabilities(steps: int) -> None:
    """kl_div is given what a student thinks likely, not the logarithms."""
    model, teacher = GPT(), GPT()
    optimizer = adamw(model)
    for ids, _ in token_batches(steps):
        with torch.no_grad():
            wanted = teacher(ids)[0].softmax(dim=-1)
        optimizer.zero_grad()
        loss = functional.kl_div(model(ids)[0].softmax(dim=-1), wanted, reduction="batchmean")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@mistake_alone("loss_moves")
def against_itself(steps: int) -> None:
    """DPO's reference is the policy itself, not a copy."""
    model = GPT()
    preferred(model, model, steps)


@mistake_alone("batches_change")
def first_batch_again(steps: int) -> None:
    """The loader's iterator is made again in each step."""
    model = GPT()
    optimizer = adamw(model)
    batches = list(token_batches(steps))
    for _ in range(steps):
        optimizer.zero_grad()
        model(*next(iter(batches)))[1].backward()
        optimizer.step()
