"""transformers' Trainer, listened to from outside: only the one instance that trains is wrapped, never its class."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any
from unittest import mock

import torch
from transformers import TrainerCallback

from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import EvaluationRows, EvaluationSeen, Logged, LossDivided
from tunecheck.core.premises import Premise, opened
from tunecheck.listen import hf_declared
from tunecheck.listen.batches import batch_of, named_inputs, unknown_batch
from tunecheck.listen.declared import ROW_TOKENS
from tunecheck.listen.division import Division
from tunecheck.listen.listener import Listener
from tunecheck.listen.loaders import rows_of
from tunecheck.listen.loop_loss import OUTSIDE_ENTROPY, OUTSIDE_FORWARD, Pass, another_kind, not_followed
from tunecheck.listen.loss_calls import LossCalls
from tunecheck.listen.loss_functions import scores_given
from tunecheck.listen.optimizers import without_rate
from tunecheck.listen.options import Options
from tunecheck.listen.preferences import answers_rated, declares_pairs, declares_ratings, pairs_of
from tunecheck.listen.premises import adds_to_loss
from tunecheck.listen.source import read_source
from tunecheck.listen.trained_model import device_of, objective_of
from tunecheck.listen.twice import keep_out_of_its_folders, keeps_checkpoint
from tunecheck.listen.unheard import listened
from tunecheck.listen.user_code import of_trainer, overrides
from tunecheck.probes.reference.measures import digests
from tunecheck.training.data import IGNORED
from tunecheck.training.events import probing
from tunecheck.training.hooks import Hooks, inner_optimizer, nothing, rate_of


class TrainerListener(Listener):
    """What a Trainer is given to call, and the moments that follow from it."""

    def __init__(self, trainer: Any, options: Options) -> None:
        super().__init__(options)
        self.trainer = trainer
        self.shown: torch.Tensor | None = None
        """Tokens of the first row, by which models are compared after the training."""
        self.samples: list[Any] = []
        self.pairs: list[Any] = []
        self.objective = ""
        """Why rows and loss are not those of a causal language model."""
        self.items: Any = None
        self.first: int | None = None
        self.evaluations = 0
        self.evaluating: list[WatchedEvaluation | None] = []
        """Evaluations that have begun: one of several sets calls itself for each. None for one that is not watched."""
        self.hooks, self.later = (Hooks(self.failed, unless=probing) for _ in range(2))
        """For as long as steps are listened to; and of evaluations, which may come after."""
        self.callback = TrainerCallback()
        vars(self.callback).update(
            on_step_begin=self.hooks.guarded(self._step_begin),
            on_pre_optimizer_step=self.hooks.guarded(self._backward_end),
            on_step_end=self._on_step_end,
            on_log=self.hooks.guarded(self._on_log),
            on_train_end=self._on_train_end,
        )
        self.passes: list[Pass] = []
        """Of the first micro-batch, where the script computes the loss itself."""
        self.own_loss = overrides(trainer, "compute_loss") and "loss" not in options.expect
        self.loss_calls = LossCalls()
        self.division: Division | None = None
        # an object, or its class and settings, of which the arguments say nothing
        given = trainer.optimizer, getattr(trainer, "optimizer_cls_and_kwargs", None)
        self.own_optimizer, self.own_schedule = given != (None, None), trainer.lr_scheduler is not None

    # What is wrapped.

    def attach(self) -> None:
        """Wrap the instance's calls and add a callback, after all others."""
        trainer, accelerator, hooks = self.trainer, self.trainer.accelerator, self.hooks
        if hasattr(trainer, "get_batch_samples"):
            hooks.function(trainer, "get_batch_samples", after=self._on_samples)
        else:
            hooks.function(trainer, "get_train_dataloader", after=self._on_loader)
        hooks.function(trainer, "training_step", after=self._on_training_step)
        if self.own_loss:
            hooks.after(trainer.model, self._on_returned)
        self.loss_calls.hear(hooks)
        hooks.function(trainer, "compute_loss", before=self._computes_loss)
        self.later.function(trainer, "evaluate", before=self._evaluation_begins, after=self._evaluation_ends)
        self.later.function(trainer, "prediction_step", before=self._on_prediction)
        hooks.function(accelerator, "unscale_gradients", after=self._backward_end)
        hooks.function(accelerator, "clip_grad_norm_", after=self._on_clipped)
        if self.ends_early:
            keep_out_of_its_folders(trainer, self.options)
        trainer.add_callback(self.callback)

    def detach(self) -> None:
        """Leave the Trainer as it was."""
        self.hooks.remove()
        self.later.remove()
        for begun in filter(None, self.evaluating):
            begun.close()
        self.trainer.remove_callback(self.callback)

    def close(self, error: BaseException | None = None) -> None:
        """End the trace. What reads back later saves keeps this listener, but nothing of the training."""
        super().close(error)
        self.trainer = self.shown = self.items = self.division = None
        self.samples, self.pairs, self.evaluating, self.passes, self.window, self.losses = [], [], [], [], [], []

    def _on_samples(self, result: Any, *_: Any, **__: Any) -> None:
        if self.listening or self.first is None:
            self.samples, self.items = list(result[0]), result[1]

    def _on_loader(self, result: Any, *_: Any, **__: Any) -> None:
        """The Trainer is about to iterate over this loader: transformers before 4.46, which reads no windows."""
        kind, read_all = type(result), self._read_windows
        change = vars(object)["__class__"].__set__  # accelerate's loaders pretend to be of another class
        change(result, type(kind.__name__, (kind,), {"__iter__": lambda loader: read_all(kind.__iter__(loader))}))
        self.hooks.callback(lambda: change(result, kind))

    def _read_windows(self, micro_batches: Iterator[Any]) -> Iterator[Any]:
        """Yield these micro-batches; while the training is listened to, a window of them is read at once."""
        while self.listening or self.first is None:
            self.samples = list(islice(micro_batches, self.trainer.args.gradient_accumulation_steps))
            if not self.samples:
                return
            yield from self.samples
        yield from micro_batches

    def _on_returned(self, _model: Any, _args: Any, out: Any) -> None:
        if not self.loss_calls.over and torch.is_grad_enabled():
            self.passes.append(Pass({}))
            self.passes[-1].returned(out)

    def _computes_loss(
        self, model: Any, inputs: Any, *_: Any, num_items_in_batch: Any = None, **__: Any
    ) -> Callable[[Any], None] | None:
        """The loss of a micro-batch is about to be computed, which takes some of its inputs out."""
        given = dict(inputs) if isinstance(inputs, Mapping) else {}  # a compute_loss of the script's may take tuples
        began = self.first is not None and not self.loss_calls.over
        return partial(self._on_loss, model, given, num_items_in_batch) if began else None

    def _on_loss(self, model: Any, given: dict[str, Any], items: Any, result: Any) -> None:
        """The loss of a micro-batch is computed; the first one tells what it is made of."""
        if not (loss := result[0] if isinstance(result, tuple) else result).requires_grad:
            return
        self.emit(scores_given(loss, self.loss_calls))
        self.division = Division(self.trainer, model, given, items, loss, len(self.samples))
        if self.own_loss and (why := another_kind(loss, self.passes)):
            reason = f"the script overrides compute_loss, and {why}; --expect loss=token_mean enables the check"
            # a loss that calls no cross entropy may read the labels in a way of its own
            other = {OUTSIDE_FORWARD: Premise.GRADIENT_BY_FORWARD, OUTSIDE_ENTROPY: Premise.LOSS_DECLARED}.get(why)
            self.left_open(opened((reason, Premise.TOKEN_MEAN_LOSS, other or Premise.TOKEN_MEAN_LOSS)))
        self.passes = []

    def _on_training_step(self, result: Any, *_: Any, **__: Any) -> None:
        if self.listening:
            self.losses.append(result.detach())

    def _on_clipped(self, result: Any, *_: Any, **__: Any) -> None:
        self.norm = result

    def _backward_end(self, *_: Any, **__: Any) -> None:
        """The gradients are complete: they are unscaled, or as the optimizer will see them."""
        if self.listening and not self.done_backward:
            self.rate = rate_of(self.trainer.optimizer.param_groups[0])
            self.without_rate = without_rate(self.trainer.optimizer)
            self.backward_end()
            division, self.division = self.division, None
            if division is not None and self.losses:
                self.look(LossDivided, lambda: division.divided(float(self.losses[0]), self._as_before))

    def _evaluation_begins(self, eval_dataset: Any = None, *_: Any, **__: Any) -> None:
        self.evaluations += 1
        begun = None
        # two are watched however late they come: each has all trained tensors read twice
        if self.evaluations <= 2 or self.listening:
            rows = self.trainer.eval_dataset if eval_dataset is None else eval_dataset
            due = hf_declared.rows_due(self.trainer, rows, self.trainer.args.eval_batch_size)
            begun = WatchedEvaluation(self.trainer.model, due)
        self.evaluating.append(begun)

    def _on_prediction(self, _model: Any, inputs: Any, *_: Any, **__: Any) -> None:
        """A batch is about to be evaluated; where labels are smoothed the model is not given them."""
        if self.evaluating and self.evaluating[-1] is not None:
            self.evaluating[-1].labels = named_inputs(inputs).get("labels")

    def _evaluation_ends(self, metrics: Any, *_: Any, **__: Any) -> None:
        seen = None if (begun := self.evaluating.pop()) is None else begun.close()
        if seen is None or self.first is None or not isinstance(metrics, dict):
            return
        split, loss = next((pair for pair in metrics.items() if pair[0].endswith("_loss")), ("eval_loss", None))
        if adds_to_loss(getattr(self.trainer.model, "config", None)):  # no logits tell the router's
            loss = None
        steps, split = self.trainer.state.global_step - self.first, split.removesuffix("_loss")
        self.emit(EvaluationSeen(steps=steps, split=split, reported_loss=_number(loss), **seen))

    # Callbacks.

    def _step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.first is not None and not self.listening:
            return
        given, model = [named_inputs(inputs) for inputs in self.samples], self.trainer.model
        if self.first is None:
            self.objective = objective_of(model, given, type(self.trainer))
        read, device = unknown_batch if self.objective else batch_of, device_of(model)
        self.window = [read(inputs, device) for inputs in given]
        if self.begun:
            raise Unsupported("an accumulation window continues in the next epoch")  # transformers before 4.46
        if self.first is None:
            self.first = state.global_step
            listened(inner_optimizer(self.trainer.optimizer))
            self.shown = None if self.objective else self.window[0].input_ids[:1, :ROW_TOKENS]
            found = hf_declared.session(self, kwargs, state)
            unknown = self.own_optimizer and not found.run.holds(Premise.UPDATE_RULE_KNOWN)
            self.begin(found, "" if unknown else hf_declared.declared_optimizer(self.trainer))
            self.emit(*of_trainer(self.trainer), *read_source(model), *hf_declared.declarations(self, state))
            self.look(EvaluationRows, lambda: shared_rows(self.trainer))
        self.step = state.global_step - self.first
        if declares_pairs(self.trainer.train_dataset):
            pairs = pairs_of(self.step, given, hf_declared.rows_per_micro_batch(self.trainer), self.pairs)
            self.emit(*filter(None, [pairs]))
        elif not self.step and declares_ratings(self.trainer.train_dataset) and given:
            self.emit(*filter(None, [answers_rated(self.trainer.train_dataset, given[0])]))
        for inputs, batch in zip(given, self.window, strict=True):
            self.left_open(not_followed(inputs, batch))
        self.step_begin()

    def _on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.hooks.guarded(self._step_end)()
        options = self.options
        if options.purpose == "repeat" and keeps_checkpoint(args, state, self.step + 1, options.steps):
            control.should_save = True
        if self.ends_early and not self.listening:
            self.leave()
        if options.stop and not self.listening:
            control.should_training_stop = True

    def _step_end(self) -> None:
        if not self.listening or self.first is None:
            return
        skipped = bool(getattr(self.trainer.accelerator, "optimizer_step_was_skipped", False))
        # a model that takes no further arguments is not given the number, so that it divides by none
        given = getattr(self.trainer, "model_accepts_loss_kwargs", True) or self.trainer.compute_loss_func is not None
        counted = int(self.items) if given and self.items is not None else None
        self.step_end(supervised_tokens=counted, applied=not skipped)
        if not self.listening:
            self.hooks.remove()
            self.samples, self.window, self.losses, self.norm, self.items = [], [], [], None, None

    def _on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        if self.first is not None and "loss" in logs:
            loss, rate = (_number(logs.get(name)) for name in ("loss", "learning_rate"))
            self.emit(Logged(steps=state.global_step - self.first, loss=loss, learning_rate=rate))

    def _on_train_end(self, *_: Any, **__: Any) -> None:
        """Have what the script merges and saves from now on read back; the last look is at the adapters, if any."""
        if self.shown is not None:
            self.read_back_saves(self.trainer.model, self.shown)

    # What probes may ask for.

    def replay(self) -> float:
        """Make the Trainer's passes over the present window again; what it counts and logs is put back."""
        trainer, arguments = self.trainer, () if self.items is None else (self.items,)

        def passes() -> float:
            given = (copy.copy(inputs) for inputs in self.samples)
            losses = [trainer.training_step(trainer.model_wrapped, inputs, *arguments) for inputs in given]
            return float(sum(loss.detach() for loss in losses))

        return self._as_before(passes)

    def _as_before(self, call: Callable[[], float]) -> float:
        """Return what this returns, and put back what the Trainer counts and logs."""
        trainer = self.trainer
        kept = {name: copy.deepcopy(value) for name, value in vars(trainer).items() if _plain(value)}
        state = copy.copy(trainer.state)
        try:
            with mock.patch.object(trainer, "log", nothing):
                return call()
        finally:
            vars(trainer).update(kept)
            trainer.state.__dict__.update(state.__dict__)


