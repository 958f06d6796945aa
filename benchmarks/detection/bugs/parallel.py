"""Several processes that train together: shares, seeds, averages, reports and files that are one rank's own.

Every bug is injected on each rank; in a training of one process none of them changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import (
    before_step,
    change_ranks,
    change_window,
    counted_steps,
    lora_parameters,
    on_rank,
)

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session

TWO = ("parallel={processes: 2}", "fallback=none")
DROPOUT = (*TWO, "lora.dropout=0.1")
ODD_EVALUATION = (*TWO, "evaluation.rows=5", "evaluation.batch_size=2")
MOMENT_SECONDS = 0.3

parallel_bug = partial(bug, cohort="parallel", settings=TWO)


@parallel_bug(
    "D01",
    "The mean over ranks of each rank's mean loss",
    caught_by=("loss_oracle", "accumulation_oracle"),
    source="huggingface/transformers#34242, huggingface/trl#2175",
)
def mean_of_rank_means(session: Session) -> None:
    """Divide each rank's losses by its own tokens, as if every rank had as many."""
    loss, ranks, own = session.loss, session.ranks, [1]

    def counted(step: int, window: Callable[[int], Any]) -> Any:
        batches = window(step)
        own[0] = sum(batch.supervised_tokens for batch in ranks.share(batches))
        return batches

    def changed(logits: torch.Tensor, labels: torch.Tensor, tokens: int) -> torch.Tensor:
        return loss(logits, labels, own[0] * ranks.count if logits.requires_grad and ranks.count > 1 else tokens)

    change_window(session, counted)
    session.loss = changed


@parallel_bug("D02", "The gradient divided by the number of ranks twice", caught_by="accumulation_oracle")
def divided_twice(session: Session) -> None:
    """Sum the loss over the tokens of all ranks and let DDP take the mean of that."""
    scale = session.scaler.scale
    session.scaler.scale = lambda loss: scale(loss / session.ranks.count)


@parallel_bug(
    "D03",
    "One tensor's gradient is not averaged",
    caught_by="replicas_equal",
    source="pytorch/pytorch#22049",
)
def one_tensor_left_out(session: Session) -> None:
    """Have DDP ignore the first lora_B."""
    from torch.nn.parallel import DistributedDataParallel

    name = lora_parameters(session, "lora_B")[0][0]
    kind: Any = DistributedDataParallel
    kind._set_params_and_buffers_to_ignore_for_model(session.model, [name])
    session.ranks.distribute(session.model, session.run)


@parallel_bug("D04", "Gradients are never averaged", caught_by="replicas_equal")
def always_no_sync(session: Session) -> None:
    """Leave no_sync on for a window's last micro-batch, too."""
    change_ranks(session, summing=lambda healthy, last: healthy.summing(False))


@parallel_bug("D05", "no_sync one window too long", caught_by="replicas_equal")
def no_sync_every_second_window(session: Session) -> None:
    """Average the gradients of every second window only, as an accumulation counter that is off does."""
    at = counted_steps(session)
    change_ranks(session, summing=lambda healthy, last: healthy.summing(last and at[0] % 2 == 0))


@parallel_bug("D06", "The wrapped model is not the one that is called", caught_by="replicas_equal")
def unwrapped(session: Session) -> None:
    """Call the module inside of DDP, whose backward pass averages nothing."""
    change_ranks(session, in_training=lambda healthy, model: model)


@parallel_bug("D07", "Gradients are averaged after the first micro-batch", caught_by="replicas_equal")
def averaged_too_early(session: Session) -> None:
    """Leave no_sync for a window's first micro-batch instead of its last."""
    change_ranks(session, summing=lambda healthy, last: healthy.summing(not last))


@parallel_bug(
    "D08",
    "Every epoch in the first one's order",
    caught_by="row_order",
    source="pytorch/pytorch#25162",
)
def no_set_epoch(session: Session) -> None:
    """Start over with the first epoch's windows, as a DistributedSampler without set_epoch does."""
    change_window(session, lambda step, window: window(step % 3))


@parallel_bug("D09", "Every rank the same shard", caught_by=("rows_trained_once", "row_order"))
def same_shard(session: Session) -> None:
    """Give every rank the first rank's micro-batches."""
    change_ranks(session, share=lambda healthy, items: list(items[:: healthy.count]))


@parallel_bug("D10", "Shards overlap", caught_by=("rows_trained_once", "row_order"))
def shards_overlap(session: Session) -> None:
    """Begin each further rank's last micro-batch a place too early."""

    def share(healthy: Any, items: Any) -> list[Any]:
        own = healthy.share(items)
        return [*own[:-1], items[0]] if healthy.rank else own

    change_ranks(session, share=share)


