"""The held-out bugs themselves; what each is, and which checks should name it, says unseen.py."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks.detection.bugs.parts import before_step, lora_parameters

if TYPE_CHECKING:
    from suite.training.data import Tokens
    from suite.training.session import Session

IGNORED = -100


def _windows(session: Session) -> int:
    return session.run.training.gradient_accumulation_steps


def last_window_averaged_twice(session: Session) -> None:
    """In the last optimizer step the loss is divided by the accumulation steps once more."""
    inner, calls = session.loss, [0]
    first = (session.run.training.max_steps - 1) * _windows(session)

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        if not (logits.requires_grad and supervised_tokens > 1):
            return value
        calls[0] += 1
        return value / _windows(session) if calls[0] > first else value

    session.loss = loss


def last_micro_batch_reported(session: Session) -> None:
    """The loss that is logged is the last micro-batch's share, scaled up; gradients are right."""
    from suite.training import native

    inner, finish, last = session.loss, native.PendingSteps.finish, [0.0]

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        last[0] = float(value.detach()) * _windows(session)
        return value

    def report(self: Any, **numbers: Any) -> None:
        finish(self, **{**numbers, "loss": numbers["loss"] * 0 + last[0]})

    session.loss = loss
    native.PendingSteps.finish = report  # type: ignore[method-assign]


def gradients_summed_in_bf16(session: Session) -> None:
    """Between micro-batches the gradients are kept in bf16."""
    for _, parameter in lora_parameters(session):
        held: Any = parameter
        held.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.detach().bfloat16().to(p.dtype)))


def rows_weigh_the_same(session: Session) -> None:
    """Each row's loss is its own mean, and rows are averaged: short answers count for more."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:]
        each = F.cross_entropy(flat, wanted.flatten(), ignore_index=IGNORED, reduction="none").view(wanted.shape)
        means = each.sum(1) / (wanted != IGNORED).sum(1).clamp(min=1)
        return means.mean() / (_windows(session) if supervised_tokens > 1 else 1 / labels.shape[0])

    session.loss = loss


def another_tokenizer(session: Session) -> None:
    """The tokenizer's ids belong to another model of the same vocabulary size: every id but the special ones is off."""
    ids = session.run.model.architecture.vocab_size
    special = set(session.tokenizer.all_special_ids)

    def moved(row: Tokens) -> Tokens:
        tokens = tuple(t if t in special else (t + 7) % ids for t in row.input_ids)
        labels = tuple(label if label == IGNORED else t for label, t in zip(row.labels, tokens, strict=True))
        return dataclasses.replace(row, input_ids=tokens, labels=labels)

    session.batches.train = [moved(row) for row in session.batches.train]
    session.batches.heldout = [moved(row) for row in session.batches.heldout]
    session.batches.canary = moved(session.batches.canary) if session.batches.canary else None
    session.tokenizer = _Moved(session.tokenizer, ids, special)


class _Moved:
    """A tokenizer whose ids are off by seven."""

    def __init__(self, inner: Any, ids: int, special: set[int]) -> None:
        self._inner, self._ids, self._special = inner, ids, special

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _move(self, output: Any) -> Any:
        given = output["input_ids"]
        moved = [token if token in self._special else (token + 7) % self._ids for token in given]
        return {**output, "input_ids": moved}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._move(self._inner(*args, **kwargs))

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        return self._move(self._inner.apply_chat_template(*args, **kwargs))


def last_step_left_out(session: Session) -> None:
    """The loop ends one optimizer step early, and logs it all the same."""
    step, calls, last = session.optimizer.step, [0], session.run.training.max_steps

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return step(*args, **kwargs) if calls[0] < last else None

    session.optimizer.step = counted


