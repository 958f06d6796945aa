"""Parts of a model on which its loss depends and that no gradient reaches: computed under no_grad, or detached.

The model is called once more with such parts changed. What only an unused head or an idle expert holds changes nothing
of what the loss is made of. A head of which a loss is computed is to be used. So is a pass that is made with gradients.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from tunecheck.core.evidence import CutOff
from tunecheck.core.premises import Premise
from tunecheck.models.layer_names import is_pretrained
from tunecheck.probes.reference.forwards import numbers_of
from tunecheck.probes.reference.loss_graph import DIFFERENCES, STRAIGHT, graph_of, saved, size_of
from tunecheck.probes.reference.measures import digest, living
from tunecheck.training.events import EARLY_STEPS, Probe
from tunecheck.training.hooks import tensors_of
from tunecheck.training.restore import as_found, kept_values, random_state, unprinted
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning

AT_STEP = 2
"""In which parts are changed: a part that starts behind a zero learns from the second step on."""
LEAST = 1e-4
"""Of the largest result, by which results change that depend on a part; those that do not differ by rounding."""
LOSSES = (
    *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "l1_loss", "smooth_l1_loss"),
)
FACTORS = "mat2", "other", "self"
"""What torch calls the tensors that a product's function keeps."""
PRODUCTS = "MmBackward0", "BmmBackward0"
OF_MARGINS = "LogSigmoidBackward0", "SoftplusBackward0", "ReluBackward0", "ClampMinBackward0"
SCALED = *STRAIGHT, "MulBackward0", "DivBackward0", "AddBackward0", "NegBackward0", *DIFFERENCES
"""Functions that may stand between a product of embeddings and the log-softmax of their scores."""
MOST_PASSES = 64
"""The last ones that are compared with the operands of scores."""
MOST_PARTS = 8
"""Modules that are changed one after the other, and then looked at while they are called."""


@dataclass(slots=True, eq=False)
class _Pass:
    args: Any
    given: Mapping[str, Any]
    differentiated: bool = False
    used: set[int] = field(default_factory=set)
    """Numbers of those of its results that a gradient arrives at which is not 0, where that is looked at."""


@dataclass(slots=True, eq=False)
class _Side:
    """A pass of a module, with gradients or without, whose results may be scored against another one's."""

    module: tuple[int, bool]
    """And whether it is in train mode, as it is not to measure something."""
    read: frozenset[object]
    rows: int
    made_by: frozenset[Any]