@parallel_bug("D11", "Each rank shuffles by a seed of its own", caught_by="row_order")
@on_rank(1)
def shuffled_by_rank(session: Session) -> None:
    """Let rank 1 take its rows from another permutation."""
    change_window(session, lambda step, window: window(step + 5))


@bug(
    "D12",
    "Every rank's dropout is seeded alike",
    caught_by="dropout_differs_by_rank",
    cohort="parallel",
    settings=DROPOUT,
    source="huggingface/accelerate#2016",
)
def seeded_alike(session: Session) -> None:
    """Seed torch with the run's seed on every rank, after the model is made."""
    import torch

    torch.manual_seed(session.run.training.seed)


@parallel_bug("D13", "Each rank draws weights of its own", caught_by="replicas_equal")
@on_rank(1)
def weights_unlike(session: Session) -> None:
    """Draw A anew on rank 1 after the start was broadcast."""
    import torch

    torch.manual_seed(1)
    for _, parameter in lora_parameters(session, "lora_A"):
        torch.nn.init.kaiming_uniform_(parameter.data, a=5**0.5)


@parallel_bug("D14", "A frozen weight differs on one rank", caught_by="replicas_equal")
@on_rank(1)
def frozen_weight_unlike(session: Session) -> None:
    """Change one element of rank 1's final norm."""
    session.model.get_decoder().norm.weight.data[0] += 0.01


@parallel_bug("D15", "Only one rank's loss is reported", caught_by=("ranks_report_alike", "loss_oracle"))
def own_loss_reported(session: Session) -> None:
    """Report the mean over this rank's own rows."""

    def total(healthy: Any, value: Any) -> Any:
        return healthy.total(value) if isinstance(value, int) else value * healthy.count

    change_ranks(session, total=total)


@parallel_bug("D16", "The evaluation is each rank's own", caught_by=("evaluation_oracle", "ranks_report_alike"))
def own_evaluation(session: Session) -> None:
    """Report the metric of a rank's own part of the rows."""
    _change_evaluation(session, lambda own, of_all: own)


@bug(
    "D17",
    "The evaluation is the mean of the ranks' means",
    caught_by="evaluation_oracle",
    cohort="parallel",
    settings=ODD_EVALUATION,
)
def mean_of_evaluations(session: Session) -> None:
    """Average the ranks' mean losses, whatever their numbers of tokens."""
    _change_evaluation(
        session, lambda own, of_all: (sum(loss for loss, _ in of_all) / len(of_all), sum(n for _, n in of_all))
    )


def _change_evaluation(session: Session, change: Callable[..., tuple[float, int]]) -> None:
    """Evaluate each rank's part by itself; report what `change` makes of this rank's mean and of all means."""
    from tunecheck.training.native import evaluate
    from tunecheck.training.ranks import Ranks

    ranks = session.ranks

    def changed(session: Session, rows: Any, batch_size: int) -> tuple[float, int]:
        session.ranks = Ranks()
        try:
            own = evaluate(session, ranks.share(rows), batch_size)
        finally:
            session.ranks = ranks
        return change(own, ranks.gathered(own))

    if ranks.count > 1:
        session.evaluate = changed


@bug(
    "D18",
    "Rows that fill up the last batch count twice",
    caught_by="evaluation_oracle",
    cohort="parallel",
    settings=ODD_EVALUATION,
    source="pytorch/pytorch#25162, huggingface/accelerate gather_for_metrics",
)
def padded_evaluation(session: Session) -> None:
    """Repeat the first rows so that every rank has as many, as DistributedSampler does, and count them."""
    evaluate, count = session.evaluate, session.ranks.count
    session.evaluate = lambda session, rows, size: evaluate(session, [*rows, *rows[: -len(rows) % count]], size)


@parallel_bug("D19", "Every rank writes what is saved", caught_by="saved_by_one_rank")
def all_ranks_save(session: Session) -> None:
    """Write the files on every rank, not on one."""
    session.save_adapter = lambda session, folder: session.model.save_pretrained(folder)


@parallel_bug("D20", "No barrier after saving", caught_by="saved_by_one_rank")
def no_barrier_after_saving(session: Session) -> None:
    """Save on rank 0 and go on at once on the others."""

    def save(session: Session, folder: Any) -> None:
        if session.ranks.rank == 0:
            time.sleep(MOMENT_SECONDS)
            session.model.save_pretrained(folder)

    session.save_adapter = save


