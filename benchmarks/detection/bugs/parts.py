"""What several bugs need: the model's parts, and functions wrapped in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from benchmarks.detection.bugs.bug import Inject
    from tunecheck.training.session import Session

RANDOM_WEIGHTS = ("model.sources=[{kind: random}]", "allow_random_weights=true")
"""For a tiny model of another shape than the trained one's, and for bugs that show in nearly uniform logits alone."""


def decoder(session: Session) -> Any:
    """Return the decoder: embedding, layers, final norm."""
    return session.model.get_decoder()


def layers(session: Session) -> Any:
    """Return the decoder layers."""
    return decoder(session).layers


def lora_parameters(session: Session, side: str = "lora_") -> list[tuple[str, torch.nn.Parameter]]:
    """Return the adapters' named tensors, all or those of one side (lora_A, lora_B)."""
    return [(name, p) for name, p in session.model.named_parameters() if side in name]


def adapted_modules(session: Session) -> list[Any]:
    """Return the modules that carry an adapter."""
    return [module for module in session.model.modules() if isinstance(getattr(module, "scaling", None), dict)]


def change_columns(session: Session, change: Callable[[dict[str, list[list[int]]]], None]) -> None:
    """Change every collated batch in place by this function before it becomes tensors."""
    collate = session.batches.collate

    def changed(examples: Any, pad_token_id: int) -> dict[str, list[list[int]]]:
        columns = collate(examples, pad_token_id)
        change(columns)
        return columns

    session.batches.collate = changed


def change_window(session: Session, change: Callable[[int, Callable[[int], Any]], Any]) -> None:
    """Replace the session's windows with `change(step, window)`, where `window` is its own function."""
    window = session.batches.window
    session.batches.window = lambda step: change(step, window)  # type: ignore[method-assign]


def change_attention(change: Callable[..., Any]) -> None:
    """Replace torch's sdpa attention with `change(attend, module, query, key, value, mask, **options)`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["sdpa"] = partial(change, ALL_ATTENTION_FUNCTIONS["sdpa"])


def before_step(session: Session, change: Callable[[], None]) -> None:
    """Call this just before every optimizer step."""
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        change()
        return step(*args, **kwargs)

    session.optimizer.step = changed


def after_step(session: Session, change: Callable[[], None]) -> None:
    """Call this just after every optimizer step."""
    step = session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        change()
        return result

    session.optimizer.step = changed


def after_first_evaluation(session: Session, change: Callable[[], None]) -> None:
    """Call this once, after the trainer's first evaluation."""
    evaluate = session.evaluate

    def changed(*args: Any) -> tuple[float, int]:
        result = evaluate(*args)
        if session.evaluate is changed:
            session.evaluate = evaluate
            change()
        return result

    session.evaluate = changed


def counted_steps(session: Session) -> list[int]:
    """Return a list whose only item is the number of the step that is being trained, -1 before the first."""
    at = [-1]

    def note(step: int, window: Callable[[int], Any]) -> Any:
        at[0] = step
        return window(step)

    change_window(session, note)
    return at


def after_evaluation_in_the_middle(session: Session, change: Callable[[], None]) -> None:
    """Call this once, after the first evaluation that comes between two steps; `evaluation.at` must name one."""
    evaluate, at = session.evaluate, counted_steps(session)

    def changed(*args: Any) -> tuple[float, int]:
        result = evaluate(*args)
        if session.evaluate is changed and at[0] >= 0:
            session.evaluate = evaluate
            change()
        return result

    session.evaluate = changed


def on_resume(session: Session, change: Callable[[], None]) -> None:
    """Call this when a checkpoint has been loaded; a run from the start stays healthy."""
    load = session.scaler.load_state_dict

    def changed(state: Any) -> None:
        load(state)
        change()

    session.scaler.load_state_dict = changed


def change_ranks(session: Session, **methods: Callable[..., Any]) -> None:
    """Replace methods of the session's ranks; each is called with the healthy ranks and the method's arguments."""
    healthy = session.ranks

    def calling(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda _self, *args, **kwargs: method(healthy, *args, **kwargs)

    kind: Any = type("ChangedRanks", (type(healthy),), {name: calling(method) for name, method in methods.items()})
    session.ranks = kind(*(getattr(healthy, field.name) for field in fields(healthy)))


def on_rank(rank: int) -> Callable[[Inject], Inject]:
    """Inject the decorated bug on this rank alone."""

    def only(inject: Inject) -> Inject:
        @wraps(inject)
        def injected(session: Session) -> None:
            if session.ranks.rank == rank and session.ranks.count > 1:
                inject(session)

        return injected

    return only
