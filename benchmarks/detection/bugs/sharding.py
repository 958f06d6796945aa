"""A model that FSDP2 shards over several processes: what is done to a shard as if it were the whole.

Every bug is injected on each rank; in a training that shards nothing none of them changes anything.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import before_step, change_ranks, counted_steps, on_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tunecheck.training.session import Session

SHARDED = ("parallel={engine: fsdp, processes: 2}", "fallback=none")

sharding_bug = partial(bug, cohort="parallel", settings=SHARDED)


@bug(
    "D31",
    "Clipped by the norm of the shard",
    caught_by=("ranks_report_alike", "gradient_norm_reported", "updates_match_adamw"),
    cohort="parallel",
    settings=(*SHARDED, "training.max_grad_norm=0.1"),
)
def clipped_by_shard(session: Session) -> None:
    """Take the norm of what this rank holds, and scale that by it."""
    from tunecheck.training import native

    loop: Any = native
    clip = loop.clip_gradients

    def changed(parameters: list[Any], limit: float | None) -> Any:
        parts = [_Part(p.grad.to_local()) for p in parameters if p.grad is not None]
        return clip(parts, limit)

    if session.ranks.sharded is not None:
        loop.clip_gradients = changed


class _Part:
    """A parameter of which clipping sees the gradient alone."""

    def __init__(self, gradient: Any) -> None:
        self.grad = gradient


@bug(
    "D32",
    "The optimizer's state is saved from one shard",
    caught_by="resume_equals",
    cohort="parallel",
    settings=(*SHARDED, "probes.resume_from=3"),
)
def state_of_one_shard(session: Session) -> None:
    """Fill the rows of the other ranks with those of the writing one."""
    from tunecheck.training import checkpoint

    module: Any = checkpoint
    module.whole = _as_if_whole


def _as_if_whole(tensor: Any) -> torch.Tensor:
    import torch

    if not hasattr(tensor, "to_local") or not tensor.dim():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]
    part = tensor.to_local()
    return torch.cat([part] * tensor.device_mesh.size())[: len(tensor)]


@sharding_bug("D33", "One layer's gradients are not reduced", caught_by="accumulation_oracle")
def one_layer_left_out(session: Session) -> None:
    """Take this rank's own gradients for those of all, in the first layer."""
    _reduce_by(session, lambda layers: layers[:1], _keep_own)


@sharding_bug(
    "D34", "Gradients are reduced in bf16 where fp32 is declared", caught_by=("accumulation_oracle", "weight_gradients")
)
def reduced_in_bf16(session: Session) -> None:
    """Round every gradient to bf16 before it is reduced, as MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) does."""
    import torch

    def rounded(reduce: Callable[..., Any], output: Any, given: Any, **others: Any) -> Any:
        return reduce(output, given.copy_(given.to(torch.bfloat16)), **others)

    _reduce_by(session, lambda layers: [*layers, session.model], rounded)


@sharding_bug("D35", "Gradients of shards are summed, not averaged", caught_by="accumulation_oracle")
def shards_summed(session: Session) -> None:
    """Reduce what is not divided by the number of ranks."""
    count = session.ranks.count

    def summed(reduce: Callable[..., Any], output: Any, given: Any, **others: Any) -> Any:
        return reduce(output, given.mul_(count), **others)

    _reduce_by(session, lambda layers: [*layers, session.model], summed)


@sharding_bug(
    "D36",
    "Every second window ends without a reduction",
    caught_by=("updates_match_adamw", "trainable_moved", "finite"),
)
def no_sync_too_long(session: Session) -> None:
    """Leave set_requires_gradient_sync(False) on in the last micro-batch, too."""
    at = counted_steps(session)
    change_ranks(session, summing=lambda healthy, last: healthy.summing(last and at[0] % 2 == 0))


@sharding_bug(
    "D37",
    "What is saved is one rank's shards",
    caught_by=("adapter_round_trip", "adapters_applied"),
)
def saved_from_one_rank(session: Session) -> None:
    """Write zeros where other ranks hold the rows."""
    import torch

    def save(session: Session, folder: Any) -> None:
        if session.ranks.rank == 0:
            state = {name: _with_zeros(tensor, torch) for name, tensor in session.model.state_dict().items()}
            session.model.save_pretrained(folder, state_dict=state)
        session.ranks.wait()

    if session.ranks.sharded is not None:
        session.save_adapter = save


def _with_zeros(tensor: Any, torch: Any) -> Any:
    if not hasattr(tensor, "to_local"):
        return tensor
    part = tensor.to_local()
    return torch.cat([part, part.new_zeros(len(tensor) - len(part), *part.shape[1:])])


@sharding_bug("D38", "Parameters stay gathered after the backward pass", caught_by="shards_even")
def never_resharded(session: Session) -> None:
    """Reshard after no pass: the next one computes with what was gathered before the optimizer's step."""
    if session.ranks.sharded is not None:
        session.model.set_reshard_after_forward(False)
        session.model.set_reshard_after_backward(False)


@sharding_bug("D39", "One rank's shards leave a step out", caught_by="updates_match_adamw")
@on_rank(1)
def shards_leave_a_step_out(session: Session) -> None:
    """Put rank 1's shards back after its third step, as when it alone has seen an overflow."""
    at = counted_steps(session)
    parts = [
        p.to_local() for group in session.optimizer.param_groups for p in group["params"] if hasattr(p, "to_local")
    ]
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        kept = [part.detach().clone() for part in parts]
        result = step(*args, **kwargs)
        if at[0] == 2:
            for part, before in zip(parts, kept, strict=True):
                part.detach().copy_(before)
        return result

    session.optimizer.step = changed


@sharding_bug("D40", "One rank's rate is another", caught_by=("updates_match_adamw", "ranks_report_alike"))
@on_rank(1)
def rate_of_one_rank(session: Session) -> None:
    """Double the rate on rank 1 for the optimizer's step alone."""

    def double() -> None:
        for group in session.optimizer.param_groups:
            group["lr"] *= 2

    before_step(session, double)


def _keep_own(reduce: Callable[..., Any], output: Any, given: Any, *, group: Any, **others: Any) -> Any:
    reduce(output.clone(), given.clone(), group=group, **others)
    output.copy_(given.chunk(group.size())[group.rank()])


def _reduce_by(session: Session, modules: Callable[[list[Any]], list[Any]], change: Callable[..., Any]) -> None:
    """Have these of the model's layers reduce their gradients by `change`, which is given FSDP2's own function."""
    if session.ranks.sharded is None:
        return
    for module in modules(list(session.model.get_decoder().layers)):
        for group in module._get_fsdp_state()._fsdp_param_groups:
            healthy = group._reduce_scatter_comm
            group._reduce_scatter_comm = _Reduce(healthy, change)


class _Reduce:
    """FSDP2's exchange of gradients, changed."""

    def __init__(self, healthy: Any, change: Callable[..., Any]) -> None:
        self._healthy, self._change = healthy, change

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        return self._healthy.allocate(*args, **kwargs)

    def __call__(self, output_tensor: Any, input_tensor: Any, **others: Any) -> Any:
        return self._change(
            lambda output, given, **rest: self._healthy(output_tensor=output, input_tensor=given, **rest),
            output_tensor,
            input_tensor,
            **others,
        )
