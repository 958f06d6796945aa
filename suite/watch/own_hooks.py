"""Hooks of the script's own on its model: what takes part in a forward pass that no configuration declares."""

from __future__ import annotations

import dis
import inspect
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from suite.training.restore import model_mode, random_state, without_dropout, without_repacking
from suite.watch.user_code import code_of

BY_FUNCTION = ("forward_matches_architecture", "weights_in_use")
"""Checks that compute again what modules return."""
BY_VALUE = ("forward_deterministic", "rows_isolated", "loss_oracle", "accumulation_oracle")
"""Checks that make a pass twice, where it is to give the same."""
TOKENS = 16


def changed_by_hooks(model: Any) -> tuple[dict[str, str], bool]:
    """Return the checks that hooks of the script's own leave unjudged, with the reason, and whether these are random.

    A hook of forward passes that returns nothing looks on, and changes none.
    """
    for name, module in model.named_modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            code = code_of("hook", hook)
            if code is not None and _returns_something(hook):
                place = f"{code.name} ({Path(code.file).name}:{code.line})"
                why = f"the script's own hook {place} changes the forward pass of {name}"
                varies = _varies(model)
                return dict.fromkeys(BY_FUNCTION + (BY_VALUE if varies else ()), why), varies
    return {}, False


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


def _varies(model: Any) -> bool:
    """Return whether two equal forward passes of training differ although nothing is dropped."""
    import torch

    ids = torch.arange(TOKENS, device=model.device)[None] % len(model.get_input_embeddings().weight)
    alike = (random_state(model.device), without_repacking(model), without_dropout(model), model_mode(model, True))
    with ExitStack() as stack, torch.no_grad():
        for context in alike:
            stack.enter_context(context)
        first, second = (model(input_ids=ids, use_cache=False).logits for _ in range(2))
    return not torch.equal(first, second)
