"""What several faults need: the model's parts, and a function wrapped in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from suite.training.session import Session


def decoder(session: Session) -> Any:
    """The decoder: embedding, layers, final norm."""
    return session.model.get_decoder()


def layers(session: Session) -> Any:
    """The decoder layers."""
    return decoder(session).layers


def lora_parameters(session: Session, side: str = "lora_") -> list[tuple[str, torch.nn.Parameter]]:
    """The adapter tensors, those of one side if asked."""
    return [(name, p) for name, p in session.model.named_parameters() if side in name]


def adapted_modules(session: Session) -> list[Any]:
    """The modules that carry an adapter."""
    return [module for module in session.model.modules() if isinstance(getattr(module, "scaling", None), dict)]


def change_columns(session: Session, change: Callable[[dict[str, list[list[int]]]], None]) -> None:
    """Every collated batch is changed in place by this function before it becomes tensors."""
    collate = session.batches.collate

    def changed(examples: Any, pad_token_id: int) -> dict[str, list[list[int]]]:
        columns = collate(examples, pad_token_id)
        change(columns)
        return columns

    session.batches.collate = changed


def change_window(session: Session, change: Callable[[int, Callable[[int], Any]], Any]) -> None:
    """Windows come from `change(step, window)`, where `window` is the session's own function."""
    window = session.batches.window
    session.batches.window = lambda step: change(step, window)  # type: ignore[method-assign]


def change_attention(change: Callable[..., Any]) -> None:
    """Attention by torch's sdpa is `change(attend, module, query, key, value, mask, **options)` from now on."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["sdpa"] = partial(change, ALL_ATTENTION_FUNCTIONS["sdpa"])


def before_step(session: Session, change: Callable[[], None]) -> None:
    """This is done just before every optimizer step."""
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        change()
        return step(*args, **kwargs)

    session.optimizer.step = changed


def after_step(session: Session, change: Callable[[], None]) -> None:
    """This is done just after every optimizer step."""
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        change()
        return result

    session.optimizer.step = changed


def after_first_evaluation(session: Session, change: Callable[[], None]) -> None:
    """This is done once, when the trainer's first evaluation is over."""
    evaluate = session.evaluate

    def changed(*args: Any) -> tuple[float, int]:
        result = evaluate(*args)
        if session.evaluate is changed:
            session.evaluate = evaluate
            change()
        return result

    session.evaluate = changed


def on_resume(session: Session, change: Callable[[], None]) -> None:
    """This is done when a checkpoint has been loaded; a run from the start is healthy."""
    load = session.scaler.load_state_dict

    def changed(state: Any) -> None:
        load(state)
        change()

    session.scaler.load_state_dict = changed
