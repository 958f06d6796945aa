"""GPU memory while parts of a training are on the CPU: stand-ins for the placement, for the simulation.

In the simulation everything is on one device, so what would be on the other is registered with the count. Imports
torch; child process only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch

from tunecheck.memory.live import ELSEWHERE, LiveStorages
from tunecheck.models.layer_names import decoder_layers
from tunecheck.training import placement
from tunecheck.training.session import Session

GATHERED = "gathered"
"""Kind of the parameters that are on the GPU for the layers in use."""


def copies_left_out(live: LiveStorages) -> Any:
    """Count what `placement.activations_on_cpu` moves to the CPU in the block as not on the GPU."""
    return mock.patch.object(placement, "_to_host", live.elsewhere()(placement._to_host))


@dataclass(slots=True, eq=False)
class _Group:
    """Parameters that move to the GPU and leave it together: a decoder layer, or all the rest."""

    parameters: list[torch.nn.Parameter]
    gathered: list[torch.Tensor] = field(default_factory=list)
    """Copies on the GPU; empty while the parameters are not used."""
    in_backward: bool = False
    reduced: bool = False
    """Whether its gradients of this micro-batch have left the GPU."""


class Offloaded:
    """Stand-in for FSDP2 with CPU offload on one rank, as in torch 2.13 (FSDPParamGroup, foreach_reduce).

    A parameter arrives on the GPU as one copy and is used from a second one (wait_for_unshard). A group is freed after
    its forward pass, gathered again with the gradient of its output, and freed at the gradient of its input. Then its
    gradients become one flat tensor and that a second one, which goes to the CPU; the flat one stays until the next
    group's.
    """

    def __init__(self, session: Session, live: LiveStorages) -> None:
        self._live = live
        self._flat: torch.Tensor | None = None
        model = session.model
        self._layers = [self._watched(layer, [*layer.parameters()]) for layer in decoder_layers(model, at_least=1)]
        inside = {id(parameter) for group in self._layers for parameter in group.parameters}
        self._rest = self._watched(model, [p for p in model.parameters() if id(p) not in inside])
        model.as_forward = self._as_forward
        live.hold(model.parameters(), ELSEWHERE)

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Drop the gradients first, which are on the CPU by now, and free the last layers and gradients at the end."""
        for group in self._groups:
            group.reduced = False
            for parameter in group.parameters:
                parameter.grad = None  # autograd allocates new ones
        yield
        for group in self._groups:
            self._after_backward(group)
        self._flat = None

    @property
    def _groups(self) -> list[_Group]:
        return [*self._layers, self._rest]

    def _watched(self, module: Any, parameters: list[torch.nn.Parameter]) -> _Group:
        group = _Group(parameters)
        module.register_forward_pre_hook(partial(self._enter, group))
        module.register_forward_hook(partial(self._leave, group))
        return group

    def _as_forward(self, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        self._gather(self._rest)
        output = function()
        self._used(self._rest, output)
        return output

    def _enter(self, group: _Group, _module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._gather(group)
        if not (inputs and torch.is_grad_enabled() and inputs[0].requires_grad):
            return inputs
        return (_AtEnd.apply(partial(self._after_backward, group), inputs[0]), *inputs[1:])  # type: ignore[no-untyped-call]

    def _leave(self, group: _Group, _module: Any, _inputs: Any, output: Any) -> None:
        self._used(group, output if isinstance(output, torch.Tensor) else output[0])

    def _used(self, group: _Group, output: Any) -> None:
        """Free the group after its forward pass; a recomputed one is followed by its backward pass."""
        if not group.in_backward:
            group.gathered.clear()
            if output.requires_grad:
                output.register_hook(lambda _: self._before_backward(group))

    def _before_backward(self, group: _Group) -> None:
        group.in_backward = True
        self._gather(group)

    def _after_backward(self, group: _Group) -> None:
        group.gathered.clear()
        group.in_backward = False
        gradients = [p.grad for p in group.parameters if p.grad is not None]
        if group.reduced or not gradients:
            return
        group.reduced = True
        self._flat = None
        self._flat = gradients[0].new_empty(sum(gradient.numel() for gradient in gradients))
        self._live.hold(gradients, ELSEWHERE)
        torch.empty_like(self._flat)

    def _gather(self, group: _Group) -> None:
        if group.gathered:
            return
        with torch.no_grad():
            for parameter in group.parameters:
                arrived = torch.empty_like(parameter)  # while that of the previous parameter still exists
                group.gathered.append(torch.empty_like(parameter))
            del arrived
        self._live.hold(group.gathered, GATHERED)


class _AtEnd(torch.autograd.Function):
    """Identity that calls the function when the gradient of the tensor is complete."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[], None], tensor: torch.Tensor) -> torch.Tensor:
        ctx.function = function
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.function()
        return None, *gradients
