"""Held-out faults of saving, resuming, merging, evaluation and generation. Imports torch; child process only."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import before_step, decoder, on_resume
from suite.training.data import Tokens
from suite.training.data import template as prompts

if TYPE_CHECKING:
    from suite.training.session import Session


def step_count_lost_on_resume(session: Session) -> None:
    """A resumed Adam has its moments but counts its steps from 0 again, and corrects their bias a second time."""

    def count_anew() -> None:
        for state in session.optimizer.state.values():
            state["step"].zero_()

    on_resume(session, count_anew)


def saved_before_last_step(session: Session) -> None:
    """What is saved is a copy from before the last step: the writer took its snapshot too early."""
    trained = [parameter for parameter in session.model.parameters() if parameter.requires_grad]
    save, snapshot = session.save_adapter, [parameter.detach().clone() for parameter in trained]

    def take() -> None:
        snapshot[:] = [parameter.detach().clone() for parameter in trained]

    def changed(session: Session, folder: Path) -> None:
        now = [parameter.detach().clone() for parameter in trained]
        _put(trained, snapshot)
        save(session, folder)
        _put(trained, now)

    before_step(session, take)
    session.save_adapter = changed


def _put(parameters: list[Any], values: list[torch.Tensor]) -> None:
    """The parameters have these values."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value)


def alpha_lost_on_save(session: Session) -> None:
    """The saved configuration has alpha equal to the rank: whoever reads the adapter applies it at scale 1."""
    save = session.save_adapter

    def changed(session: Session, folder: Path) -> None:
        save(session, folder)
        _edit(folder, lora_alpha=json.loads((folder / "adapter_config.json").read_text())["r"])

    session.save_adapter = changed


def _edit(folder: Path, **values: Any) -> None:
    """The adapter's configuration in this folder has these values."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def merged_without_rslora(session: Session) -> None:
    """The merge scales by alpha / r although the adapter was trained with alpha / sqrt(r)."""
    merge = session.merge

    def changed(session: Session, saved: Path) -> Any:
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(saved, copy, dirs_exist_ok=True)
            _edit(Path(copy), use_rslora=False)
            return merge(session, Path(copy))

    session.merge = changed


def merged_twice(session: Session) -> None:
    """The adapter is added to the weights twice: once when it is loaded for the merge, once by the merge."""
    import peft.tuners.lora.layer

    linear: Any = peft.tuners.lora.layer.Linear
    merge, delta = session.merge, linear.get_delta_weight

    def changed(session: Session, saved: Path) -> Any:
        linear.get_delta_weight = lambda layer, adapter: 2 * delta(layer, adapter)
        try:
            return merge(session, saved)
        finally:
            linear.get_delta_weight = delta

    session.merge = changed


def mean_of_batch_means(session: Session) -> None:
    """Evaluation averages the batches' means, so that tokens of short answers count more."""
    evaluate = session.evaluate

    def changed(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
        parts = [evaluate(session, rows[at : at + batch_size], batch_size) for at in range(0, len(rows), batch_size)]
        return sum(loss for loss, _ in parts) / len(parts), sum(tokens for _, tokens in parts)

    session.evaluate = changed


def prompt_evaluated(session: Session) -> None:
    """Evaluation counts the prompt's tokens as if they were the answer's: its collator knows of no mask."""
    evaluate = session.evaluate
    session.evaluate = lambda session, rows, batch_size: evaluate(
        session, [replace(row, labels=row.input_ids) for row in rows], batch_size
    )


def repetition_penalty(session: Session) -> None:
    """The generation configuration brought a repetition penalty of 1.1, which greedy decoding obeys too."""
    session.model.generation_config.repetition_penalty = 1.1


def served_prompt_lacks_newline(session: Session) -> None:
    """Prompts are stripped when they are served: the newline before the answer, seen in training, is missing."""
    text = prompts.prompt_text
    prompts.prompt_text = lambda instruction, tokenizer, template: text(instruction, tokenizer, template).rstrip()


def decoded_one_position_late(session: Session) -> None:
    """With the cache each new token is placed one position too far from the prompt; whole rows are right."""
    rotary = decoder(session).rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, position_ids + int(position_ids.shape[-1] == 1))
