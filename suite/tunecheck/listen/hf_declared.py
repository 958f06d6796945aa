"""What a Trainer's own objects declare, as the session and the run that probes and checks know."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import get_last_checkpoint, has_length

from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import BestChosen, Rates, Record, ScheduleTaken, Window
from tunecheck.core.files import read_json
from tunecheck.core.premises import Premise, opened
from tunecheck.core.trace import read
from tunecheck.listen import declared, premises, provenance
from tunecheck.listen.optimizers import adamw_settings, made_for
from tunecheck.listen.preferences import declares_pairs, declares_ratings
from tunecheck.listen.settings import settings_of
from tunecheck.listen.trained_model import device_of, dtype_of, is_transformers, only_tokenizer
from tunecheck.models.layer_names import attention_kernel
from tunecheck.training.hooks import inner_optimizer, rate_of
from tunecheck.training.session import Session

ADAMW_ARGUMENTS = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


def declared_optimizer(trainer: Any) -> str:
    """Return the class of the optimizer that the arguments name; "" where an object was passed, or is not known."""
    return "AdamW" if _word(trainer.args.optim).startswith("adamw_torch") else ""


def declarations(listener: Any, state: Any) -> Iterator[Record]:
    """Yield what the Trainer's objects declare beside the run."""
    trainer, args, own = listener.trainer, listener.trainer.args, listener.own_optimizer
    yield from _rates(trainer, own)
    schedule = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)  # accelerate's is one around another
    if args.world_size == 1 and schedule is not None and any(lasts := made_for(schedule)):  # several step it once each
        total = int(state.max_steps)
        yield ScheduleTaken(made_for=lasts[0], warmup=lasts[1], taken=total, optimizer_steps=total)
    optimizer, rate = inner_optimizer(trainer.optimizer), None if own else float(args.learning_rate)
    yield settings_of(trainer.model, [optimizer], args, rate)
    metric, kept = args.metric_for_best_model, _word(args.save_strategy) == "best" or args.save_total_limit
    if metric is not None and (args.load_best_model_at_end or kept):
        yield BestChosen(metric=metric, greater=bool(args.greater_is_better))


def _word(argument: Any) -> str:
    """Return the text of an argument, which may be a member of an enumeration."""
    return str(getattr(argument, "value", argument))