@parallel_bug(
    "D21",
    "Clipping by the norm of one rank's part",
    caught_by=("gradient_norm_reported", "updates_match_adamw", "replicas_equal"),
)
def clipped_by_share(session: Session) -> None:
    """Take the norm of every so many tensors only, each rank of others, and clip all by that."""
    from tunecheck.training import native

    loop: Any = native
    clip, ranks = loop.clip_gradients, session.ranks

    def changed(parameters: list[torch.nn.Parameter], limit: float | None) -> Any:
        import torch

        norm = clip(ranks.share(parameters), None)
        if limit is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm

    if ranks.count > 1:
        loop.clip_gradients = changed


@parallel_bug("D22", "A buffer drifts apart", caught_by="replicas_equal")
def buffer_drifts(session: Session) -> None:
    """Change RoPE's frequencies on rank 1 before every optimizer step, and broadcast no buffers."""
    if session.ranks.count == 1:
        return
    session.ranks._replica.broadcast_buffers = False
    frequencies = next(buffer for name, buffer in session.model.named_buffers() if name.endswith("inv_freq"))
    before_step(session, lambda: frequencies.mul_(1 + 0.001 * session.ranks.rank))


@parallel_bug("D23", "One rank leaves a step out", caught_by=("replicas_equal", "steps_applied"))
@on_rank(1)
def rank_leaves_a_step_out(session: Session) -> None:
    """Do nothing in rank 1's third optimizer step, as after an overflow that it alone has seen."""
    at, step = counted_steps(session), session.optimizer.step
    session.optimizer.step = lambda *args, **kwargs: None if at[0] == 2 else step(*args, **kwargs)


@parallel_bug(
    "D24",
    "The schedule advances once a rank",
    caught_by="learning_rate_trace",
    source="huggingface/accelerate#963, huggingface/diffusers#3954",
)
def schedule_once_a_rank(session: Session) -> None:
    """Step the scheduler as often as there are ranks."""
    step = session.scheduler.step

    def changed() -> None:
        for _ in range(session.ranks.count):
            step()

    session.scheduler.step = changed


@bug(
    "D25",
    "A resumed training has one rank's random state on all",
    caught_by=("resume_equals", "dropout_differs_by_rank"),
    cohort="parallel",
    settings=(*DROPOUT, "probes.resume_from=3"),
)
def one_random_state_saved(session: Session) -> None:
    """Save the random state of the last rank under the name of all."""
    from tunecheck.training import checkpoint

    module: Any = checkpoint
    module._of_rank = lambda name, rank: name


@parallel_bug("D26", "Gradients are averaged in bf16", caught_by=("accumulation_oracle", "weight_gradients"))
def averaged_in_bf16(session: Session) -> None:
    """Compress the gradients before they are exchanged, as DDP's bf16_compress_hook does on a GPU."""
    import torch

    _reduce_by(session, lambda gradients: (gradients / session.ranks.count).to(torch.bfloat16))


@parallel_bug("D27", "Gradients are summed, not averaged", caught_by="accumulation_oracle")
def summed_not_averaged(session: Session) -> None:
    """Exchange gradients by a hook that leaves out the division."""
    _reduce_by(session, lambda gradients: gradients)


def _reduce_by(session: Session, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have DDP sum what `change` makes of a bucket's gradients."""
    import torch.distributed as distributed

    def hook(_state, bucket):  # type: ignore[no-untyped-def]  # DDP accepts no postponed annotations
        gradients = bucket.buffer()
        future = distributed.all_reduce(change(gradients), async_op=True).get_future()
        return future.then(lambda done: gradients.copy_(done.value()[0]))

    if session.ranks.count > 1:
        session.ranks._replica.register_comm_hook(None, hook)


@bug("D28", "One rank trains in eval mode", caught_by="state_in_training", cohort="parallel", settings=DROPOUT)
@on_rank(1)
def rank_in_eval_mode(session: Session) -> None:
    """Turn train mode off on rank 1 before every window."""

    def changed(step: int, window: Callable[[int], Any]) -> Any:
        session.model.eval()
        return window(step)

    change_window(session, changed)


@parallel_bug("D29", "Gradients stay on one rank", caught_by="gradients_cleared")
@on_rank(1)
def gradients_stay_on_a_rank(session: Session) -> None:
    """Turn rank 1's zero_grad into a no-op."""
    session.optimizer.zero_grad = lambda *args, **kwargs: None


@parallel_bug("D30", "Token counts of the first rank", caught_by=("supervised_tokens", "loss_oracle"))
def first_rank_counts(session: Session) -> None:
    """Take rank 0's token count, times the ranks, for that of all."""

    def total(healthy: Any, value: Any) -> Any:
        return healthy.gathered(value)[0] * healthy.count if isinstance(value, int) else healthy.total(value)

    change_ranks(session, total=total)
