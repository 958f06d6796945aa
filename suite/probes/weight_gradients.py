"""The gradient of trained linears against their own inputs and the gradients of their own outputs.

For y = W x + b the gradient by W is the sum of (gradient by y) x^T over all tokens of the window, and that by b the sum
of the gradients by y, whatever lies before and behind the layer and however the window is split. So a gradient that was
scaled, left over, added to, compressed or rounded on its way to the optimizer shows, to the last digits that it has.
A gradient that is mathematically 0 has none: of a bias of keys, which softmax does not see, rounding alone is left. So
an error is taken over what the products could have added up to, too, where that much cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from suite.core.evidence import WeightGradient
from suite.probes.reference.measures import dtype_name, worst
from suite.training.data import Batch
from suite.training.events import Probe
from suite.training.session import Session

ROWS, TOKENS = 64, 64
"""Of a weight's gradient, evenly spread, and tokens widened to fp32 at a time: products are taken on the device while
the step needs the most memory."""


CANCELLED, CANCELLED_16BIT = 1e-3, 1e-2
"""Share of what the products could add up to, the product of the norms, below which a gradient has cancelled. What is
left of the bias of bert's keys in fp32 is 1e-8 of it; gradients of random signs in 10,000 tokens are 1e-2 of it."""


@dataclass(slots=True)
class _Sums:
    """What the calls of one linear in a window have added up to so far."""

    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    squares: torch.Tensor | None = None
    """Of the gradients by the outputs that are compared, by all outputs, of the inputs; and the number of tokens."""
    dtype: torch.dtype = torch.float32
    """Of the output, and so of the products behind the gradient."""
    inputs: list[list[torch.Tensor]] = field(default_factory=list)
    """Of each call, until its gradient arrives: a loss that is still held keeps the hook, which must not keep these."""


