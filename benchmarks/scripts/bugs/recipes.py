"""Mistakes in well-known public recipes: those that were not named at first."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel

from benchmarks.scripts.bugs.alone import adamw, mistake_alone
from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.parts import other
from benchmarks.scripts.plain.models import GPT, token_batches
from benchmarks.scripts.recipes import WINDOW, chat
from benchmarks.scripts.script import IGNORED, Script, padded, plain_loop


@mistake("no_loss_on_padding")
def decoder_padding_learned(script: Script) -> None:
    """The labels of an encoder and a decoder are padded with a token, and not with what the loss leaves out."""
    settings = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    other("t5", "AutoModelForSeq2SeqLM", is_decoder=False, **settings)(script)

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, [{**row, "labels": row["input_ids"]} for row in rows])
        return {**batch, "labels": batch["labels"].masked_fill(batch["labels"] == IGNORED, 0)}

    script.collate = collate


@mistake("calls_in_order")
def loop_schedule_per_micro_batch(script: Script) -> None:
    """A loop steps its schedule, which is made for the optimizer's steps, after each micro-batch."""

    def loop(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        held = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        schedule = CosineAnnealingLR(held, script.steps, eta_min=1e-4)
        for number, batch in enumerate(batches[: WINDOW * script.steps], start=1):
            (model(**batch).loss / WINDOW).backward()
            if number % WINDOW == 0:
                held.step()
                held.zero_grad()
            schedule.step()

    script.loop = loop


@mistake("saved_as_trained")
def adapter_saved_empty(script: Script) -> None:
    """A state dict that is filtered already is filtered once more, and nothing is left of the adapter (alpaca-lora)."""
    script.after = lambda model, folder: model.save_pretrained(folder, state_dict={})


@mistake("saved_as_trained")
def adapter_saved_from_before(script: Script) -> None:
    """The adapter's state dict was taken before the training."""
    before: dict[str, torch.Tensor] = {}
    script.adapted.append(lambda model: before.update(copy.deepcopy(model.state_dict())))
    script.after = lambda model, folder: model.save_pretrained(folder, state_dict=before)


@mistake("saved_as_trained")
def adapter_taken_off(script: Script) -> None:
    """The adapters are taken off, not merged, and the base is saved as the trained model."""
    script.after = lambda model, folder: model.unload().save_pretrained(folder)


@mistake("saved_as_trained")
def loop_average_never_updated(script: Script) -> None:
    """An average of the weights is made and saved, and never updated."""
    averages: list[Any] = []
    script.lora, script.loop = None, plain_loop
    script.adapted.append(lambda model: averages.append(AveragedModel(model)))
    script.after = lambda _, folder: averages[0].module.save_pretrained(folder)


@mistake_alone("no_target_leakage")
def targets_not_shifted(steps: int) -> None:
    """The targets of a model of the script's own are the tokens that it reads (nanoGPT)."""
    model = GPT()
    optimizer = adamw(model)
    for ids, _ in token_batches(steps):
        optimizer.zero_grad()
        model(ids, ids)[1].backward()
        optimizer.step()


@mistake("mask_and_positions")
def padded_before_without_a_mask(script: Script) -> None:
    """Rows are padded on the left by a collator that hands on no mask, and the Trainer knows no tokenizer."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows, left=True)
        return {name: batch[name] for name in ("input_ids", "labels")}

    script.collate = collate
    script.built.append(lambda trainer: setattr(trainer, "processing_class", None))


@mistake("answers_end")
def prompt_behind_each_answer(script: Script) -> None:
    """Texts are rendered with the prompt for a further turn of the model's."""
    script.example = partial(chat, prompt=True)
