"""Mistakes in trainings as people write them with TRL: those that were not named at first."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer, get_linear_schedule_with_warmup

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.script import Script


@mistake("steps_applied")
def schedule_of_one_epoch(script: Script) -> None:
    """The schedule is made for the steps of one epoch, and two are trained: the second one at a rate of 0."""

    class Scheduled(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            held = torch.optim.AdamW([p for p in kwargs["model"].parameters() if p.requires_grad], lr=1e-3)
            schedule = get_linear_schedule_with_warmup(held, 1, script.steps // 2)  # type: ignore[no-untyped-call]
            super().__init__(*args, **{**kwargs, "optimizers": (held, schedule)})

    script.trainer = Scheduled