class WeightGradientProbe(Probe):
    """Follows some trained linears in every step, so that all are followed in the course of the run."""

    emits = (WeightGradient,)

    def start(self, session: Session) -> None:
        """List the linears, and how many to follow in a step.

        A tied head is left out: the embedding's gradient is in its own.
        """
        parameters = [p for _, module in session.model.named_modules() for p in module.parameters(recurse=False)]
        own = [id(parameter) for parameter in parameters]
        named = [(name, module) for name, module in session.model.named_modules() if _is_trained(module)]
        self._linears = [(name, module) for name, module in named if own.count(id(module.weight)) == 1]
        if session.run.training.offload == "parameters":  # sharded: products of whole ones would gather them
            self._linears = []
        self._each_step = -(-len(self._linears) // max(1, session.run.training.max_steps))
        self._next = 0

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Watch the next linears."""
        self._sums = {name: (_Sums(), module) for name, module in self._chosen()}
        for sums, module in self._sums.values():
            self.hooks.after(module, partial(self._called, sums))

    def _chosen(self) -> list[tuple[str, Any]]:
        """Return the linears of this step, the next ones in turn."""
        first, self._next = self._next, self._next + self._each_step
        return [self._linears[number % len(self._linears)] for number in range(first, self._next)]

    def backward_end(self, session: Session, step: int) -> None:
        """Compare with what the optimizer will be given."""
        self.hooks.remove()
        scale = session.scaler.get_scale() if session.scaler else 1.0
        found: dict[tuple[str, ...], dict[str, float]] = {}
        self._add_up(session)
        for name, (sums, module) in self._sums.items():
            for given in sums.inputs:
                given.clear()
            rows, outputs, inputs, tokens = [0.0] * 4 if sums.squares is None else sums.squares.sqrt().tolist()
            share = CANCELLED if sums.dtype == module.weight.dtype == torch.float32 else CANCELLED_16BIT
            errors = [
                _relative(parameter, count, wanted, scale, share * least)
                for parameter, wanted, count, least in (
                    (module.weight, sums.weight, len(module.weight), rows * inputs),
                    (module.bias, sums.bias, 0, outputs * tokens),
                )
                if parameter is not None and parameter.requires_grad and wanted is not None
            ]
            sums.weight = sums.bias = sums.squares = None  # the hook of a loss that is still held keeps the sums
            if errors:  # a linear whose module is not called computes in another way
                dtypes = tuple(sorted({dtype_name(sums.dtype), dtype_name(module.weight.dtype)}))
                found.setdefault(dtypes, {})[name] = math.nan if any(map(math.isnan, errors)) else max(errors)
        self._sums = {}
        for dtypes, each in (found or {(): {}}).items():
            at = worst(each) or ""
            self.emit(WeightGradient(step=step, linears=len(each), error=each.get(at, 0.0), worst=at, dtypes=dtypes))

    def _called(self, sums: _Sums, module: Any, args: Any, out: torch.Tensor) -> None:
        """A forward hook: have the gradient of this call's output add the call's part to the sums."""
        if out.requires_grad:
            given = [args[0].detach()]
            sums.inputs.append(given)
            self.hooks.gradient(out, partial(_arrived, sums, module, given))

    def _add_up(self, session: Session) -> None:
        """Where several ranks train, take the mean of their sums: so the optimizer is given the mean gradient."""
        if session.exchange.count == 1:
            return
        of_ranks = session.exchange.gathered({n: (sums.weight, sums.bias) for n, (sums, _) in self._sums.items()})
        for name, (sums, _) in self._sums.items():
            weights, biases = zip(*(of_rank[name] for of_rank in of_ranks), strict=True)
            sums.weight, sums.bias = _mean(weights), _mean(biases)


def _mean(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the mean of what each rank has; None where one has nothing."""
    known = [part for part in parts if part is not None]
    return torch.stack(known).mean(dim=0) if known and len(known) == len(parts) else None


def _every(rows: int) -> slice:
    """Return which of so many rows are compared; all of few, and of a bias."""
    return slice(None, None, max(1, rows // ROWS))


def _is_trained(module: Any) -> bool:
    """Return whether this is a plain linear that learns; subclasses (4-bit ones, fused ones) compute otherwise."""
    return type(module) is torch.nn.Linear and any(p.requires_grad for p in module.parameters(recurse=False))


def _arrived(sums: _Sums, module: Any, given: list[torch.Tensor], gradient: torch.Tensor) -> None:
    if not given:
        return  # another backward pass through the same graph, after this step's
    with torch.no_grad():
        above, x = gradient.detach().flatten(0, -2), given[0].flatten(0, -2)
        for part, inputs in zip(torch.split(above, TOKENS), torch.split(x, TOKENS), strict=True):
            if module.weight.requires_grad:
                # autocast multiplies in its own dtype, which the output has
                rows = part[:, _every(part.shape[1])].float()
                product = rows.T @ inputs.to(gradient.dtype).float()
                sums.weight = product if sums.weight is None else sums.weight.add_(product)
            if module.bias is not None and module.bias.requires_grad:
                total = part.float().sum(dim=0)
                sums.bias = total if sums.bias is None else sums.bias.add_(total)
        squares = _squares(above, x)
        sums.squares = squares if sums.squares is None else sums.squares.add_(squares)
        sums.dtype = gradient.dtype
    given.clear()


def _squares(above: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    outputs = torch.linalg.vector_norm(above, dim=0, dtype=torch.float32).square()
    inputs = torch.linalg.vector_norm(x, dtype=torch.float32).square()
    return torch.stack([outputs[_every(len(outputs))].sum(), outputs.sum(), inputs, inputs.new_tensor(len(x))])


def _relative(parameter: Any, count: int, wanted: torch.Tensor, scale: float, least: float) -> float:
    """Norm of the difference over the wanted one's norm, at least `least`; 0 when both are nothing, NaN for NaN."""
    wanted = wanted / scale
    got = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad[_every(count)].detach().float()
    difference = (got - wanted).norm()
    return 0.0 if not difference else float(difference / wanted.norm().clamp(min=least / scale))