class CutOffProbe(Probe[CutOff]):
    """Looks for parameters without a gradient in any step, of models whose objective is their own."""

    def start(self, session: Session) -> None:
        held = {*map(id, tensors_of(session.optimizer))}
        alone = session.processes == 1 and not session.run.holds(Premise.CAUSAL_LM)
        trained = [pair for pair in learning(session.model) if id(pair[1]) in held]
        self._idle = dict(trained) if alone else {}
        """Tensors without a gradient so far."""
        self._digests: dict[str, object] = {}
        self._tensors = len(trained)
        self._entry = session.model if session.entry is None else session.entry
        self._lost: list[int] = []
        """Passes of each early step whose results get no gradient, beside others whose results do."""
        self._cut_off: set[str] = set()
        """Tensors of modules on which results depend."""
        self._left_out: set[str] = set()
        """Those on which a loss alone depends that is no part of the results."""
        self._called: set[str] = set()
        """Modules of these tensors that were called since."""
        self._losses: list[Any] = []
        """Graphs of the losses that a step computes, of whatever results."""
        self._alone, self._sides = alone, deque[_Side](maxlen=MOST_PASSES)
        self._one_sided = 0
        self._hidden: tuple[str, ...] = ()
        self._calls = Counter[int]()
        """Of modules in the step that is looked at."""
        self._replaced: tuple[str, ...] = ()
        self._leaves: dict[int, Any] = {}
        """What a step's losses are differentiated by."""

    def step_begin(self, session: Session, step: int, window: object) -> None:
        self._passes, self._looks_on = list[_Pass](), bool(self._idle) and step == AT_STEP
        if step == AT_STEP and session.processes == 1:
            self.hooks.backward(before=self._differentiated)
        if step < EARLY_STEPS:
            self.hooks.after(self._entry, self._returned, with_kwargs=True)
        self._constants: dict[int, tuple[_Pass, int]] = {}
        """Where results without a gradient lie, which a loss may be computed of."""
        self._results: list[tuple[str, torch.Tensor]] = []
        """Of modules without any gradient so far, what they gave in this step."""
        modules = dict(session.model.named_modules())
        if self._looks_on:
            for loss in LOSSES:
                self.hooks.function(functional, loss, after=self._computed)
            for name in _resting(session.model, self._idle.keys()):
                self.hooks.after(modules[name], partial(self._gave, name))
            self.hooks.before(None, self._reads, with_kwargs=True)
        for name in {*map(_module_of, self._cut_off | self._left_out)}:
            self.hooks.before(modules[name], lambda *_, name=name: self._called.add(name))

    def _differentiated(self, tensors: Any, *_: Any, **__: Any) -> None:
        nodes = [*graph_of([getattr(each, "grad_fn", None) for each in numbers_of([tensors])])]
        self._count_one_sided(nodes)
        factors = (saved(node, field) for node in nodes for field in FACTORS) if self._constants else ()
        places = {factor.data_ptr() for factor in factors if isinstance(factor, torch.Tensor)}
        for made, number in (self._constants[place] for place in places & self._constants.keys()):
            made.used.add(number)
        self._leaves |= {id(leaf): leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None}

    def _encoded(self, module: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        results = [each for each in numbers_of(out) if each.ndim > 0]
        if results and torch._C._current_graph_task_id() == -1:  # else a checkpoint makes it again
            tensors = [each for each in tree_leaves((args, given)) if isinstance(each, torch.Tensor)]
            tokens = [each for each in tensors if not each.is_floating_point()] or tensors  # a cache may be large
            read = frozenset(digest(each) for each in tokens if each.layout is torch.strided)
            made_by = frozenset(each.grad_fn for each in results) - {None}
            self._sides.append(_Side((id(module), module.training), read, len(results[0]), made_by))

    def _count_one_sided(self, nodes: Sequence[Any]) -> None:
        """Count passes that learn nothing and have as many rows as are scored; a stopped gradient is of equal rows."""
        sides, self._sides = [*self._sides], deque(maxlen=MOST_PASSES)
        scored = {*_rows_scored(nodes), *_rows_preferred(nodes)} if sides else set[int]()
        used = {*nodes}
        for module in {side.module for side in sides}:
            own = [side for side in sides if side.module == module]
            read = {side.read for side in own if side.made_by & used}
            still = [side.rows for side in own if not side.made_by & used and side.read not in read]
            if read and scored & {*still, sum(still)}:
                self._one_sided = max(self._one_sided, len(still))

    def _computed(self, loss: torch.Tensor, *_: Any, **__: Any) -> None:
        self._losses += [loss.grad_fn] if loss.requires_grad else []

    def _gave(self, name: str, _module: Any, _args: Any, out: Any) -> None:
        self._results += [(name, result) for result in numbers_of(out) if result.requires_grad]

    def _reads(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """Look for what was detached on its way to another module: it still lies at the same place."""
        self._calls[id(module)] += 1
        places = {value.data_ptr() for value in numbers_of([args, given]) if not value.requires_grad}
        cut = {f"{name}." for name, result in self._results if result.data_ptr() in places}
        self._cut_off |= {name for name in self._idle if name.startswith(tuple(cut))}

    def _returned(self, _module: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        if not torch.is_grad_enabled():
            return
        from_cache = given.get("past_key_values", given.get("cache")) is not None  # its newer name
        for earlier in self._passes if from_cache else ():
            earlier.differentiated = True  # by its keys and values
        if results := [(number, result) for number, result in enumerate(numbers_of(out)) if result.requires_grad]:
            self._passes.append(seen := _Pass(args, given))
            others = (pair for pair in enumerate(numbers_of(out)) if self._looks_on and not pair[1].requires_grad)
            self._constants |= {result.data_ptr(): (seen, number) for number, result in others}
        for number, result in results:
            self.hooks.gradient(result, partial(self._arrived, seen, number))

    def _arrived(self, seen: _Pass, number: int, gradient: torch.Tensor) -> None:
        seen.differentiated = True
        if self._looks_on and bool((gradient != 0).any()):
            seen.used.add(number)

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        self._sides.clear()
        if step + 1 == AT_STEP and self._alone:  # a side may be encoded before a step's first gradients
            inner = filter(is_pretrained, session.model.modules())
            for part in {id(each): each for each in (self._entry, *inner)}.values():
                self.hooks.after(part, self._encoded, with_kwargs=True)
        self._idle, self._results = {name: p for name, p in self._idle.items() if p.grad is None}, []
        made, self._passes, losses, self._losses = self._passes, [], self._losses, []
        differentiated = sum(each.differentiated for each in made)
        unused = all(p.grad is None for p in self._entry.parameters())  # of several parts, the others have gradients
        if step < EARLY_STEPS and (differentiated or unused):
            self._lost.append(len(made) - differentiated)
        if step == AT_STEP:
            self._hidden = (*_hidden(session.model), *_beside(session.model, self._leaves))
            self._leaves = {}
            self._replaced = (*_replaced(session.model, self._idle.keys(), self._calls),)
        if step == AT_STEP and 0 < len(self._idle) < self._tensors:
            self._digests = {name: digest(p) for name, p in self._idle.items()}
            leaves = {id(getattr(node, "variable", None)) for node in graph_of(losses)}
            self._left_out = {name for name, p in self._idle.items() if id(p) in leaves}
            if used := [each for each in made if each.used]:
                with kept_values(list(self._idle.values())), unprinted():  # which the model may write itself
                    self._look_at_parts(partial(self._again, session.model, used[-1]))

    def _look_at_parts(self, again: Callable[[Any], list[torch.Tensor]]) -> None:
        """Find the idle tensors of modules that results depend on."""
        if _differ(before := again(()), again(())) or not _differ(before, again(self._idle)):
            return
        for names in [{*names} for _, names in groupby(self._idle, _module_of)][:MOST_PARTS]:
            if _differ(before, again(names)):
                self._cut_off |= names

    def _again(self, model: Any, made: _Pass, changed: Any) -> list[torch.Tensor]:
        """Return the results that gradients arrive at, with these tensors changed, in equal modes and random state."""
        parameters = [self._idle[name] for name in changed]
        device = next(iter(model.parameters())).device
        with kept_values(parameters), as_found(model):
            with random_state(device), torch.no_grad():
                for parameter in parameters:
                    parameter.add_(torch.randn_like(parameter) * (parameter.abs().mean() + LEAST))
            with random_state(device), torch.enable_grad():
                results = numbers_of(self._entry(*made.args, **made.given))
            return [results[number].detach() for number in sorted(made.used)]

    def end(self, session: Session) -> None:
        """Tell which tensors no step gave a gradient, that are as they were, and whose module was called since."""
        tensors, left_out = map(self._called_since, (self._cut_off, self._left_out))
        lost, steps = min(self._lost, default=0), len(self._lost)
        replaced = tuple(name for name in self._replaced if any(n.startswith(f"{name}.") for n in self._idle))
        if tensors or left_out or replaced or self._hidden or lost or self._one_sided:
            more: dict[str, Any] = {"hidden": self._hidden, "passes": lost, "in_steps": steps, "replaced": replaced}
            self.emit(CutOff(tensors=tensors, left_out=left_out, one_sided=self._one_sided, **more))

    def _called_since(self, names: set[str]) -> tuple[str, ...]:
        called = {*self._called, ""}  # the model itself is called in each step
        found = {name for name in names & self._idle.keys() if _module_of(name) in called}
        return tuple(sorted(name for name in found if digest(self._idle[name]) == self._digests[name]))


def _rows_scored(nodes: Sequence[Any]) -> Iterator[int]:
    """Yield how many rows each operand has that does not learn, of products whose log-softmax is in a loss."""
    ends, begun = set[Any](), [node.next_functions[0][0] for node in nodes if node.name() == "LogSoftmaxBackward0"]
    for node in graph_of(begun, ends):
        if node.name() not in SCALED:
            ends.add(node)
        if node.name() in PRODUCTS and (None, 0) in node.next_functions:
            operand = saved(node, "self" if (first := node.next_functions[0] == (None, 0)) else "mat2")
            rows = 0 if operand is None else operand.numel() // operand.shape[-1 if first else -2]
            if rows > 1:
                yield rows


def _rows_preferred(nodes: Sequence[Any]) -> Iterator[int]:
    """Yield how many rows a difference has of which one side does not learn, in a sigmoid's likelihood or a margin."""
    for node in (node.next_functions[0][0] for node in nodes if node.name() in OF_MARGINS):
        ends = set[Any]()
        for inner in graph_of(node, ends):
            if inner.name() not in SCALED or inner.name() in DIFFERENCES:
                ends.add(inner)
            if inner.name() in DIFFERENCES and (None, 0) in inner.next_functions:
                yield size_of((inner, 0))


def _module_of(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _resting(model: Any, idle: AbstractSet[str]) -> Iterator[str]:
    """Yield the largest modules all of whose parameters are among these."""
    last = " "
    for name, module in model.named_modules():
        held = [f"{name}.{inner}" for inner, _ in module.named_parameters()]
        if name and held and not name.startswith(last) and idle >= {*held}:
            last = f"{name}."
            yield name


def _replaced(model: Any, idle: AbstractSet[str], calls: Mapping[int, int]) -> Iterator[str]:
    """Yield modules of several layers that are never called, where one of their class beside them is called twice."""
    modules = dict(model.named_modules())
    for name in _resting(model, idle):
        module, parent = modules[name], modules[_module_of(name)]
        beside = [each for each in parent.children() if type(each) is type(module)]
        passes = calls[id(parent)]  # of a list of experts there are none
        twice = any(calls[id(each)] >= 2 * passes for each in beside)
        if passes and twice and not calls[id(module)] and [*module.children()]:
            yield name


def _differ(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> bool:
    pairs = zip(before, after, strict=True)
    return any(bool((one - other).abs().max() > LEAST * one.abs().max()) for one, other in pairs)


def _hidden(model: Any) -> Iterator[str]:
    """Yield the items of the modules' own lists and dictionaries that get gradients, and that no optimizer holds."""
    held = {id(p) for p in torch.nn.Module.parameters(model)}  # all that are registered, whatever it offers
    found: dict[str, set[int]] = {}
    for name, module in model.named_modules():
        for key, kept in vars(module).items():
            parts = kept.values() if isinstance(kept, dict) else kept if isinstance(kept, list | tuple) else ()
            for at, part in enumerate(parts):
                tensors = part.parameters() if isinstance(part, torch.nn.Module) else [part]
                own = {id(p) for p in tensors if isinstance(p, torch.nn.Parameter) and p.grad is not None} - held
                found |= {f"{name}.{key}[{at}]".lstrip("."): own} if own else {}
    held = _optimized() if found else set()
    yield from (name for name, own in found.items() if own - held)


def _beside(model: Any, leaves: Mapping[int, Any]) -> Iterator[str]:
    """Yield the largest modules outside of the model and not copied of it that get gradients but no optimizer."""
    # No copy, such as a reference of DPO's, whose gradients are computed for nothing
    registered = list(torch.nn.Module.parameters(model))  # whatever it offers
    own, shapes = {*map(id, registered)}, sorted(tuple(p.shape) for p in registered)
    apart = {at for at, leaf in leaves.items() if at not in own and isinstance(leaf, torch.nn.Parameter)}
    apart -= _optimized() if apart else set()
    parts = [(module, {id(p) for p in module.parameters()}) for module in living(torch.nn.Module)] if apart else []
    for module, held in sorted(parts, key=lambda pair: -len(pair[1])):
        if held and held <= apart:
            apart -= held
            if sorted(tuple(p.shape) for p in module.parameters()) != shapes:
                yield f"{type(module).__name__} ({len(held)} tensors)"


def _optimized() -> set[int]:
    optimizers = [each for each in living(torch.optim.Optimizer) if hasattr(each, "param_groups")]
    return {id(p) for optimizer in optimizers for p in tensors_of(optimizer)}
