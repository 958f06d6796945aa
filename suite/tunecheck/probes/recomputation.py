"""Gradient checkpointing changes what is kept, not what is computed: one row's gradient with it and without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tunecheck.core.evidence import Recomputation
from tunecheck.probes.reference.forwards import first_tokens
from tunecheck.training.events import Probe
from tunecheck.training.restore import model_mode, random_state, uncached
from tunecheck.training.session import Session
from tunecheck.training.tensors import whole

TOKENS = 32


class RecomputationProbe(Probe):
    """Looks once, after training, in train mode: dropout draws from the same random state both times."""

    emits = (Recomputation,)

    def end(self, session: Session) -> None:
        """Compare the two gradients. Those that the parameters hold are put back, and so are mode and switches."""
        layers = [module for module in session.model.modules() if getattr(module, "gradient_checkpointing", False)]
        if not session.run.training.gradient_checkpointing:
            return
        recomputed = _gradients(session)
        with _switched_off(layers):
            kept, again = _gradients(session), _gradients(session)
        errors = _relative_error(recomputed, kept), _relative_error(again, kept)
        self.emit(Recomputation(layers=len(layers), gradient_error=errors[0], repeat_error=errors[1]))


def _relative_error(gradients: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Norm of the difference over the norm of what is wanted."""
    difference = torch.stack([(a - b).norm() for a, b in zip(gradients, wanted, strict=True)]).norm()
    return float(difference / torch.stack([gradient.norm() for gradient in wanted]).norm())


@contextmanager
def _switched_off(layers: list[Any]) -> Iterator[None]:
    """In this context these modules keep what their backward pass needs."""
    for layer in layers:
        layer.gradient_checkpointing = False
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = True


def _gradients(session: Session) -> list[torch.Tensor]:
    """The gradient of everything trained for the first tokens of a held-out row; the random state is put back."""
    model = session.model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held = [parameter.grad for parameter in trained]
    ids = first_tokens(session, TOKENS)
    try:
        for parameter in trained:
            parameter.grad = None
        with model_mode(model, True), random_state(session.device):
            logits = uncached(model, input_ids=ids).logits.float()
            logits.log_softmax(dim=-1)[0, :-1].gather(1, ids[0, 1:, None]).mean().backward()
        return [torch.zeros_like(whole(p)) if p.grad is None else whole(p.grad).float() for p in trained]
    finally:
        for parameter, gradient in zip(trained, held, strict=True):
            parameter.grad = gradient
