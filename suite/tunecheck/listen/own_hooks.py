"""Noise that a hook of the script's own adds to the embeddings in training (NEFTune): no configuration declares it."""

import dis
import inspect
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tunecheck.listen.user_code import code_of
from tunecheck.training.restore import model_mode, random_state, uncached, without_dropout, without_repacking

TOKENS = 16


def noise_by_hooks(model: Any) -> str:
    """Return which hook of the script's own adds noise to the embeddings in training alone; "" where none does.

    What changes the model's function in eval mode, too, or behind the embeddings, is judged as any other change of it.
    """
    embedding = model.get_input_embeddings()
    for hook in (*embedding._forward_pre_hooks.values(), *embedding._forward_hooks.values()):
        code = code_of("hook", hook)
        if code is None or not _returns_something(hook):  # looks on, and changes nothing
            continue
        if _varies(model, training=True) and not _varies(model, training=False):
            return f"the script's hook {code.name} ({Path(code.file).name}:{code.line}) adds noise to the embeddings"
    return ""


def _returns_something(hook: Any) -> bool:
    """Return whether a hook can return anything but None."""
    code = getattr(inspect.unwrap(hook), "__code__", None)
    if code is None:  # an object that is called
        return True
    steps = list(dis.get_instructions(code))
    returned = {step.argval for step in steps if step.opname == "RETURN_CONST"}  # of Python 3.12 and 3.13
    for before, step in itertools.pairwise(steps):
        if step.opname == "RETURN_VALUE":
            returned.add(before.argval if before.opname == "LOAD_CONST" else "something")
    return bool(returned - {None})


def _varies(model: Any, *, training: bool) -> bool:
    """Return whether two equal forward passes differ although nothing is dropped."""
    import torch

    ids = torch.arange(TOKENS, device=model.device)[None] % len(model.get_input_embeddings().weight)
    alike = (random_state(model.device), without_repacking(model), without_dropout(model), model_mode(model, training))
    with ExitStack() as stack, torch.no_grad():
        for context in alike:
            stack.enter_context(context)
        first, second = (uncached(model, input_ids=ids).logits for _ in range(2))
    return not torch.equal(first, second)
