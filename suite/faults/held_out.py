"""The held-out bugs themselves; what each is, and which checks should name it, says unseen.py."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from suite.faults.parts import after_step, before_step, decoder, layers, lora_parameters

if TYPE_CHECKING:
    from suite.data import Tokens
    from suite.trainer import Session

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
    from suite.trainer import native

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


def rotary_base_of_another_model(session: Session) -> None:
    """Rotary frequencies are those of half the base."""
    rotary = decoder(session).rotary_emb
    base = session.run.model.architecture.rope_theta / 2
    size = 2 * len(rotary.inv_freq)
    exponents = torch.arange(0, size, 2, device=rotary.inv_freq.device) / size
    rotary.inv_freq.copy_(base**-exponents)


def positions_end_early(session: Session) -> None:
    """Tokens beyond the 32nd all stand at position 31, as with a table that is too short."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, position_ids.clamp(max=31))


def sliding_window(session: Session) -> None:
    """Attention reaches 24 tokens back, as in another model of the family."""
    for layer in layers(session):
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            size = hidden.shape[1]
            back = torch.arange(size)[:, None] - torch.arange(size)
            seen = (back >= 0) & (back < 24)
            mask = torch.zeros(1, 1, size, size).masked_fill(~seen, torch.finfo(hidden.dtype).min)
            return inner(hidden, *args, **{**kwargs, "attention_mask": mask.to(hidden)})

        layer.forward = forward


def key_heads_in_another_order(session: Session) -> None:
    """Grouped keys and values are tiled, not repeated: query heads read another group's."""
    architecture = session.run.model.architecture
    groups = architecture.num_key_value_heads
    repeats = architecture.num_attention_heads // groups
    for layer in layers(session):
        projection = layer.self_attn.q_proj

        def tiled(_module: Any, _args: Any, out: Any) -> Any:
            return out.unflatten(-1, (repeats, groups, -1)).transpose(-3, -2).flatten(-3)

        projection.register_forward_hook(tiled)
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _m, args: (args[0].unflatten(-1, (groups, repeats, -1)).transpose(-3, -2).flatten(-3),)
        )


def adapters_on_other_modules(session: Session) -> None:
    """The adapters are on k_proj where the run says v_proj."""
    for layer in layers(session):
        attention = layer.self_attn
        wrapped = attention.v_proj
        attention.v_proj, wrapped.base_layer = wrapped.base_layer, attention.k_proj
        attention.k_proj = wrapped


def same_a_everywhere(session: Session) -> None:
    """The seed is set again for each adapter: all A of one shape hold the same numbers."""
    first: dict[torch.Size, torch.Tensor] = {}
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.copy_(first.setdefault(parameter.shape, parameter.detach().clone()))


def a_starts_too_large(session: Session) -> None:
    """A is drawn a hundred times too large: with B at 0 the function is the same, and then each step is too long."""
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.mul_(100)


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
    from suite.trainer import native

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


def noisy_embeddings(session: Session) -> None:
    """Embeddings get noise in train mode (NEFTune), though nobody asked for it."""

    def noisy(module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + 1e-3 * torch.rand_like(out) if module.training else out

    session.model.get_input_embeddings().register_forward_hook(noisy)


def recomputed_with_other_masks(session: Session) -> None:
    """Checkpointed layers are computed again without the random state of the first time."""
    session.model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})


def hooks_pile_up(session: Session) -> None:
    """Every step registers a hook that nobody removes: each forward takes longer than the one before it."""
    norm = decoder(session).norm
    after_step(session, lambda: norm.register_forward_hook(lambda _m, _a, out: None) and None)


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


def repetition_penalty_left_on(session: Session) -> None:
    """The model's generation settings hold a repetition penalty."""
    session.model.generation_config.repetition_penalty = 1.5


def moments_rounded_in_the_checkpoint(session: Session) -> None:
    """The optimizer's averages are stored in bf16."""
    from suite.trainer import checkpoint

    saving: Any = checkpoint
    save = saving.save_file

    def rounded(tensors: dict[str, torch.Tensor], path: Any) -> Any:
        return save({n: t.bfloat16().to(t.dtype) if "exp_avg" in n else t for n, t in tensors.items()}, path)

    saving.save_file = rounded
