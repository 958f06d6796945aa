"""transformers' Trainer: its own loop, loss, optimizer, schedule, evaluation and checkpoints, looked at from outside.

Its callbacks announce the moments. `on_pre_optimizer_step` comes when the gradients are clipped already, so the end of
the backward pass is announced where accelerate unscales them. `session.trainer` is where to replace a part.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from tunecheck.config.schema import Run
from tunecheck.core.errors import WeightsDamaged
from tunecheck.core.evidence import Step
from tunecheck.training.data import IGNORED, Batch, Batches, Tokens
from tunecheck.training.events import Probes
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.load import parts_of
from tunecheck.training.restore import having, model_mode
from tunecheck.training.session import Session

SAME = (
    *("max_steps", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "seed"),
    *("gradient_accumulation_steps", "gradient_checkpointing"),
)
"""Settings of a run that the Trainer calls by the same names."""

WRAPPED = "accelerate 1.15: a model that has been evaluated before its training is wrapped in DDP all the same"
"""Preparing a model for an evaluation marks it as prepared: the training would never average its gradients."""

A = TypeVar("A", bound=TrainingArguments)


def build(run: Run, folder: Path, device: torch.device) -> Session:
    """A session ready for its first step: weights loaded, adapters added, the Trainer made and its optimizer too."""
    return session_around(trainer_of, run, folder, device)


def session_around(
    make: Callable[[Any, Batches, str], Any], run: Run, folder: Path, device: torch.device, as_dataset: Any = list
) -> Session:
    """A session around the Trainer that `make` returns; `as_dataset` makes of rows what its `evaluate` wants."""
    parts = parts_of(run, folder, device)
    if run.processes > 1:
        parts["workarounds"] += (WRAPPED,)
    model, ranks = parts["model"], parts["ranks"]
    if ranks.count > 1:  # or accelerate would choose a number of threads itself
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    trainer = make(model, parts["batches"], parts["precision"])
    trainer.remove_callback(PrinterCallback)
    ranks.seed(run.training.seed)  # after the Trainer has seeded all alike
    return Session(
        **parts,
        optimizer=trainer.create_optimizer(),
        evaluate=partial(evaluate, as_dataset=as_dataset),
        save_adapter=save_adapter,
        trainer=trainer,
    )


def trainer_of(model: Any, batches: Batches, precision: str) -> Trainer:
    """A Trainer of this model with the suite's own collator."""
    return Trainer(
        model=model,
        args=arguments(TrainingArguments, batches, precision),
        data_collator=lambda rows: collated(batches, rows),
        train_dataset=batches.in_order(),
    )


def arguments(kind: type[A], batches: Batches, precision: str, **more: Any) -> A:
    """The run's settings by the Trainer's names. It logs every step, to nobody else, and saves only when asked to."""
    training, on_gpu = batches.run.training, batches.device.type == "cuda"
    made = kind(
        output_dir=tempfile.gettempdir(),  # made if it is missing; nothing is written there
        **{name: getattr(training, name) for name in SAME},
        per_device_train_batch_size=training.micro_batch_size,
        per_device_eval_batch_size=batches.run.evaluation.batch_size,
        lr_scheduler_type="constant_with_warmup" if training.lr_scheduler == "constant" else training.lr_scheduler,
        warmup_steps=math.ceil(training.warmup_ratio * training.max_steps),
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        max_grad_norm=training.max_grad_norm or 0.0,  # 0 is its word for not clipping
        bf16=batches.run.trains_base and precision == "bf16",  # autocast; adapters learn on a base that is bf16 itself
        gradient_checkpointing_kwargs={"use_reentrant": False} if training.gradient_checkpointing else None,
        use_cpu=not on_gpu,
        train_sampling_strategy="sequential",  # the rows are in their order already
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        average_tokens_across_devices=batches.run.processes > 1,
        ddp_find_unused_parameters=False,  # its default for peft's models looks for some in every step
        prediction_loss_only=True,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,  # or a loss that is not finite would be reported as the average of those before
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )
    made._n_gpu = min(made.n_gpu, 1)  # it would spread every batch over all cards that it sees
    return made


def train(session: Session, probes: Probes, steps: range, log: Callable[[Step], None]) -> None:
    trainer = session.trainer
    if session.ranks.count > 1:  # see WRAPPED
        session.model._is_accelerate_prepared = False
    with OwnHooks() as hooks:
        listener = Listener(session, probes, steps, log, _divisor(trainer, hooks))
        hooks.function(trainer, "get_batch_samples", after=listener.samples_read)
        hooks.function(trainer.accelerator, "unscale_gradients", after=listener.backward_end)
        trainer.add_callback(listener)
        hooks.callback(trainer.remove_callback, listener)
        trainer.train(resume_from_checkpoint=trainer.resume_from if steps.start else None)


