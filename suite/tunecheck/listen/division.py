"""Whether the loss of a window's micro-batches is divided, by the Trainer or by `compute_loss`.

Since 4.46 the Trainer leaves the division to a model that takes the number of supervised tokens. A `compute_loss` that
ignores this number makes gradients too large. Division calls it again with other numbers and compares.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from traceback import walk_stack
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from tunecheck.core.evidence import LossDivided
from tunecheck.listen.loop_loss import FACTORS, JOINS, REDUCTIONS, VIEWS
from tunecheck.listen.user_code import overrides
from tunecheck.probes.reference.loss_graph import gradients, graph_of
from tunecheck.training.restore import model_mode

SAME = 1e-4
"""Relative difference of two losses up to which they are the same: other numbers change them by half."""


class Division:
    """The first micro-batch of a window of several, as the Trainer computes its loss."""

    def __init__(
        self, trainer: Any, model: Any, given: dict[str, Any], items: Any, loss: torch.Tensor, micro_batches: int
    ) -> None:
        """The loss of what the model is given, of so many items, is computed."""
        self._trainer, self._model, self._given, self._items = trainer, model, given, items
        self._loss, self._micro_batches = float(loss.detach()), micro_batches
        self._has_factor = math.isclose(factor_of_mean(loss) or 0.0, 1 / micro_batches, rel_tol=SAME)

    def divided(self, result: float, call_again: Callable[[Callable[[], float]], float]) -> list[LossDivided]:
        """Return who divided the loss of the Trainer's step, or nothing; `call_again` restores counts and logs."""
        given, several, items = self._given, self._micro_batches, self._items

        def again(given: dict[str, Any], items: Any) -> float:
            def loss() -> float:
                with model_mode(self._trainer.model, False), torch.no_grad():
                    return float(self._trainer.compute_loss(self._model, dict(given), num_items_in_batch=items))

            return call_again(loss)

        if several < 2 or not math.isfinite(self._loss) or not self._loss or not _may_be_called(self._trainer):
            return []
        if not math.isclose(result, self._loss, rel_tol=SAME):
            return [LossDivided(micro_batches=several, by="the Trainer")]
        if items is None or not given:
            return []
        loss, others = again(given, items), [again(given, 2 * items)]
        with _twice_as_many(self._trainer):
            others.append(again(given, items))
        if self._has_factor or any(not math.isclose(loss, other, rel_tol=SAME) for other in others):
            return [LossDivided(micro_batches=several, by="compute_loss")]
        # a sum over the rows is to be added up, and of rows that are compared with each other nobody can tell
        rows_twice = {n: torch.cat([v, v]) if isinstance(v, torch.Tensor) and v.ndim else v for n, v in given.items()}
        try:
            twice = again(rows_twice, items)
        except Exception:  # of the script's own code, which may count on its number of rows
            return []
        # 16 bit rounds a mean over all rows twice otherwise
        return [LossDivided(micro_batches=several, by="")] if math.isclose(loss, twice, rel_tol=1e-2) else []


class LoopDivision:
    """The losses of a loop's first two windows, of a model whose own code defines the loss."""

    def __init__(self) -> None:
        self._factors: list[float | None] = []
        self._passes = 0
        self._calls = set[tuple[Any, ...]]()
        self._windows: list[tuple[int, set[float | None]]] = []

    def differentiates(self, tensor: torch.Tensor, model: Any, passes: int) -> None:
        """Note the factor of the mean of this loss, which has so many passes of its own.

        None for another kind of loss, or gradients that are not added.
        """
        self._passes = max(self._passes, passes)
        added = any(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        self._factors.append(factor_of_mean(tensor) if passes and added == bool(self._factors) else None)
        self._calls.add(tuple((frame.f_code, line) for frame, line in walk_stack(None)))

    def divided(self) -> list[LossDivided]:
        """Return who has divided the losses of two windows alike; nothing where nobody can tell.

        A loop differentiates its micro-batches by one call. Two calls, as of a GAN, have a loss each.
        """
        several, counted = len(self._factors), {f if f is None else round(f, 4) for f in self._factors}
        self._windows.append((several, counted))
        alike = len(self._calls) == 1 < several and self._windows == 2 * self._windows[-1:]
        self._factors, self._calls = [], set()
        if alike and counted in ({1.0}, {round(1 / several, 4)}):
            return [LossDivided(micro_batches=several, by="the loop" * (counted != {1.0}), passes=self._passes)]
        return []


def factor_of_mean(loss: torch.Tensor) -> float | None:
    """Return the largest factor with which a mean is in this loss; None without one, or behind another factor."""
    means, waiting = list[float](), list[tuple[Any, float]]([(loss.grad_fn, 1.0)])
    while waiting:
        node, factor = waiting.pop()
        name, reduction = "" if node is None else node.name(), getattr(node, "_saved_reduction", None)
        if reduction is not None:
            means += [abs(factor)] if REDUCTIONS[reduction] == "mean" else []
        elif name == "MeanBackward0" and node._saved_self_sym_numel > 1:
            means.append(abs(factor))
        elif name == "SumBackward0" and (mean := _mean_of_sum(loss, node)) is not None:
            means.append(mean)
        elif name in JOINS:
            if name in FACTORS:
                (_, (other, _)), by = node.next_functions, node._saved_other
                if other is not None or not isinstance(by, torch.Tensor) or by.numel() != 1 or not by:
                    return None
                factor *= float(by) if name == "MulBackward0" else 1 / float(by)
            waiting += [(following, factor) for following, _ in node.next_functions]
    return max(means, default=None)


def _mean_of_sum(loss: torch.Tensor, node: Any) -> float | None:
    """Return the factor of a mean that a loop takes by itself: of the sum of each token's loss over their number."""
    ends = set[Any]()
    for behind in graph_of(node, ends):
        if (reduction := getattr(behind, "_saved_reduction", None)) is None:
            # what joins and masks the losses of tokens before they are summed
            if behind is not node and behind.name() not in ("CatBackward0", "MulBackward0", *VIEWS):
                return None
        elif REDUCTIONS[reduction] != "none":
            return None
        else:
            ends.add(behind)
    found = gradients(loss, [GradientEdge(end, 0) for end in nodes]) if (nodes := [*ends]) else None
    return None if found is None else abs(sum(map(_counted, nodes, found)))


def _counted(entropy: Any, shares: torch.Tensor) -> float:
    """Return the sum of these shares of the loss, without those of targets that are ignored."""
    ignored = getattr(entropy, "_saved_ignore_index", None)
    return float(shares.sum() if ignored is None else shares[entropy._saved_target != ignored].sum())


def _may_be_called(trainer: Any) -> bool:
    """Return whether `compute_loss` is the Trainer's or the script's own: a library's may divide by what it holds."""
    from transformers import Trainer

    own = overrides(trainer, "compute_loss") or type(trainer).compute_loss is Trainer.compute_loss
    return own and not overrides(trainer, "get_batch_samples") and not overrides(trainer, "training_step")


@contextmanager
def _twice_as_many(trainer: Any) -> Iterator[None]:
    """Have the Trainer's attributes say that a window has twice as many micro-batches."""
    places = {
        "current_gradient_accumulation_steps": vars(trainer),
        "gradient_accumulation_steps": vars(trainer.args),
        "num_steps": getattr(getattr(trainer.accelerator, "gradient_state", None), "plugin_kwargs", {}),
    }
    with ExitStack() as stack:
        for name, place in places.items():
            if name in place:
                stack.callback(place.update, {name: place[name]})
                place[name] *= 2
        yield
