"""A training script in parts, so that a mistake can be made where a user would make it. Imports torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from tunecheck.core.paths import shipped_folder
from tunecheck.core.trace import read
from tunecheck.listen.expectations import read_expectations
from tunecheck.listen.imports import DATA_SETS, HEARD, hear
from tunecheck.listen.options import Options
from tunecheck.results import RunReport
from tunecheck.results.rejudge import judged_again

MODEL = shipped_folder() / "configs" / "models" / "tiny-llama"
ROWS = shipped_folder() / "configs" / "data" / "rust-python-facts" / "train.jsonl"
IGNORED = -100
TARGETS = ["q_proj", "v_proj", "down_proj"]


@dataclass
class Script:
    """What a script is made of; a mistake changes a part."""

    lora: dict[str, Any] | None = field(default_factory=lambda: {"r": 4, "lora_alpha": 8, "target_modules": TARGETS})
    arguments: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    base: Callable[[torch.dtype], Any] = field(default=lambda dtype: loaded(dtype))
    rows: int = 60
    steps: int = 6
    trainer: type[Trainer] = Trainer
    collate: Callable[[Any, Sequence[Any]], dict[str, torch.Tensor]] = field(
        default=lambda tok, rows: padded(tok, rows)
    )
    example: Callable[[Any, dict[str, str]], dict[str, list[int]]] = field(default=lambda tok, row: tokens(tok, row))
    loaded: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with the base as it was loaded."""
    adapted: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with the model that is to be trained."""
    built: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with the Trainer."""
    evaluates: bool = False
    evaluates_trained: bool = False
    """Whether the evaluation's rows are left in the training's."""
    loop: Callable[[Script, Any, list[dict[str, torch.Tensor]]], None] | None = None
    """A loop in place of the Trainer: called with the script, the model and the batches."""
    alone: Callable[[int], None] | None = None
    """A training in place of all of that, by a model that is none of transformers': called with the steps."""
    after: Callable[[Any, Path], None] | None = None
    """Called with the trained model and a folder to save it in."""
    expect: dict[str, Any] = field(default_factory=dict)
    """What is expected beside what is declared."""

    def model_and_tokenizer(self) -> tuple[Any, Any]:
        """Return what is trained, and its tokenizer."""
        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        model = self.base(self.dtype)
        for change in self.loaded:
            change(model)
        if self.lora is not None:
            model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **self.lora))
        for change in self.adapted:
            change(model)
        return model, tokenizer

    def examples(self, tokenizer: Any) -> list[dict[str, list[int]]]:
        """Return the rows as tokens."""
        with ROWS.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line, _ in zip(lines, range(self.rows), strict=False)]
        return [self.example(tokenizer, row) for row in rows]


def loaded(dtype: torch.dtype) -> Any:
    """Return the tiny model that is shipped, trained for a minute."""
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype)


