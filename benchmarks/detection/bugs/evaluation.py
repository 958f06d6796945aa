"""Evaluations that measure something else, or that change the model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import adapted_modules, after_evaluation_in_the_middle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunecheck.training.data import Tokens
    from tunecheck.training.session import Session


@bug(
    "B93",
    "Train mode in evaluation",
    caught_by="evaluation_mode",
    source="karpathy/nanoGPT#240, huggingface/trl#2042, hiyouga/LlamaFactory#10779",
)
def train_mode_in_evaluation(session: Session) -> None:
    """Turn eval() and train(False) into no-ops: dropout stays active in evaluations."""
    session.model.eval = session.model.train = lambda mode=True: session.model


@bug(
    "B96",
    "Mean of batch perplexities",
    caught_by="evaluation_oracle",
    source="keras-team/keras-hub#2958, meta-pytorch/torcheval#154",
    settings=("evaluation.batch_size=1",),
)
def mean_of_perplexities(session: Session) -> None:
    """Report the logarithm of the mean of batch perplexities."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        parts = [evaluate(evaluated, rows[at : at + size], size) for at in range(0, len(rows), size)]
        return math.log(sum(math.exp(loss) for loss, _ in parts) / len(parts)), sum(tokens for _, tokens in parts)

    session.evaluate = changed


@bug("X76", "The model stays in eval mode", caught_by="evaluation_mode")
def mode_not_restored(session: Session) -> None:
    """Leave the model in eval mode after an evaluation."""
    evaluate = session.evaluate

    def changed(*args: Any) -> Any:
        result = evaluate(*args)
        session.model.eval()
        return result

    session.evaluate = changed


@bug("X77", "Evaluation builds a graph", caught_by="evaluation_mode")
def graph_built(session: Session) -> None:
    """Evaluate with gradients enabled."""
    import torch

    session.model.get_decoder().register_forward_pre_hook(
        lambda module, _: None if module.training else torch.set_grad_enabled(True) and None
    )


@bug("X78", "Mean of batch means", caught_by="evaluation_oracle", settings=("evaluation.batch_size=1",))
def mean_of_batch_means(session: Session) -> None:
    """Average the loss of each evaluation batch, then the averages."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        parts = [evaluate(evaluated, rows[at : at + size], size) for at in range(0, len(rows), size)]
        return sum(loss for loss, _ in parts) / len(parts), sum(tokens for _, tokens in parts)

    session.evaluate = changed


@bug("X79", "The last batch is not evaluated", caught_by="evaluation_oracle", settings=("evaluation.batch_size=1",))
def last_batch_dropped(session: Session) -> None:
    """Leave out the last evaluation batch."""
    evaluate = session.evaluate
    session.evaluate = lambda evaluated, rows, size: evaluate(evaluated, rows[:-size] or rows[:1], size)


@bug("X80", "The base is evaluated", caught_by="evaluation_oracle")
def adapters_off_in_evaluation(session: Session) -> None:
    """Evaluate with the adapters disabled."""
    evaluate = session.evaluate

    def changed(*args: Any) -> Any:
        with session.model.disable_adapter():
            return evaluate(*args)

    session.evaluate = changed


@bug("X81", "Evaluation changes the weights", caught_by="evaluation_mode")
def training_step_in_evaluation(session: Session) -> None:
    """Scale the trained weights by 0.999 in each evaluation, as an average applied in place would."""
    import torch

    evaluate = session.evaluate

    def changed(*args: Any) -> Any:
        result = evaluate(*args)
        with torch.no_grad():
            for group in session.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.999)
        return result

    session.evaluate = changed


@bug("X94", "An evaluation's sum divided by its rows", caught_by=("perplexity_below_vocabulary", "evaluation_oracle"))
def divided_by_rows(session: Session) -> None:
    """Divide the evaluation's sum over tokens by the number of rows: a perplexity that no model can have."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        loss, tokens = evaluate(evaluated, rows, size)
        return loss * tokens / len(rows), tokens

    session.evaluate = changed


@bug("X98", "An evaluation in the middle left out", caught_by="evaluation_oracle", settings=("evaluation.at=[2]",))
def one_left_out(session: Session) -> None:
    """Leave out the evaluations in the middle of the run."""
    left_out = session.run.evaluation.model_copy(update={"at": []})
    session.run = session.run.model_copy(update={"evaluation": left_out})


@bug("X99", "Evaluation from fp16 logits", caught_by="evaluation_oracle", settings=("training.precision=fp32",))
def logits_in_fp16(session: Session) -> None:
    """Cast the head's output to fp16 and back while evaluating."""
    # only in fp32: logits in bf16 or fp16 come back from fp16 bit for bit
    head = session.model.get_output_embeddings()
    head.register_forward_hook(lambda module, _args, out: out if module.training else out.half().float())


