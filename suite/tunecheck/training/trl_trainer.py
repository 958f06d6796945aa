"""TRL's SFTTrainer: its own data preparation, collator, labels, loss and evaluation over transformers' Trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from trl import SFTConfig, SFTTrainer

from tunecheck.config.schema import Run
from tunecheck.core.errors import Unsupported
from tunecheck.training.data import IGNORED, Batches, Tokens
from tunecheck.training.session import Session
from tunecheck.training.transformers_trainer import arguments, session_around
from tunecheck.training.transformers_trainer import load_checkpoint as load_checkpoint
from tunecheck.training.transformers_trainer import save_checkpoint as save_checkpoint
from tunecheck.training.transformers_trainer import train as train


def build(run: Run, folder: Path, device: torch.device) -> Session:
    """A session ready for its first step. Raises Unsupported where SFTTrainer would make fp32 adapters bf16."""
    disable_progress_bars()
    session = session_around(trainer_of, run, folder, device, dataset)
    if run.quantization is not None and session.precision != "bf16":
        why = f"trainer trl makes the adapters of a quantised base bf16, and this device trains in {session.precision}"
        raise Unsupported(f"{why}: use strategy lora, or another trainer")
    return session


def trainer_of(model: Any, batches: Batches, precision: str) -> "QuietTrainer":
    """An SFTTrainer of this model. It prepares the rows and pads them itself."""
    data = batches.run.data
    padded = {"pad_to_multiple_of": data.max_length if data.pad_to_sequence_len else None}
    limits = {"completion_only_loss": True, "max_length": data.max_length, **padded}
    args, rows = arguments(SFTConfig, batches, precision, **limits), dataset(batches.in_order())
    return QuietTrainer(model=model, args=args, train_dataset=rows, processing_class=batches.tokenizer)


def dataset(rows: Sequence[Tokens]) -> Dataset:
    """These rows as SFTTrainer knows tokenised ones: of each the tokens, and 1 where a token is learned."""
    masks = ((row, [int(label != IGNORED) for label in row.labels]) for row in rows)
    return Dataset.from_list([{"input_ids": list(row.input_ids), "completion_mask": mask} for row, mask in masks])


class QuietTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's own, which sends nothing: a session tells nobody that it runs."""

    def _send_telemetry(self) -> None: ...
