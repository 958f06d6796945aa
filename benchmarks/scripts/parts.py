"""Parts that healthy scripts and mistakes share: other models, other tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModel, TrainerCallback

from benchmarks.scripts.architectures import small
from benchmarks.scripts.script import IGNORED, MODEL, Script, padded

Change = Callable[[Script], None]


def fields(**values: Any) -> Change:
    """Return a change of the script's own fields."""

    def change(script: Script) -> None:
        for name, value in values.items():
            setattr(script, name, value)

    return change


def callback(moment: str, call: Callable[..., Any]) -> Callable[[Any], None]:
    """Return a change that adds a callback with this one method."""

    def method(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        call(**kwargs)

    return lambda trainer: trainer.add_callback(type("Callback", (TrainerCallback,), {moment: method})())


def one_micro_batch(script: Script) -> None:
    """Have one micro-batch a window: several are divided by no head of transformers 5.23 (its issue 47688)."""
    script.arguments["gradient_accumulation_steps"] = 1


def masked_tokens(script: Script) -> None:
    """Some tokens are hidden, and those alone are to be guessed."""
    one_micro_batch(script)

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        hidden = torch.arange(batch["input_ids"].shape[1]) % 5 == 2
        chosen = hidden & batch["attention_mask"].bool()
        labels = batch["input_ids"].masked_fill(~chosen, IGNORED)
        return {**batch, "labels": labels, "input_ids": batch["input_ids"].masked_fill(chosen, 500)}

    script.collate = collate


def other(model_type: str, task: str, **settings: Any) -> Change:
    """Return a training of all weights of a small model for another task than a causal language model's."""
    return fields(lora=None, base=lambda dtype: small(model_type, task, **settings).to(dtype))


class Scored(torch.nn.Module):
    """A score of each row, read at its last token, around a model of transformers."""

    def __init__(self, dtype: torch.dtype, last: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.last = AutoModel.from_pretrained(MODEL, dtype=dtype), last
        self.config = self.inner.config
        self.head = torch.nn.Linear(self.config.hidden_size, 1, dtype=dtype)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return how far the score is from the share of labels."""
        hidden = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        scores = self.head(hidden[torch.arange(len(hidden)), self.last(attention_mask)])[:, 0]
        wanted = (labels != IGNORED).to(scores.dtype).mean(dim=1)
        return {"loss": (scores - wanted).square().mean()}


def scored(last: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Return a training of such scores by the Trainer."""
    return fields(lora=None, base=lambda dtype: Scored(dtype, last))
