"""The backward pass held against the model itself: with and without recomputation, and layer by layer."""

from operator import itemgetter
from typing import Any

import torch

from tunecheck.core.check import worst_of
from tunecheck.core.evidence import LayerGradients, Recomputation
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.measures import differences
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import having, in_fp32, model_mode, own_gradients, random_state, uncached
from tunecheck.training.session import Session
from tunecheck.training.tensors import gradients_of

TOKENS = 32


class RecomputationProbe(Probe):
    """Takes one row's gradient with checkpointing and without it, which changes what is kept, not what is computed.

    Looks once, after training, in train mode: dropout draws from the same random state both times.
    """

    emits = (Recomputation,)

    def end(self, session: Session) -> None:
        """Compare the two gradients. Those that the parameters hold are put back, and so are mode and switches."""
        if not session.run.training.gradient_checkpointing:
            return
        layers = [module for module in session.model.modules() if getattr(module, "gradient_checkpointing", False)]
        recomputed = _gradients(session)
        with having((layer, "gradient_checkpointing", False) for layer in layers):
            kept, again = _gradients(session), _gradients(session)
        found = (differences(gradients, kept) for gradients in (recomputed, again))
        error, repeated = (float(errors.norm() / norms.norm()) for errors, norms in found)
        self.emit(Recomputation(layers=len(layers), gradient_error=error, repeat_error=repeated))


def _gradients(session: Session) -> list[torch.Tensor]:
    """The gradient of everything trained for the first tokens of a held-out row; the random state is put back."""
    model = session.model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = first_tokens(session, TOKENS)
    with own_gradients(trained), model_mode(model, True), random_state(session.device):
        logits = uncached(model, input_ids=ids).logits.float()
        logits.log_softmax(dim=-1)[0, :-1].gather(1, ids[0, 1:, None]).mean().backward()
        return [gradient.float() for gradient in gradients_of(trained)]


STEP_SHARES = 3e-4, 5e-5
"""Lengths of steps to either side over that of the hidden states: above fp32's rounding, and nearly straight.

A token whose states are a hundred times as large makes the longer one too long for the others. A wrong gradient is
wrong at every length, so that the smaller error counts.
"""


class LayerGradientProbe(Probe):
    """Takes each layer alone once, after training, in train mode; only where the run asks for it; in fp32 arithmetic.

    Its gradient is held against its own differences, where there is no autograd. A whole model's slope hides what is
    wrong in one layer of thirty.
    """

    emits = (LayerGradients,)

    def end(self, session: Session) -> None:
        """Compare the slope along each layer's gradient with what the gradient promises."""
        if not session.run.probes.directional_gradient or session.run.uses_dropout:
            return
        layers = list(session.model.get_decoder().layers)
        with in_fp32(session.model), torch.autocast(session.device.type, enabled=False):
            calls = _calls(session, layers)
            errors = {number: _slope_error(layer, *calls[number]) for number, layer in enumerate(layers)}
        if errors:
            number, error = worst_of(errors.items(), key=itemgetter(1))
            self.emit(LayerGradients(layers=len(errors), error=error, worst=number))


def _calls(session: Session, layers: list[Any]) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """The hidden states and the other arguments that each layer is given in one forward pass."""
    seen: list[tuple[torch.Tensor, dict[str, Any]]] = []
    with OwnHooks() as hooks:
        for layer in layers:
            hooks.before(layer, lambda _m, args, kwargs: seen.append((args[0].detach(), kwargs)), with_kwargs=True)
        logits_of(session.model, first_tokens(session, TOKENS), training=True)
    return seen


def _slope_error(layer: Any, hidden: torch.Tensor, others: dict[str, Any]) -> float:
    """Relative error of the slope of <layer(h) - h, v> for a random v; without the residual, which hides the rest.

    The first token is left as it is: a trained model's has states thousands of times as large.
    """
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(hidden.shape, generator=generator).to(hidden)
    given = hidden.clone().requires_grad_(True)

    def value(states: torch.Tensor) -> torch.Tensor:
        out = layer(states, **others)
        inner = (out[0] if isinstance(out, tuple) else out) - states
        projected: torch.Tensor = (inner * cotangent)[:, 1:].double().sum()
        return projected

    with model_mode(layer, True):
        (gradient,) = torch.autograd.grad(value(given), given)
        gradient = gradient.clone()
        gradient[:, 0] = 0
        norm = float(gradient.norm())
        if not norm:
            return float("nan")
        errors = []
        for share in STEP_SHARES:
            width = share * float(hidden[:, 1:].norm())
            step = width / norm * gradient
            with torch.no_grad():
                slope = float(value(hidden + step) - value(hidden - step)) / (2 * width)
            errors.append(abs(slope - norm) / norm)
    return min(errors)