def unusual_steps_left_out(session: Session) -> None:
    """A guard against spikes leaves out each step whose gradient is larger than all before it."""
    step, largest = session.optimizer.step, [float("inf")]

    def guarded(*args: Any, **kwargs: Any) -> Any:
        norm = sum(float(p.grad.norm()) for _, p in lora_parameters(session) if p.grad is not None)
        spike, largest[0] = norm > largest[0], norm if largest[0] == float("inf") else max(largest[0], norm)
        return None if spike else step(*args, **kwargs)

    session.optimizer.step = guarded


def clipped_by_value(session: Session) -> None:
    """Every element is cut to the limit that is meant for the norm."""
    from suite.training import native

    loop: Any = native
    clip = loop.clip_gradients

    def by_value(parameters: Any, limit: float | None) -> Any:
        norm = clip(parameters, None)
        for parameter in parameters:
            if parameter.grad is not None and limit is not None:
                parameter.grad.clamp_(-limit, limit)
        return norm

    loop.clip_gradients = by_value


def schedule_too_long(session: Session) -> None:
    """The schedule's length is counted in micro-batches: the rate never comes down."""
    from transformers import get_scheduler

    training = session.run.training
    steps = training.max_steps * _windows(session)
    session.scheduler = get_scheduler("cosine", session.optimizer, num_warmup_steps=1, num_training_steps=steps)


def long_rows_left_out(session: Session) -> None:
    """The tenth of the rows that is longest is filtered out, and nobody is told."""
    rows = session.batches.train
    longest = sorted(len(row.input_ids) for row in rows)[len(rows) * 9 // 10]
    session.batches.train = [row for row in rows if len(row.input_ids) < longest]


def rows_drawn_with_replacement(session: Session) -> None:
    """Rows are drawn, not dealt: some come twice in an epoch, others never."""
    draw = random.Random(session.run.training.seed)
    rows = session.batches.train
    session.batches.train = [draw.choice(rows) for _ in rows]


def heldout_questions_trained(session: Session) -> None:
    """Held-out rows ask what training rows ask, and differ in their last word only."""

    def altered(row: Tokens) -> Tokens:
        other = row.input_ids[-2] + 1
        ids = (*row.input_ids[:-2], other, row.input_ids[-1])
        return dataclasses.replace(row, input_ids=ids, labels=(*row.labels[:-2], other, row.labels[-1]))

    session.batches.heldout = [altered(row) for row in session.batches.train[:8]]


def evaluated_in_bf16(session: Session) -> None:
    """In eval mode the logits are rounded to bf16 before the loss is taken."""
    session.model.register_forward_hook(_round_logits)


def _round_logits(module: Any, _args: Any, out: Any) -> Any:
    if not module.training and not torch.is_grad_enabled() and out.logits.dtype == torch.float32:
        out.logits = out.logits.bfloat16()
    return out


def average_saved(session: Session) -> None:
    """What is saved is a running average of the weights."""
    average: dict[str, torch.Tensor] = {}
    save = session.save_adapter

    def update() -> None:
        for name, parameter in lora_parameters(session):
            held = average.setdefault(name, parameter.detach().clone())
            held.lerp_(parameter.detach(), 0.5)

    def averaged(saved: Session, folder: Any) -> None:
        kept = {name: p.detach().clone() for name, p in lora_parameters(session)}
        with torch.no_grad():
            for name, parameter in lora_parameters(session):
                parameter.copy_(average.get(name, parameter))
            save(saved, folder)
            for name, parameter in lora_parameters(session):
                parameter.copy_(kept[name])

    before_step(session, update)
    session.save_adapter = averaged


def moments_rounded_in_the_checkpoint(session: Session) -> None:
    """The optimizer's averages are stored in bf16."""
    from suite.training import checkpoint

    saving: Any = checkpoint
    save = saving.save_file

    def rounded(tensors: dict[str, torch.Tensor], path: Any) -> Any:
        return save({n: t.bfloat16().to(t.dtype) if "exp_avg" in n else t for n, t in tensors.items()}, path)

    saving.save_file = rounded
