"""Memory that is kept, and memory savings that do not happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import layers

if TYPE_CHECKING:
    from suite.training.session import Session

KEPT: list[Any] = []
"""A list of the module, as bugs of this class have it."""


def losses_kept_with_their_graph(session: Session) -> None:
    """Every loss is kept, graph and all."""
    inner = session.loss

    def loss(*args: Any) -> torch.Tensor:
        KEPT.append(inner(*args))
        return KEPT[-1]  # type: ignore[no-any-return]

    session.loss = loss


def four_kib_kept_a_step(session: Session) -> None:
    """A hook keeps 4 KiB of every forward pass: too small for any ceiling, fatal in a long run."""
    kept: list[torch.Tensor] = []
    session.model.register_forward_hook(lambda *_: kept.append(torch.zeros(1024)))


def checkpointing_off(session: Session) -> None:
    """Gradient checkpointing is asked for and never reaches the layers."""
    for layer in layers(session):
        layer.gradient_checkpointing = False


def checkpointing_uninvited(session: Session) -> None:
    """Gradient checkpointing is on though nobody asked: a third slower."""
    session.model.gradient_checkpointing_enable({"use_reentrant": False})


def evaluation_keeps_logits(session: Session) -> None:
    """Evaluation collects the logits of every batch."""
    kept: list[torch.Tensor] = []
    session.model.register_forward_hook(lambda m, _a, out: None if m.training else kept.append(out.logits.clone()))


def traceback_keeps_the_session(session: Session) -> None:
    """An error of a recovery is kept, and through its traceback every frame's variables."""
    try:
        raise MemoryError("recovered from")
    except MemoryError as error:
        KEPT.append(error)


def model_kept_after_the_run(session: Session) -> None:
    """A global list keeps the model."""
    KEPT.append(session.model)


def checkpointed_inputs_in_bf16(session: Session) -> None:
    """What a checkpointed layer's attention is computed again from was kept in bf16."""
    for layer in layers(session):

        def rounded(_module: Any, args: Any) -> Any:
            recomputed = torch._C._current_graph_task_id() != -1
            return (args[0].bfloat16().to(args[0].dtype), *args[1:]) if recomputed else args

        layer.input_layernorm.register_forward_pre_hook(rounded)  # the layer's own hooks are not run again


def loss_in_one_piece(session: Session) -> None:
    """The loss is taken of all logits at once, though the run asks for chunks."""
    session.run = session.run.model_copy(
        update={"training": session.run.training.model_copy(update={"loss_chunk_tokens": None})}
    )
