"""A whole trainer in one screen, to copy and change: a plain loop with torch.optim.AdamW.

Put your copy beside suite/tunecheck/training/native.py and its line into TRAINERS in
suite/tunecheck/config/trainers.py (docs/trainers.md).
"""

from __future__ import annotations

import time
from functools import partial

import torch

from tunecheck.core.evidence import Step
from tunecheck.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: F401 - a trainer has them
from tunecheck.training.load import parts_of
from tunecheck.training.native import evaluate, make_scheduler, save_adapter, token_weighted_loss
from tunecheck.training.session import Session


def build(run, folder, device):
    """Return a session ready for its first step. The optimizer comes last, over the tensors that are trained."""
    parts, training = parts_of(run, folder, device), run.training  # model, tokenizer, rows and more
    optimizer = torch.optim.AdamW(
        [parameter for parameter in parts["model"].parameters() if parameter.requires_grad],
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
    )
    return Session(
        **parts, optimizer=optimizer, scheduler=make_scheduler(optimizer, training), scaler=None,
        loss=token_weighted_loss, evaluate=evaluate, save_adapter=save_adapter,
    )  # fmt: skip


def train(session, probes, steps, log):
    """Carry out these optimizer steps; the five calls of `probes` and `log` are all that the suite asks of a loop."""
    model, optimizer, max_norm = session.model, session.optimizer, session.run.training.max_grad_norm
    model.train()
    for step in steps:
        if step in session.run.evaluation.at:
            probes.evaluate(session, step)
        window = session.batches.window(step)
        probes.step_begin(session, step, window)
        begun, loss, supervised = time.perf_counter(), 0.0, sum(batch.supervised_tokens for batch in window)
        for batch in window:
            logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
            part = session.loss(logits, batch.labels, supervised)
            part.backward()
            loss += float(part.detach())
        seconds = time.perf_counter() - begun
        probes.backward_end(session, step)  # gradients complete, not yet clipped

        begun = time.perf_counter()
        clip = partial(torch.nn.utils.clip_grad_norm_, [p for group in optimizer.param_groups for p in group["params"]])
        norm, rate = float(clip(max_norm or float("inf"))), optimizer.param_groups[0]["lr"]
        optimizer.step()
        session.scheduler.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - begun
        tokens = sum(batch.tokens for batch in window)
        log(
            Step(
                step=step, loss=loss, learning_rate=rate, gradient_norm=norm, supervised_tokens=supervised,
                tokens=tokens, applied=True, seconds=seconds,
            )
        )  # fmt: skip
        probes.step_end(session, step, True)