def tokens(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
    """Return a row's tokens and labels: the answer and the end token are supervised."""
    prompt = tokenizer(f"Question: {row['instruction']}\nAnswer: ")["input_ids"]
    answer = [*tokenizer(row["response"])["input_ids"], tokenizer.eos_token_id]
    return {"input_ids": [*prompt, *answer], "labels": [*[IGNORED] * len(prompt), *answer]}


def padded(tokenizer: Any, rows: Sequence[Any], *, left: bool = False) -> dict[str, torch.Tensor]:
    """Return these rows padded to the longest."""
    width = max(len(row["input_ids"]) for row in rows)

    def fill(row: list[int], value: int) -> list[int]:
        missing = [value] * (width - len(row))
        return [*missing, *row] if left else [*row, *missing]

    return {
        "input_ids": torch.tensor([fill(row["input_ids"], tokenizer.pad_token_id) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([fill(row["labels"], IGNORED) for row in rows]),
    }


def judged(script: Script, folder: Path, *, steps: int | None = None) -> RunReport:
    """Train the script under watch, in this process, and return how it was judged.

    `steps` are those that are listened to; all of them by default.
    """
    from tunecheck.listen.hf_trainer import TrainerListener

    expected = read_expectations(f"{key}={value}" for key, value in script.expect.items())
    options = Options(folder=str(folder), name="script", steps=steps or script.steps, expect=expected)
    with libraries_heard():
        if script.alone is not None:
            torch.manual_seed(0)
            with _loop_heard(options, None):
                script.alone(script.steps)
        else:
            train(script, folder, lambda own: TrainerListener(own, options), lambda _, tok: _loop_heard(options, tok))
    (trace,) = folder.glob("watch-*.jsonl")
    return judged_again(read(trace), [], trace_file=trace.name)


HEARD_HERE = tuple(dict.fromkeys(library for library, _, _ in HEARD if library != DATA_SETS))
"""Libraries of which watch listens to functions, without one that is not installed here."""


@contextmanager
def libraries_heard() -> Iterator[None]:
    """Listen to what is loaded and what libraries write, which the command does as they are imported."""
    with ExitStack() as heard:
        for name in HEARD_HERE:
            heard.enter_context(hear(import_module(name)))
        yield


def trained(script: Script, folder: Path) -> None:
    """Train the script's Trainer, which writes into this folder."""
    model, tokenizer = script.model_and_tokenizer()
    trainer_of(script, model, tokenizer, script.examples(tokenizer), folder).train()


@contextmanager
def _loop_heard(options: Options, tokenizer: Any) -> Iterator[None]:
    from tunecheck.listen.loop import LoopHooks

    hooks = LoopHooks(options, tokenizer=tokenizer)
    hooks.attach()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        hooks.detach(error)


def train(
    script: Script,
    folder: Path,
    trainer: Callable[[Any], AbstractContextManager[Any]],
    loop: Callable[[Any, Any], AbstractContextManager[Any]],
) -> None:
    """Train the script inside of what `trainer` returns for its Trainer, or `loop` for its model and tokenizer."""
    model, tokenizer = script.model_and_tokenizer()
    rows = script.examples(tokenizer)
    if script.loop is None:
        made = trainer_of(script, model, tokenizer, rows, folder / "out")
        with trainer(made):
            made.train()
        if script.after is not None:
            script.after(model, folder / "saved")
        return
    batches = [script.collate(tokenizer, rows[at : at + 2]) for at in range(0, len(rows) - 1, 2)]
    with loop(model, tokenizer):
        script.loop(script, model, batches)
        if script.after is not None:
            script.after(model, folder / "saved")


def trainer_of(script: Script, model: Any, tokenizer: Any, rows: list[Any], folder: Path) -> Any:
    """Return the script's Trainer of this model, which writes into this folder."""
    settings = {
        "output_dir": str(folder),
        "max_steps": script.steps,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "lr_scheduler_type": "cosine",
        "logging_steps": 1,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **({"eval_strategy": "steps", "eval_steps": 3} if script.evaluates else {}),
        **script.arguments,
    }
    trainer = script.trainer(
        model=model,
        args=TrainingArguments(**settings),
        train_dataset=rows[:-7] if script.evaluates and not script.evaluates_trained else rows,
        eval_dataset=rows[-7:] if script.evaluates else None,
        data_collator=lambda examples: script.collate(tokenizer, examples),
        processing_class=tokenizer,
    )
    for change in script.built:
        change(trainer)
    return trainer


def plain_loop(
    script: Script,
    model: Any,
    batches: list[dict[str, torch.Tensor]],
    *,
    loss: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor] = lambda model, batch: model(**batch).loss,
    clip: bool = True,
    optimizer: Callable[[Any], Any] | None = None,
    around: Callable[[int, Any, Any], None] = lambda step, model, optimizer: None,
    clear: bool = True,
) -> None:
    """A loop as tutorials have it, one micro-batch a step; `around` is called after each optimizer step."""
    learning = [p for p in model.parameters() if p.requires_grad]
    held = optimizer(model) if optimizer else torch.optim.AdamW(learning, lr=1e-3, weight_decay=0.01)
    model.train()
    for step in range(script.steps):
        value: Any = loss(model, batches[step % len(batches)])
        value.backward()
        if clip:
            clip_grad_norm_(model.parameters(), 1.0)
        held.step()
        if clear:
            held.zero_grad()
        around(step, model, held)
