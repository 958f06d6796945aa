"""Tensors that stay alive: during training neither their number nor their bytes may grow."""

from bisect import bisect
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tunecheck.core.evidence import LiveTensors
from tunecheck.core.premises import Premise
from tunecheck.probes.reference.loss_graph import graph_of
from tunecheck.probes.reference.measures import address, live_storages, live_tensors, living
from tunecheck.probes.reference.witness import Witness
from tunecheck.training.events import Probe
from tunecheck.training.session import Session

WARM_UP_STEPS = 3
"""Optimizer state and caches appear in the first steps; the followed updates of another probe come and go."""
ASKING = ("make_inputs_require_grads", "make_inputs_require_grad")
"""Hooks by which transformers and peft ask for the gradient of a checkpointed model's input."""
MOST_FUNCTIONS = 50_000
"""Functions of autograd's graphs that are looked at."""
TREND_STEPS = 50
"""From so many steps on, a trend is sampled."""
TREND_WARM_UP_STEPS, TREND_SAMPLES = 20, 10
"""Ten samples that all rise are a trend by chance once in 25,000 runs; eight would just do."""


class LiveTensorProbe(Probe[LiveTensors]):
    """Counts live tensors at the same point of a few steps: each count walks the interpreter's objects."""

    def start(self, session: Session) -> None:
        self._steps = sampled_steps(session.run.training.max_steps)
        self._ends: list[int] = []
        """Number that autograd gives its next function at each step's end."""

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        with torch.enable_grad():
            self._ends.append(torch.ones((), requires_grad=True).neg().grad_fn._sequence_nr())  # type: ignore[union-attr]
        if step in self._steps:
            hooks = _hooks(session)
            if not session.run.holds(Premise.STATE_DECLARED):
                self.emit(LiveTensors(step=step, hooks=hooks, **_of_anothers(session, self._ends)))
                return
            tensors, size = live_tensors(session.device.type)
            self.emit(LiveTensors(step=step, tensors=tensors, bytes=size, hooks=hooks))


def _of_anothers(session: Session, ends: list[int]) -> dict[str, int]:
    """Return what is alive in a training of another's, less what comes with tensors that begin to learn late.

    They may be another model's, as a critic's. An optimizer may keep a history, too, as L-BFGS does.
    """
    things: list[Any] = living((torch.Tensor, torch.optim.Optimizer, Witness))
    model = session.model
    known = [thing for thing in things if isinstance(thing, torch.Tensor)]
    others = [thing.state for thing in things if isinstance(thing, torch.optim.Optimizer)]
    # of a tensor that several optimizers hold, one state: a script may keep optimizers in a list
    states = {key: state for each in (*others, session.optimizer.state) for key, state in each.items()}
    held = tree_leaves([*session.optimizer.state.values(), *states.values()])
    held += [copy for thing in things if isinstance(thing, Witness) for copy in thing.copies()]  # our own
    own = [leaf for leaf in held if isinstance(leaf, torch.Tensor) and leaf.device == session.device]
    leaves = (tensor for tensor in (*known, *model.parameters()) if tensor.is_leaf and tensor.requires_grad)
    addresses = {address(tensor) for tensor in (*own, *(p.grad for p in leaves if p.grad is not None))}
    alive = {at: size for at, size in live_storages(session.device.type, known).items() if at not in addresses}
    parameters = [p for _, p in model.named_parameters(remove_duplicate=False) if p.is_floating_point()]
    buffers = sum(b.is_floating_point() for b in model.buffers())
    found, learnt = Counter(alive.values()), [p for p in parameters if p.requires_grad]
    whole, trained = _copies(parameters, found), _copies(learnt, found)
    copied = whole * (len(parameters) + buffers) + (trained - whole) * len(learnt)
    size, graphs = sum(alive.values()), len(_steps_in_graphs(known, ends))
    counts = {"tensors": len(alive), "bytes": size, "copies": trained, "copied": copied}
    return {**counts, "graphs": graphs, "learning": sum(map(bool, states.values()))}


def _steps_in_graphs(tensors: list[torch.Tensor], ends: list[int]) -> set[int]:
    """Return the steps before the last one whose functions are in a graph of these tensors, by their numbers."""
    begins: list[Any] = []
    for tensor in tensors:
        with suppress(RuntimeError):  # a view that was written to in place has none
            begins += [tensor.grad_fn] if tensor.requires_grad else []
    numbers = [function._sequence_nr() for function in islice(graph_of(begins), MOST_FUNCTIONS)]
    return {bisect(ends, number) for number in numbers if number < ends[-2:][0]}


def _copies(weights: list[torch.Tensor], found: Counter[int]) -> int:
    """Return how often storages of all these weights' sizes are among those that were found, themselves once."""
    wanted = Counter({address(weight): weight.untyped_storage().nbytes() for weight in weights}.values())
    return min((found[size] // number for size, number in wanted.items()), default=0)


def _hooks(session: Session) -> int:
    """Forward and backward hooks of all modules, and gradient hooks of the trainable tensors.

    Those that ask for an input's gradient are left out: a second one does nothing, and libraries register one more each
    time that they turn recomputation on again, as TRL does after the reference's pass.
    """
    held = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    tables = [getattr(module, kind) for module in session.model.modules() for kind in held]
    for parameter in (p for p in session.model.parameters() if p.requires_grad):
        tables += filter(None, (parameter._backward_hooks, parameter._post_accumulate_grad_hooks))
    return sum(getattr(hook, "__name__", "") not in ASKING for table in tables for hook in table.values())


def sampled_steps(max_steps: int) -> set[int]:
    """The steps after which live tensors are counted: one after the warm-up and the last one; more in a long run."""
    last = max_steps - 1
    if max_steps < TREND_STEPS:
        return {WARM_UP_STEPS, last}
    gap = (last - TREND_WARM_UP_STEPS) / (TREND_SAMPLES - 1)
    return {WARM_UP_STEPS, *(TREND_WARM_UP_STEPS + round(gap * number) for number in range(TREND_SAMPLES))}