def _rates(trainer: Any, own_optimizer: bool) -> Iterator[Rates]:
    """Yield the learning rates that differ from those declared for their tensors, where any are."""
    optimizer = inner_optimizer(trainer.optimizer)
    made_by_it = type(trainer).create_optimizer.__module__.startswith("transformers.")
    wanted = provenance.DECLARED.get(optimizer)
    if wanted is None and made_by_it and not own_optimizer and declared_optimizer(trainer):
        rate = float(trainer.args.learning_rate), f"{type(trainer.args).__name__}.learning_rate"
        wanted = dict.fromkeys((name for name, _ in trainer.model.named_parameters()), rate)
    if wanted is None:
        return
    given = {id(p): group.get("initial_lr", group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    found = {name: given[id(p)] for name, p in trainer.model.named_parameters() if id(p) in given and name in wanted}
    others = {name: rate for name, rate in found.items() if not math.isclose(rate, wanted[name][0], rel_tol=1e-6)}
    wrong = {name: f"{rate:g}, declared {wanted[name][0]:g} by {wanted[name][1]}" for name, rate in others.items()}
    yield Rates(tensors=len(found), wrong=wrong)


def session(listener: Any, given: dict[str, Any], state: Any) -> Session:
    """Return the training as a session, its run the one that its objects declare."""
    trainer = listener.trainer
    return declared.session_of(
        run_of(listener, state, given.get("train_dataloader")),
        trainer.model,
        listener.window,
        optimizer=inner_optimizer(trainer.optimizer),
        tokenizer=tokenizer_of(trainer),
        dataset=trainer.train_dataset,
        done=rows_done(trainer, state, listener.path),
        scaler=getattr(trainer.accelerator, "scaler", None),
        save_adapter=lambda _, folder: trainer._save(str(folder)),
        autocast=casts(trainer),
        replay=listener.replay,
    )


def tokenizer_of(trainer: Any) -> Any:
    """Return the tokenizer that the Trainer, or its collator, is given; else the only one of the process, or None."""
    for holder, name in ((trainer, "processing_class"), (trainer, "tokenizer"), (trainer.data_collator, "tokenizer")):
        if (given := getattr(holder, name, None)) is not None:
            return getattr(given, "tokenizer", given)  # of a processor
    return only_tokenizer()


def rows_done(trainer: Any, state: Any, trace: Path) -> tuple[float, frozenset[str]]:
    """Return the share of this epoch that is done or dropped, and its rows that this command trained beforehand."""
    done, epoch = state.global_step, float(state.epoch or 0)
    share = epoch - math.floor(epoch + 1e-6)
    due = rows_due(trainer, trainer.train_dataset, trainer.args.train_batch_size * trainer.args.world_size)
    dropped = 1 - due / len(trainer.train_dataset) if due else 0.0
    if not done or share < 1e-6:
        return dropped, frozenset()
    since = done - round(done * share / epoch)
    rows = set[str]()
    for earlier in (read(path) for path in sorted(trace.parent.glob("watch-*.jsonl")) if path != trace):
        first, windows = earlier.run.training.first_step, earlier.main.all(Window)
        rows |= {row for w in windows if since <= first + w.step < done for row in w.rows}
    return 1 - (1 - share) * (1 - dropped), frozenset(rows)


def rows_due(trainer: Any, dataset: Any, at_once: int) -> int | None:
    """Return the rows that a loader gives, so many at once; None for data without a length, and for several sets."""
    if isinstance(dataset, dict | str) or not has_length(dataset):
        return None
    return len(dataset) - (len(dataset) % at_once if trainer.args.dataloader_drop_last else 0)


def declared_resume(args: Any) -> int:
    """Return the steps of the checkpoint in the arguments; 0 without. The Trainer ignores this argument."""
    folder: Any = getattr(args, "resume_from_checkpoint", None)
    if folder is True and Path(args.output_dir).is_dir():
        folder = get_last_checkpoint(args.output_dir)  # type: ignore[no-untyped-call]
    if not isinstance(folder, str):
        return 0
    try:
        return int(read_json(Path(folder) / "trainer_state.json")["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def casts(trainer: Any) -> bool:
    """Return whether the arguments have the forward pass under autocast: fp16 is accelerate's on a GPU alone."""
    return bool(trainer.args.bf16 or (trainer.args.fp16 and device_of(trainer.model).type != "cpu"))


def precision_of(trainer: Any) -> str:
    """Return bf16, fp16 or fp32: what the arithmetic really uses."""
    if casts(trainer):
        return "bf16" if trainer.args.bf16 else "fp16"
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    # TRL has the adapters of a 4-bit base in bf16, whatever the base computes in
    if learnt := {names[p.dtype] for p in trainer.model.parameters() if p.requires_grad and p.dtype in names}:
        return max(learnt)
    quantization = getattr(getattr(trainer.model, "config", None), "quantization_config", None)
    return names.get(getattr(quantization, "bnb_4bit_compute_dtype", None) or dtype_of(trainer.model), "fp32")


def run_of(listener: Any, state: Any, loader: Any) -> declared.WatchedRun:
    """Return what the Trainer's objects declare, and the loader of its rows."""
    trainer, args, model = listener.trainer, listener.trainer.args, listener.trainer.model
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise Unsupported("tunecheck does not support DeepSpeed, whose engine hides gradients, clipping and steps")
    kind = type(args).__name__
    described, left_open = declared.described(model)
    total = state.max_steps
    schedule = _word(args.lr_scheduler_type)
    settings, why = {name: getattr(args, name) for name in ADAMW_ARGUMENTS}, ""
    optimizer = inner_optimizer(trainer.optimizer)
    rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    if listener.own_optimizer:
        settings, why = adamw_settings(optimizer)
    elif not declared_optimizer(trainer):
        why = f"tunecheck does not know the closed form of {args.optim}"
    elif len(set(rates)) > 1:
        why = "the optimizer's parameter groups have different rates"
    if listener.own_optimizer or len(set(rates)) > 1:  # the argument is not what the script declares them by
        settings["learning_rate"] = float(rates[0] or 1.0)
    left_open = opened(*premises.of_loss(trainer, state.global_step)) | left_open
    # a given optimizer has groups as all others, whatever it computes
    other = Premise.SETTINGS_DECLARED if listener.own_optimizer else Premise.GROUPS_DECLARED
    left_open |= opened((why, Premise.UPDATE_RULE_KNOWN, other), (listener.objective, Premise.CAUSAL_LM))
    left_open |= opened(*premises.of_trainer(trainer, loader, "" if listener.own_schedule else schedule))
    # as this Trainer has it: by their modules' classes and names
    decayed = set() if listener.own_optimizer else {*trainer.get_decay_parameter_names(model)}
    learns = [name for name, p in model.named_parameters() if p.requires_grad]
    training = declared.WatchedTraining.model_construct(
        max_steps=min(listener.options.steps, total),
        first_step=state.global_step,
        # of a script's later trainings nobody knows whether they are to begin anew
        resume_steps=declared_resume(args) if listener.is_first else 0,
        resumed_rate=rate_of(optimizer.param_groups[0]) if state.global_step and optimizer.state else None,
        schedule_steps=total,
        warmup_steps=0 if schedule == "constant" else int(args.get_warmup_steps(total)),
        use_cache=bool(getattr(getattr(model, "config", None), "use_cache", False)),
        micro_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        lr_scheduler=premises.SCHEDULES.get(schedule, "constant"),
        **settings,
        weight_decay_on="all" if listener.own_optimizer else tuple(n for n in learns if n in decayed),
        max_grad_norm=args.max_grad_norm or None,
        precision=precision_of(trainer),
        # LLaMA-Factory turns it on itself, and leaves the argument as it is
        gradient_checkpointing=bool(args.gradient_checkpointing or declared.checkpoints(model)),
        attention=attention_kernel(model) if is_transformers(model) else "",
        seed=args.seed,
    )
    if Premise.SCHEDULE_KNOWN in left_open:
        training._rate = math.nan
    names = ("learning_rate", "lr_scheduler_type", "weight_decay", "max_grad_norm", "gradient_accumulation_steps")
    return described.under(
        training=training,
        left_open=left_open,
        id=listener.run_id,
        trainer=type(trainer).__name__,
        sources=described.sources | {f"training.{name}": f"{kind}.{name} = {getattr(args, name)!s}" for name in names},
        masked=next((part for part in ("assistant", "completion") if getattr(args, f"{part}_only_loss", False)), ""),
        longest=getattr(args, "max_length", None) or getattr(args, "max_seq_length", None),
        rows_per_micro_batch=rows_per_micro_batch(trainer),
        pairs=declares_pairs(trainer.train_dataset) or declares_ratings(trainer.train_dataset),
        smoothing=float(getattr(args, "label_smoothing_factor", 0) or 0),
        evaluates=_word(getattr(args, "eval_strategy", "no")) != "no",
        autocast=casts(trainer),
        **({"drops": True} if getattr(args, "neftune_noise_alpha", None) else {}),
    )


def rows_per_micro_batch(trainer: Any) -> int | None:
    """Return how many rows the arguments have each micro-batch take; None where a loader of other code decides."""
    args = trainer.args
    own = type(trainer).get_train_dataloader.__module__.startswith(("transformers.", "trl."))
    joined = getattr(args, "packing", False) or getattr(args, "padding_free", False)
    split = getattr(trainer.accelerator, "split_batches", False)
    return int(trainer._train_batch_size) if own and not joined and not split else None
