"""Evaluations that measure something else, or change what they measure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from suite.training.session import Session


def train_mode_in_evaluation(session: Session) -> None:
    """eval() does nothing, so dropout and the like stay active."""
    session.model.eval = lambda: session.model


def mode_not_restored(session: Session) -> None:
    """After an evaluation the model stays in eval mode."""
    evaluate = session.evaluate

    def changed(*args: Any) -> Any:
        result = evaluate(*args)
        session.model.eval()
        return result

    session.evaluate = changed


def graph_built(session: Session) -> None:
    """Evaluation runs with gradients enabled."""
    session.model.get_decoder().register_forward_pre_hook(
        lambda module, _: None if module.training else torch.set_grad_enabled(True) and None
    )


def mean_of_batch_means(session: Session) -> None:
    """The mean of each batch, and then the mean of these means."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        parts = [evaluate(evaluated, rows[at : at + size], size) for at in range(0, len(rows), size)]
        return sum(loss for loss, _ in parts) / len(parts), sum(tokens for _, tokens in parts)

    session.evaluate = changed


def mean_of_perplexities(session: Session) -> None:
    """The logarithm of the mean of batch perplexities."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        parts = [evaluate(evaluated, rows[at : at + size], size) for at in range(0, len(rows), size)]
        return math.log(sum(math.exp(loss) for loss, _ in parts) / len(parts)), sum(tokens for _, tokens in parts)

    session.evaluate = changed


def last_batch_dropped(session: Session) -> None:
    """The last batch of rows is not evaluated."""
    evaluate = session.evaluate
    session.evaluate = lambda evaluated, rows, size: evaluate(evaluated, rows[:-size] or rows[:1], size)


def adapters_off_in_evaluation(session: Session) -> None:
    """Evaluation measures the base."""
    evaluate = session.evaluate

    def changed(*args: Any) -> Any:
        with session.model.disable_adapter():
            return evaluate(*args)

    session.evaluate = changed


def training_step_in_evaluation(session: Session) -> None:
    """Evaluation moves the weights a little: the optimizer's averages are applied in it."""
    evaluate = session.evaluate

    def changed(*args: Any) -> Any:
        result = evaluate(*args)
        with torch.no_grad():
            for group in session.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.999)
        return result

    session.evaluate = changed


def divided_by_rows(session: Session) -> None:
    """The sum over the tokens is divided by the rows: a perplexity that no model can have."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        loss, tokens = evaluate(evaluated, rows, size)
        return loss * tokens / len(rows), tokens

    session.evaluate = changed


def one_left_out(session: Session) -> None:
    """The evaluations in the middle of the run never take place."""
    left_out = session.run.evaluation.model_copy(update={"at": []})
    session.run = session.run.model_copy(update={"evaluation": left_out})


def logits_in_fp16(session: Session) -> None:
    """The head's output is fp16 while it is evaluated, and fp32 again for the loss."""
    head = session.model.get_output_embeddings()
    head.register_forward_hook(lambda module, _args, out: out if module.training else out.half().float())


def rows_of_the_other_split(session: Session) -> None:
    """Evaluations on held-out rows take training rows, and those on training rows held-out ones."""
    batches: Any = session.batches
    fixed = batches.fixed
    batches.fixed = lambda split: fixed("probe" if split == "heldout" else "heldout")