def _plain(value: Any) -> bool:
    """Return whether a value is made of numbers, text and containers of these alone."""
    if isinstance(value, dict | list | tuple | set):
        return all(map(_plain, chain(value, value.values() if isinstance(value, dict) else ())))
    return value is None or isinstance(value, int | float | str)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


class WatchedEvaluation:
    """The forward passes of one evaluation: modes, gradients, and the loss of their own logits."""

    def __init__(self, model: Any, due: int | None) -> None:
        """`due` are the rows that it must take, None where nobody knows."""
        self._due, self._modules = due, list(model.modules())
        self._learning = [p for p in model.parameters() if p.requires_grad]
        self._before = digests(self._learning)
        self._training, self._gradients, self._seen = 0, False, True
        self.labels: Any = None
        """Those of the batch that is evaluated now, where the model is not given them."""
        self._hooks = Hooks()
        self._rows: int | None = 0
        self._batches: list[tuple[float, float, int, int]] = []
        """Of each: summed loss, the same against a uniform guess, tokens, rows."""
        self._hooks.after(model, self._look, with_kwargs=True)

    def _look(self, _model: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        self._training = max(self._training, sum(module.training for module in self._modules))
        self._gradients |= torch.is_grad_enabled()
        logits = out.get("logits") if isinstance(out, dict) else getattr(out, "logits", None)
        if not isinstance(labels := given.get("labels", self.labels), torch.Tensor):
            self._rows, self._seen = None, False
            return
        if self._rows is not None:  # a packed row holds one of the data set for each position 0
            begins: Any = given.get("position_ids")
            alone = begins is None or begins.shape != labels.shape  # one of three axes is the time of a picture
            self._rows += len(labels) if alone else int((begins == 0).sum())
        if logits is None or logits.shape[:2] != labels.shape:
            self._seen = False
            return
        total, uniform, tokens = 0.0, 0.0, 0
        for scores, wanted in zip(logits, labels.to(logits.device), strict=True):
            learnt = wanted[1:] != IGNORED
            chosen = scores[:-1][learnt].double()
            scale = chosen.logsumexp(dim=-1)
            total -= float((chosen.gather(1, wanted[1:][learnt][:, None])[:, 0] - scale).sum())
            uniform -= float((chosen.mean(dim=-1) - scale).sum())
            tokens += int(learnt.sum())
        self._batches.append((total, uniform, tokens, len(labels)))

    def close(self) -> dict[str, Any]:
        """Stop watching; return the fields of EvaluationSeen that were seen."""
        self._hooks.remove()
        # a script's own evaluation may call its model as it likes
        whole = self._seen and not self._hooks.error and any(tokens for _, _, tokens, _ in self._batches)
        loss, uniform = (self._means(at) if whole else (None, None) for at in (0, 1))
        return {
            **{"token_mean_loss": loss[0], "batch_mean_loss": loss[1]},
            **{"token_mean_uniform": uniform[0], "batch_mean_uniform": uniform[1]},
            "tokens": sum(tokens for _, _, tokens, _ in self._batches),
            "rows": None if self._hooks.error else self._rows,
            "dataset_rows": self._due,
            "training_modules_during": self._training,
            "gradients_enabled": self._gradients,
            "weights_changed": digests(self._learning) != self._before,
        }

    def _means(self, at: int) -> tuple[float, float]:
        """Return the mean over all tokens, and that of the batches' means by their rows."""
        total, tokens, rows = (sum(batch[place] for batch in self._batches) for place in (at, 2, 3))
        means = (batch[at] / batch[2] if batch[2] else math.nan for batch in self._batches)
        return total / tokens, sum(mean * batch[3] for mean, batch in zip(means, self._batches, strict=True)) / rows


def shared_rows(trainer: Any) -> list[EvaluationRows]:
    """Return how many rows of the evaluation are trained on; nothing where nobody knows what they hold."""
    sets = trainer.train_dataset, trainer.eval_dataset
    if not all(hasattr(held, "__len__") and len(held) for held in sets):
        return []
    trained, evaluated = map(rows_of, sets)
    known, alike = {*trained}, type(sets[0]) is type(sets[1])
    among = sum(row in known for row in evaluated)
    told = among or (alike and isinstance(trained[0], bytes) and isinstance(evaluated[0], bytes))
    return [EvaluationRows(rows=len(evaluated), among=among, trained=len(trained))] if told else []
