"""transformers' Trainer and what derives from it, listened to from outside: no method of its class is changed.

What is called on the way is wrapped on the one instance that trains: the window as the loader gave it, the loss that
each micro-batch returned, the end of the backward pass (accelerate unscales there, before it clips), the norm.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from suite.checks import CHECKS
from suite.core.errors import Unsupported
from suite.core.evidence import EvaluationSeen, Logged, Rates, Step, Window
from suite.core.trace import read
from suite.probes.reference.measures import digest
from suite.training.data import IGNORED, Batch
from suite.training.session import Session
from suite.watch import declared, exports, noted
from suite.watch.expectations import OWN_LOSS
from suite.watch.listener import Listener
from suite.watch.objective import ANY_TRAINING, other_objective
from suite.watch.options import Options, from_environment
from suite.watch.session import ROW_TOKENS, batch_of, norm_of_gradients, session_of, unknown_batch
from suite.watch.twice import keep_out_of_its_folders, keeps_checkpoint
from suite.watch.user_code import of_trainer

EVALUATIONS = 2
"""Evaluations that are watched however late they come: each has all trained tensors read twice."""
ADAMW_ARGUMENTS = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


def listen(trainer: Any) -> Any:
    """Return a context in which this Trainer's training is listened to; None where it is not to be."""
    options = from_environment()
    return listening(trainer, options) if options is not None else None


@contextmanager
def listening(trainer: Any, options: Options) -> Iterator[Listener]:
    """Listen to this Trainer for as long as the block lasts."""
    listener = Listener(options)
    hooks = Hooks(trainer, listener)
    hooks.attach()
    try:
        yield listener
    except BaseException as error:
        listener.close(error)
        raise
    finally:
        hooks.detach()
        listener.close()
        if listener.ends_early:
            listener.leave()
        if hooks.shown is not None:
            exports.remember(trainer.model, listener.path, hooks.shown)