def _divisor(trainer: Any, hooks: OwnHooks) -> list[Any]:
    """Return what holds the number that the last loss was divided by: supervised tokens of its window, or its batch."""
    held: list[Any] = [0]

    def before(_model: Any, inputs: Any, *_: Any, num_items_in_batch: Any = None, **__: Any) -> None:
        held[0] = (inputs["labels"][:, 1:] != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch

    hooks.function(trainer, "compute_loss", before=before)
    return held


def evaluate(session: Session, rows: Sequence[Tokens], batch_size: int, *, as_dataset: Any) -> tuple[float, int]:
    """The loss that Trainer.evaluate gives and the number of tokens that it divided by. Each rank has as many rows.

    The mode is put back outside of training, where nobody else does; in it the next training_step sees to that.
    """
    trainer = session.trainer
    # accelerate fills up the ranks' last batches with rows that count again
    trainer.args.per_device_eval_batch_size = min(batch_size, len(rows) // session.ranks.count)
    with OwnHooks() as hooks, nullcontext() if trainer.is_in_train else model_mode(session.model, False):
        divisor = _divisor(trainer, hooks)
        return float(trainer.evaluate(as_dataset(rows))["eval_loss"]), int(divisor[0])


def save_adapter(session: Session, folder: Path) -> None:
    """What Trainer.save_model writes into this folder. Rank 0 does; the others return when the files are there."""
    session.trainer.save_model(str(folder))
    session.ranks.wait()


def save_checkpoint(session: Session, step: int, folder: Path) -> None:
    """The Trainer's own checkpoint, in this folder."""
    trainer = session.trainer
    folder.parent.mkdir(parents=True, exist_ok=True)
    with having([(trainer.args, "output_dir", str(folder.parent))]):
        # TrainerControl could ask for it, but then it is done after the callbacks, in the time of the next phase
        trainer._save_checkpoint(trainer.model, trial=None)
    session.ranks.wait()
    if session.ranks.rank == 0:
        shutil.move(folder.parent / f"checkpoint-{step}", folder)
    session.ranks.wait()


def load_checkpoint(session: Session, folder: Path) -> int:
    """Have `train` go on from this folder, which it reads only then; returns the step. Raises WeightsDamaged."""
    try:
        step = int(json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError) as error:
        why = f"the Trainer's checkpoint cannot be read: {error}; train again to write a new one"
        raise WeightsDamaged(f"{folder}: {why}") from error
    session.trainer.resume_from = str(folder)
    return step


def collated(batches: Batches, rows: Sequence[Tokens]) -> dict[str, torch.Tensor]:
    """These rows as the suite's own collator pads them, on the CPU: the Trainer moves them."""
    columns = batches.collate(rows, batches.tokenizer.pad_token_id)
    return {name: torch.tensor(column) for name, column in columns.items()}


class Listener(TrainerCallback):
    """Announces the moments to the probes, and logs what the Trainer logs."""

    def __init__(
        self, session: Session, probes: Probes, steps: range, log: Callable[[Step], None], divisor: Sequence[Any]
    ) -> None:
        self._session, self._probes, self._steps, self._log = session, probes, steps, log
        self._step, self._divisor = steps.start, divisor
        self._samples: Sequence[Any] = ()
        self._numbers: dict[str, Any] = {}

    def samples_read(self, read: tuple[Any, Any], *_: Any) -> None:
        self._samples = read[0]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A window has been read and is about to be trained on."""
        session, self._step = self._session, state.global_step
        window = [Batch.of(rows["input_ids"], rows["labels"], rows["attention_mask"]) for rows in self._samples]
        self._numbers = {"tokens": session.ranks.total(sum(batch.tokens for batch in window))}
        if self._step in session.run.evaluation.at:
            self._probes.evaluate(session, self._step)
        self._probes.step_begin(session, self._step, window)
        with self._probes.paused():
            self._wait()

    def backward_end(self, *_: Any) -> None:
        self._wait()
        self._probes.backward_end(self._session, self._step)
        with self._probes.paused():
            self._wait()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients are clipped."""
        self._numbers["learning_rate"] = float(self._session.optimizer.param_groups[0]["lr"])
        self._numbers["supervised_tokens"] = int(self._divisor[0])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped, the schedule too, and the gradients are cleared."""
        session = self._session
        self._wait()
        applied = not session.trainer.accelerator.optimizer_step_was_skipped
        allocated = torch.cuda.memory_allocated(session.device) if session.device.type == "cuda" else None
        self._numbers |= {"seconds": self._probes.elapsed(), "allocated_bytes": allocated, "applied": applied}
        self._probes.step_end(session, self._step, applied)
        if state.global_step >= self._steps.stop:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer reports: a step, an evaluation or the end."""
        if "loss" in (logs := kwargs["logs"]):
            self._log(Step(step=self._step, loss=logs["loss"], gradient_norm=logs["grad_norm"], **self._numbers))

    def _wait(self) -> None:
        """Wait for the device, whose work is then this moment's; it costs little beside the reading of every loss."""
        if self._session.device.type == "cuda":
            torch.cuda.synchronize(self._session.device)