@bug("X139", "Evaluations take the other split's rows", caught_by="heldout_is_disjoint")
def rows_of_the_other_split(session: Session) -> None:
    """Evaluate training rows as the held-out split and held-out rows as the training split."""
    batches: Any = session.batches
    fixed = batches.fixed
    batches.fixed = lambda split: fixed("probe" if split == "heldout" else "heldout")


def _round_logits(module: Any, _args: Any, out: Any) -> Any:
    """Round the logits to bf16 in eval mode."""
    import torch

    if not module.training and not torch.is_grad_enabled() and out.logits.dtype == torch.float32:
        out.logits = out.logits.bfloat16()
    return out


@bug(
    "U23",
    "Evaluation loss in bf16",
    caught_by="evaluation_oracle",
    source="thought up, not from a thread",
    cohort="unseen",
    settings=("training.precision=fp32",),
)
def evaluated_in_bf16(session: Session) -> None:
    """Round the logits to bf16 in eval mode before the loss is taken."""
    session.model.register_forward_hook(_round_logits)


@bug(
    "V30",
    "Evaluation is a mean of batch means",
    caught_by="evaluation_oracle",
    source="huggingface/transformers#39241",
    cohort="blind",
    settings=("evaluation.rows=4", "evaluation.batch_size=1"),
    must_say="The evaluation loss is not the mean over its supervised tokens: it depends on the batch size.",
)
def mean_of_means_over_batches(session: Session) -> None:
    """Average the batches' means in evaluation: tokens of short answers count for more."""
    evaluate = session.evaluate

    def changed(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
        parts = [evaluate(session, rows[at : at + batch_size], batch_size) for at in range(0, len(rows), batch_size)]
        return sum(loss for loss, _ in parts) / len(parts), sum(tokens for _, tokens in parts)

    session.evaluate = changed


@bug(
    "V31",
    "Evaluation counts the prompt too",
    caught_by="evaluation_oracle",
    cohort="blind",
    must_say="The evaluation loss or its number of tokens is not that of the rows' supervised tokens.",
)
def prompt_evaluated(session: Session) -> None:
    """Count the prompt's tokens in evaluation as if they were the answer's."""
    evaluate = session.evaluate
    session.evaluate = lambda session, rows, batch_size: evaluate(
        session, [replace(row, labels=row.input_ids) for row in rows], batch_size
    )


@bug(
    "V73",
    "Evaluation fills its last batch with rows that it has had",
    caught_by="evaluation_oracle",
    source="huggingface/accelerate#125, huggingface/transformers#16865",
    cohort="blind-second",
    settings=("evaluation.rows=3", "evaluation.batch_size=2"),
    must_say="The evaluation is not the mean over its rows' supervised tokens, or counts more tokens than they have.",
)
def last_batch_filled_up(session: Session) -> None:
    """Fill the last evaluation batch with the first rows, which count twice."""
    evaluate = session.evaluate

    def changed(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
        return evaluate(session, [*rows, *rows[: -len(rows) % batch_size]], batch_size)

    session.evaluate = changed


@bug(
    "V74",
    "Adapters are merged into the base for each evaluation",
    caught_by=("base_untouched", "evaluation_mode", "evaluation_oracle"),
    source="huggingface/trl#6688, OpenNMT/OpenNMT-py#2399",
    cohort="blind-second",
    must_say=(
        "The frozen base changed in the run, or an evaluation changes weights or is not that of base and adapters."
    ),
)
def merged_for_evaluation(session: Session) -> None:
    """Merge the adapters for each evaluation and unmerge them after it: the base is rounded to 4 bit twice."""
    evaluate = session.evaluate

    def changed(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
        for module in adapted_modules(session):
            module.merge()
        try:
            return evaluate(session, rows, batch_size)
        finally:
            for module in adapted_modules(session):
                module.unmerge()

    session.evaluate = changed


@bug(
    "W26",
    "The evaluation before training is a mean of batch means",
    caught_by="evaluation_oracle",
    cohort="unseen-second",
    settings=("evaluation.batch_size=1",),
)
def first_evaluation_a_mean_of_means(session: Session) -> None:
    """Average batch means in the first evaluation alone."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Any, size: int) -> tuple[float, int]:
        session.evaluate = evaluate
        parts = [evaluate(evaluated, rows[at : at + size], size) for at in range(0, len(rows), size)]
        return sum(loss for loss, _ in parts) / len(parts), sum(tokens for _, tokens in parts)

    session.evaluate = changed


@bug("W27", "The loss of the evaluation before is reported", caught_by="evaluation_oracle", cohort="unseen-second")
def evaluation_reported_late(session: Session) -> None:
    """Report each evaluation's loss one evaluation late."""
    evaluate, held = session.evaluate, list[float]()

    def changed(*args: Any) -> tuple[float, int]:
        loss, tokens = evaluate(*args)
        held.append(loss)
        return held[max(0, len(held) - 2)], tokens

    session.evaluate = changed


@bug(
    "W28",
    "Evaluations take the weights of the step before",
    caught_by=("evaluation_oracle", "evaluation_mode"),
    cohort="unseen-second",
)
def older_weights_evaluated(session: Session) -> None:
    """Put the weights before the last step in place for each evaluation, and the trained ones back after it."""
    import torch

    evaluate, step = session.evaluate, session.optimizer.step
    parameters, older = session.optimizer.param_groups[0]["params"], list[Any]()

    def remember(*args: Any, **kwargs: Any) -> Any:
        older[:] = [parameter.detach().clone() for parameter in parameters]
        return step(*args, **kwargs)

    def changed(*args: Any) -> tuple[float, int]:
        trained = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter, old in zip(parameters, older or trained, strict=True):
                parameter.copy_(old)
            result = evaluate(*args)
            for parameter, own in zip(parameters, trained, strict=True):
                parameter.copy_(own)
        return result

    session.optimizer.step, session.evaluate = remember, changed


@bug(
    "X141",
    "Eval mode left on by an evaluation in the middle",
    caught_by="state_in_training",
    settings=("evaluation.at=[3]",),
)
def eval_mode_left_on(session: Session) -> None:
    """Leave the model in eval mode after an evaluation in the middle, until the trainer sets train mode again."""
    after_evaluation_in_the_middle(session, lambda: session.model.eval())


@bug(
    "Y40",
    "An evaluation in the middle takes the first row alone",
    caught_by="evaluation_oracle",
    source="thought up; limit_val_batches",
    cohort="unseen-third",
    settings=("evaluation.at=[2]",),
)
def first_row_in_the_middle(session: Session) -> None:
    """Evaluate the first row alone between steps; before and after the training all of them."""
    evaluate, calls = session.evaluate, [0]

    def changed(evaluated: Session, rows: Sequence[Tokens], size: int) -> tuple[float, int]:
        calls[0] += 1
        return evaluate(evaluated, rows[:1] if calls[0] == 2 else rows, size)

    session.evaluate = changed


@bug(
    "Y41",
    "One adapter's dropout stays on in evaluations",
    caught_by=("evaluation_mode", "evaluation_oracle"),
    cohort="unseen-third",
    settings=("lora.dropout=0.1",),
)
def dropout_on_in_evaluations(session: Session) -> None:
    """Keep the first adapter's dropout in train mode throughout."""
    [drop] = adapted_modules(session)[0].lora_dropout.values()
    drop.train(True)
    drop.train = lambda mode=True: drop


@bug(
    "Y42",
    "Held-out rows have lost their end token",
    caught_by=("tokens_match_template", "evaluation_oracle", "heldout_is_disjoint"),
    cohort="unseen-third",
    settings=("evaluation.splits=[probe, heldout]",),
)
def heldout_without_end(session: Session) -> None:
    """Leave the end token out of the held-out rows alone."""
    session.batches.heldout = [
        replace(row, input_ids=row.input_ids[:-1], labels=row.labels[:-1]) for row in session.batches.heldout
    ]


@bug(
    "Y43",
    "The shortest held-out rows are evaluated",
    caught_by=("heldout_is_disjoint", "evaluation_oracle", "row_order"),
    source="thought up; a sampler that groups by length",
    cohort="unseen-third",
    settings=("evaluation.splits=[probe, heldout]",),
)
def shortest_rows_evaluated(session: Session) -> None:
    """Sort the held-out rows by their length: the first ones, which are evaluated, are the shortest."""
    session.batches.heldout = sorted(session.batches.heldout, key=lambda row: len(row.input_ids))


@bug(
    "Y44",
    "Evaluations leave long rows' ends out",
    caught_by=("evaluation_oracle", "heldout_is_disjoint"),
    cohort="unseen-third",
)
def evaluated_rows_truncated(session: Session) -> None:
    """Cut the rows of an evaluation at 120 tokens; training has all of them."""
    evaluate = session.evaluate

    def changed(evaluated: Session, rows: Sequence[Tokens], size: int) -> tuple[float, int]:
        cut = [replace(row, input_ids=row.input_ids[:120], labels=row.labels[:120]) for row in rows]
        return evaluate(evaluated, cut, size)

    session.evaluate = changed