class Hooks(TrainerCallback):
    """What a Trainer is given to call, and the moments that follow from it."""

    def __init__(self, trainer: Any, listener: Listener) -> None:
        self.trainer, self.listener = trainer, listener
        self.shown: torch.Tensor | None = None
        """Tokens of the first row, by which models are compared after the training."""
        self.samples: list[Any] = []
        self.objective = ""
        """Why rows and loss are not those of a causal language model."""
        self.items: Any = None
        self.losses: list[Any] = []
        self.first: int | None = None
        self.step = 0
        self.window: list[Batch] = []
        self.norm: Any = None
        self.rate = self.own_norm = math.nan
        self.done_backward = self.replaying = self.begun = False
        self.seconds = self.since = 0.0
        self.evaluations = 0
        self.put_back: list[Callable[[], None]] = []
        self.own_optimizer, self.own_schedule = trainer.optimizer is not None, trainer.lr_scheduler is not None

    # What is wrapped.

    def attach(self) -> None:
        """Wrap the instance's calls and add this callback, after all others."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        if hasattr(trainer, "get_batch_samples"):
            self.wrap(trainer, "get_batch_samples", after=self.on_samples)
        else:
            self.wrap(trainer, "get_train_dataloader", after=self.on_loader)
        self.wrap(trainer, "training_step", after=self.on_training_step)
        self.wrap(trainer, "evaluate", around=self.evaluation)
        self.wrap(accelerator, "unscale_gradients", after=self.on_unscaled)
        self.wrap(accelerator, "clip_grad_norm_", after=self.on_clipped)
        if self.listener.ends_early:
            keep_out_of_its_folders(trainer, self.listener.options)
        trainer.add_callback(self)

    def detach(self) -> None:
        """Leave the Trainer as it was."""
        for undo in reversed(self.put_back):
            undo()
        self.trainer.remove_callback(self)

    def wrap(
        self,
        owner: Any,
        name: str,
        after: Callable[[Any, Any], None] | None = None,
        around: Callable[..., Callable[[Any], None] | None] | None = None,
    ) -> None:
        """Have a method of this one object tell when it returns, with its result and arguments.

        `around` is called before it with its arguments, and what that returns after it, with the result.
        """
        method = getattr(owner, name)
        own = vars(owner).get(name)

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.replaying:
                return method(*args, **kwargs)
            told = self.listener.safely(lambda: around(*args, **kwargs), name) if around is not None else None
            try:
                result = method(*args, **kwargs)
            except BaseException:
                if told is not None:
                    self.listener.safely(lambda: told(None), name)
                raise
            if told is not None:
                self.listener.safely(lambda: told(result), name)
            if after is not None:
                self.listener.safely(lambda: after(result, args), name)
            return result

        setattr(owner, name, wrapped)
        self.put_back.append(lambda: setattr(owner, name, own) if own is not None else delattr(owner, name))

    def on_samples(self, result: Any, args: Any) -> None:
        """The Trainer has read a window."""
        if self.listener.listening or self.first is None:
            self.samples, self.items = list(result[0]), result[1]

    def on_loader(self, result: Any, args: Any) -> None:
        """The Trainer is about to iterate over this loader: transformers before 4.46, which reads no windows."""
        kind, read_all = type(result), self.read_windows
        change = vars(object)["__class__"].__set__  # accelerate's loaders pretend to be of another class
        change(result, type(kind.__name__, (kind,), {"__iter__": lambda loader: read_all(kind.__iter__(loader))}))
        self.put_back.append(lambda: change(result, kind))

    def read_windows(self, micro_batches: Iterator[Any]) -> Iterator[Any]:
        """Yield these micro-batches; while the training is listened to, a window of them is read at once."""
        while self.listener.listening or self.first is None:
            self.samples = list(islice(micro_batches, self.trainer.args.gradient_accumulation_steps))
            if not self.samples:
                return
            yield from self.samples
        yield from micro_batches

    def on_training_step(self, result: Any, args: Any) -> None:
        """A micro-batch's passes are done."""
        if self.listener.listening:
            self.losses.append(result.detach())

    def on_unscaled(self, result: Any, args: Any) -> None:
        """The window's gradients are complete."""
        self.backward_end()

    def on_clipped(self, result: Any, args: Any) -> None:
        """The gradients are clipped."""
        self.norm = result

    def backward_end(self) -> None:
        """Tell the probes once per step."""
        if self.listener.listening and not self.done_backward:
            self.done_backward = True
            self.seconds += time.perf_counter() - self.since
            self.own_norm = norm_of_gradients(self.trainer.model)
            self.listener.tell_rate(float(self.trainer.optimizer.param_groups[0]["lr"]))
            self.listener.backward_end(self.step)
            self.since = time.perf_counter()

    def evaluation(self, eval_dataset: Any = None, *_: Any, **__: Any) -> Callable[[Any], None] | None:
        """An evaluation begins; what is returned is to be called with its metrics. None for the later ones."""
        self.evaluations += 1
        if self.evaluations > EVALUATIONS and not self.listener.listening:
            return None
        watched = WatchedEvaluation(self.trainer.model)
        due = rows_due(self.trainer, self.trainer.eval_dataset if eval_dataset is None else eval_dataset)

        def told(metrics: Any) -> None:
            seen = watched.close()
            if self.first is None or not isinstance(metrics, dict):
                return
            losses = {name: value for name, value in metrics.items() if name.endswith("_loss")}
            split, loss = next(iter(losses.items()), ("eval_loss", None))
            steps = self.trainer.state.global_step - self.first
            self.listener.emit(
                EvaluationSeen(
                    steps=steps,
                    split=split.removesuffix("_loss"),
                    reported_loss=_number(loss),
                    dataset_rows=due,
                    **seen,
                )
            )

        return told

    # Callbacks, which must not raise either.

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A window is about to be trained on."""
        self.listener.safely(lambda: self._step_begin(state, kwargs), "the beginning of a step")

    def _step_begin(self, state: Any, kwargs: dict[str, Any]) -> None:
        if self.first is not None and not self.listener.listening:
            return
        if self.first is None:
            self.objective = other_objective(self.trainer.model, self.samples, type(self.trainer))
        known = unknown_batch if self.objective else batch_of
        self.window = [known(inputs, self.trainer.model.device) for inputs in self.samples]
        if self.begun:
            raise Unsupported("a window of this training goes on in the next epoch")  # transformers before 4.46
        if self.first is None:
            self.first = state.global_step
            self.shown = None if self.objective else self.window[0].input_ids[:1, :ROW_TOKENS]
            self.listener.begin(session(self.trainer, self, kwargs, state), declared_optimizer(self.trainer))
            self.listener.emit(*of_trainer(self.trainer))
            if (seen := declared_rates(self)) is not None:
                self.listener.emit(seen)
        self.step = state.global_step - self.first
        self.losses, self.norm, self.done_backward = [], None, False
        self.begun = True
        self.listener.step_begin(self.step, self.window)
        self.seconds, self.since = 0.0, time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients are as the optimizer will see them."""
        self.listener.safely(self._before_the_optimizer, "the optimizer's step")

    def _before_the_optimizer(self) -> None:
        self.backward_end()
        if self.listener.listening:
            self.rate = float(self.trainer.optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        self.listener.safely(self._step_end, "the end of a step")
        options = self.listener.options
        if options.purpose == "repeat" and keeps_checkpoint(args, state, self.step + 1, options.steps):
            control.should_save = True
        if self.listener.ends_early and not self.listener.listening:
            self.listener.leave()
        if options.stop and not self.listener.listening:
            control.should_training_stop = True

    def _step_end(self) -> None:
        self.begun = False
        if not self.listener.listening or self.first is None:
            return
        self.seconds += time.perf_counter() - self.since
        skipped = bool(getattr(self.trainer.accelerator, "optimizer_step_was_skipped", False))
        own = sum(batch.supervised_tokens for batch in self.window)
        # a model that takes no further arguments is not given the number, so that it divides by none
        given = getattr(self.trainer, "model_accepts_loss_kwargs", True) or self.trainer.compute_loss_func is not None
        counted = int(self.items) if given and self.items is not None else own
        self.listener.step_end(
            Step(
                step=self.step,
                loss=float(sum(self.losses)),
                learning_rate=self.rate,
                gradient_norm=self.own_norm if self.norm is None else float(self.norm),
                supervised_tokens=counted,
                tokens=sum(batch.tokens for batch in self.window),
                applied=not skipped,
                seconds=self.seconds,
            )
        )

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer reports."""
        self.listener.safely(lambda: self._log(state, kwargs.get("logs") or {}), "a log")

    def _log(self, state: Any, logs: dict[str, Any]) -> None:
        if self.first is not None and "loss" in logs:
            self.listener.emit(
                Logged(
                    steps=state.global_step - self.first,
                    loss=_number(logs.get("loss")),
                    learning_rate=_number(logs.get("learning_rate")),
                    gradient_norm=_number(logs.get("grad_norm")),
                )
            )

    # What probes may ask for.

    def replay(self) -> float:
        """Make the Trainer's passes over the present window again; what it counts and logs is put back."""
        trainer = self.trainer
        kept = {name: copy.deepcopy(value) for name, value in vars(trainer).items() if _plain(value)}
        state = copy.copy(trainer.state)
        arguments = () if self.items is None else (self.items,)
        self.replaying = True
        try:
            losses = [
                trainer.training_step(trainer.model_wrapped, copy.copy(inputs), *arguments) for inputs in self.samples
            ]
            return float(sum(loss.detach() for loss in losses))
        finally:
            self.replaying = False
            vars(trainer).update(kept)
            trainer.state.__dict__.update(state.__dict__)


class WatchedEvaluation:
    """The forward passes of one evaluation: modes, gradients, and the loss of their own logits."""

    def __init__(self, model: Any) -> None:
        self._modules = list(model.modules())
        self._learning = [p for p in model.parameters() if p.requires_grad]
        self._before = [digest(p) for p in self._learning]
        self._training, self._gradients, self._seen = 0, False, True
        self._sum, self._tokens = 0.0, 0
        self._rows: int | None = 0
        self._means: list[tuple[float, int]] = []
        self._handles = [model.register_forward_hook(self._look, with_kwargs=True)]

    def _look(self, _model: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        try:
            self._training = max(self._training, sum(module.training for module in self._modules))
            self._gradients |= torch.is_grad_enabled()
            logits = out.get("logits") if isinstance(out, dict) else getattr(out, "logits", None)
            labels = given.get("labels")
            self._rows = None if self._rows is None or labels is None else self._rows + _documents(given, labels)
            if labels is None or logits is None or logits.shape[:2] != labels.shape:
                self._seen = False
                return
            total, tokens = 0.0, 0
            for scores, wanted in zip(logits, labels, strict=True):
                learnt = wanted[1:] != IGNORED
                chosen = scores[:-1][learnt].double()
                likelihoods = chosen.gather(1, wanted[1:][learnt][:, None])[:, 0] - chosen.logsumexp(dim=-1)
                total -= float(likelihoods.sum())
                tokens += int(learnt.sum())
            self._sum, self._tokens = self._sum + total, self._tokens + tokens
            self._means.append((total / tokens if tokens else math.nan, len(labels)))
        except Exception:  # a script's own evaluation may call its model as it likes
            self._seen = False

    def close(self) -> dict[str, Any]:
        """Stop watching; return the fields of EvaluationSeen that were seen."""
        for handle in self._handles:
            handle.remove()
        whole = self._seen and self._tokens > 0
        rows = sum(rows for _, rows in self._means)
        return {
            "token_mean_loss": self._sum / self._tokens if whole else None,
            "batch_mean_loss": sum(mean * rows for mean, rows in self._means) / rows if whole else None,
            "tokens": self._tokens,
            "rows": self._rows,
            "training_modules_during": self._training,
            "gradients_enabled": self._gradients,
            "weights_changed": [digest(p) for p in self._learning] != self._before,
        }


def _documents(given: dict[str, Any], labels: Any) -> int:
    """Return how many rows of the data set these are: a packed row holds one for each position 0."""
    positions = given.get("position_ids")
    return len(labels) if positions is None else int((positions == 0).sum())


def rows_due(trainer: Any, dataset: Any) -> int | None:
    """Return the rows that an evaluation must take; None for data without a length, and for several sets."""
    if isinstance(dataset, dict | str) or not hasattr(dataset, "__len__"):
        return None
    dropped = len(dataset) % trainer.args.eval_batch_size if trainer.args.dataloader_drop_last else 0
    return len(dataset) - dropped


def _plain(value: Any) -> bool:
    """Return whether a value is made of numbers, text and containers of these alone."""
    if isinstance(value, dict):
        return all(map(_plain, value)) and all(map(_plain, value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(_plain, value))
    return value is None or isinstance(value, int | float | str)


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def declared_optimizer(trainer: Any) -> str:
    """Return the class of the optimizer that the arguments name; "" where an object was passed, or is not known."""
    name = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    return "AdamW" if name.startswith("adamw_torch") else ""


def declared_rates(hooks: Hooks) -> Rates | None:
    """Return the learning rates that differ from those declared for their tensors; None where none are declared."""
    trainer = hooks.trainer
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    own = type(trainer).create_optimizer.__module__.startswith("transformers.")
    wanted = noted.declared_for(optimizer)
    if wanted is None and own and not hooks.own_optimizer and declared_optimizer(trainer):
        rate = float(trainer.args.learning_rate), f"{type(trainer.args).__name__}.learning_rate"
        wanted = dict.fromkeys((name for name, _ in trainer.model.named_parameters()), rate)
    if wanted is None:
        return None
    given = {id(p): group.get("initial_lr", group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    found = {name: given[id(p)] for name, p in trainer.model.named_parameters() if id(p) in given and name in wanted}
    wrong = {
        name: f"{rate:g}, declared {wanted[name][0]:g} by {wanted[name][1]}"
        for name, rate in found.items()
        if not math.isclose(rate, wanted[name][0], rel_tol=1e-6)
    }
    return Rates(tensors=len(found), wrong=wrong)


def session(trainer: Any, hooks: Hooks, given: dict[str, Any], state: Any) -> Session:
    """Return the training as a session, its run the one that its objects declare."""
    tokenizer = getattr(trainer, "processing_class", None) or getattr(trainer, "tokenizer", None)
    return session_of(
        run_of(trainer, hooks, state),
        trainer.model,
        hooks.window,
        optimizer=getattr(trainer.optimizer, "optimizer", trainer.optimizer),
        tokenizer=getattr(tokenizer, "tokenizer", tokenizer),
        dataset=trainer.train_dataset,
        done=rows_done(state, hooks.listener.path),
        scheduler=given.get("lr_scheduler"),
        scaler=getattr(trainer.accelerator, "scaler", None),
        save_adapter=lambda _, folder: trainer._save(str(folder)),
        trainer=trainer,
        autocast=casts(trainer),
        replay=hooks.replay,
    )


def rows_done(state: Any, trace: Path) -> tuple[float, frozenset[str]]:
    """Return the share of the present epoch that was done before a resume, and the rows of it that were listened to.

    Those are known where the training that is resumed was run by the same command.
    """
    done, epoch = state.global_step, float(state.epoch or 0)
    share = epoch - math.floor(epoch + 1e-6)
    if not done or share < 1e-6:
        return 0.0, frozenset()
    since = done - round(done * share / epoch)
    rows = set[str]()
    for path in sorted(trace.parent.glob("watch-*.jsonl")):
        if path != trace:
            earlier = read(path)
            first = earlier.run.training.first_step
            windows = earlier.main.all(Window)
            rows |= {row for w in windows if since <= first + w.step < done for row in w.rows}
    return share, frozenset(rows)


def casts(trainer: Any) -> bool:
    """Return whether the arguments have the forward pass under autocast: fp16 is accelerate's on a GPU alone."""
    return bool(trainer.args.bf16 or (trainer.args.fp16 and trainer.model.device.type != "cpu"))


def precision_of(trainer: Any) -> str:
    """Return bf16, fp16 or fp32: what the arithmetic really uses."""
    if casts(trainer):
        return "bf16" if trainer.args.bf16 else "fp16"
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    # TRL has the adapters of a 4-bit base in bf16, whatever the base computes in
    if learnt := {names[p.dtype] for p in trainer.model.parameters() if p.requires_grad and p.dtype in names}:
        return max(learnt)
    quantization = getattr(trainer.model.config, "quantization_config", None)
    compute = getattr(quantization, "bnb_4bit_compute_dtype", None)
    return names.get(compute or trainer.model.dtype, "fp32")


def run_of(trainer: Any, hooks: Hooks, state: Any) -> declared.WatchedRun:
    """Return what the Trainer's objects declare."""
    args, model = trainer.args, trainer.model
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise Unsupported("DeepSpeed keeps gradients, clipping and steps to its engine, which is not listened to")
    kind = type(args).__name__
    described, unjudged, sources = declared.described(model)
    total = state.max_steps
    listened = min(hooks.listener.options.steps, total)
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if hooks.own_schedule or schedule not in declared.SCHEDULES:
        which = "a schedule of the script's own" if hooks.own_schedule else f"the schedule {schedule!r}"
        unjudged["learning_rate_trace"] = f"{which} has no closed form here"
    settings, why = {name: getattr(args, name) for name in ADAMW_ARGUMENTS}, ""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    if hooks.own_optimizer:
        settings, why = declared.groups_of(optimizer)
    elif not declared_optimizer(trainer):
        why = f"the closed form of the optimizer {args.optim} is not known here"
    elif len({group.get("initial_lr", group["lr"]) for group in optimizer.param_groups}) > 1:
        why = "the groups of the optimizer have rates of their own"
    if why:
        unjudged["updates_match_adamw"] = unjudged["optimizer_coverage"] = why
    if state.global_step:
        why = f"the training was resumed after {state.global_step} steps"
        for name in (*declared.FRESH_ADAPTERS, "base_matches_file", "updates_match_adamw"):
            unjudged.setdefault(name, why)
    if args.max_grad_norm in (None, 0):
        unjudged["gradient_norm_reported"] = "gradients are not clipped, so that no norm is taken"
    for name, reason in not_the_plain_loss(trainer).items():
        unjudged.setdefault(name, reason)
    for name in CHECKS if hooks.objective else ():
        if name not in ANY_TRAINING:
            unjudged[name] = hooks.objective
    training = declared.WatchedTraining.model_construct(
        max_steps=listened,
        first_step=state.global_step,
        schedule_steps=total,
        warmup_steps=0 if schedule == "constant" else int(args.get_warmup_steps(total)),
        use_cache=bool(getattr(model.config, "use_cache", False)),
        micro_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        lr_scheduler=declared.SCHEDULES.get(schedule, "constant"),
        **{"learning_rate": args.learning_rate, **settings},
        weight_decay_on="all" if hooks.own_optimizer else "all_but_norms_and_biases",
        max_grad_norm=args.max_grad_norm or None,
        precision=precision_of(trainer),
        # LLaMA-Factory turns it on itself, and leaves the argument as it is
        gradient_checkpointing=bool(args.gradient_checkpointing or declared.checkpoints(model)),
        attention=described.attention,
        seed=args.seed,
    )
    if "learning_rate_trace" in unjudged:
        training._rate = math.nan
    names = ("learning_rate", "lr_scheduler_type", "weight_decay", "max_grad_norm", "gradient_accumulation_steps")
    sources |= {f"training.{name}": f"{kind}.{name} = {getattr(args, name)!s}" for name in names}
    masked = "assistant" if getattr(args, "assistant_only_loss", False) else ""
    masked = masked or ("completion" if getattr(args, "completion_only_loss", False) else "")
    evaluates = str(getattr(args, "eval_strategy", "no")).rpartition(".")[2].lower() != "no"
    return described.run(
        id=hooks.listener.run_id,
        trainer=type(trainer).__name__,
        training=training,
        unjudged=unjudged,
        sources=sources,
        masked=masked,
        objective=hooks.objective,
        evaluates=evaluates,
        autocast=casts(trainer),
        **({"drops": True} if getattr(args, "neftune_noise_alpha", None) else {}),
    )


def not_the_plain_loss(trainer: Any) -> dict[str, str]:
    """Return the checks of loss and gradient that a declared loss of another kind leaves unjudged, with the reason."""
    args, config = trainer.args, trainer.model.config
    reason = ""
    if getattr(args, "label_smoothing_factor", 0):
        reason = f"the loss is smoothed: label_smoothing_factor = {args.label_smoothing_factor}"
    elif getattr(args, "neftune_noise_alpha", None):
        reason = f"noise is added to the embeddings: neftune_noise_alpha = {args.neftune_noise_alpha}"
    elif getattr(trainer, "compute_loss_func", None) is not None:
        reason = OWN_LOSS
    elif getattr(args, "loss_type", None) not in (None, "nll", "chunked_nll"):
        reason = f"the loss is another: loss_type = {args.loss_type}"
    elif getattr(config, "router_aux_loss_coef", 0) and getattr(config, "output_router_logits", False):
        reason = "the router's loss is added to the tokens'"
    return dict.fromkeys(("loss_oracle", "accumulation_oracle"), reason) if reason else {}
