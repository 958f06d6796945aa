"""The algebra of LoRA: untouched adapters change nothing, touched ones add exactly (alpha/r) B A x."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suite.evidence import AdapterStart
from suite.probe import Probe
from suite.strategies.lora import target_layers
from suite.tensors import WeightFile
from suite.trainer import Session

PROMPT_TOKENS = 16


class AdapterProbe(Probe):
    """Looks at the adapters once, before training."""

    emits = (AdapterStart,)

    def start(self, session: Session) -> None:
        """Compare adapters on and off; then, with a random B, every adapted linear with its formula. B is put back."""
        if session.run.lora is None:
            return
        base, adapted = self._logits(session, adapters=False), self._logits(session)
        modules = target_layers(session.run, WeightFile(session.folder).names)
        with _random_b(session) as factors, _recorded(session, modules) as calls:
            changed = self._logits(session)
            errors = {name: _algebra_error(session, calls[name], *factors[name]) for name in modules if name in factors}
        worst = max(errors, key=lambda name: float("inf") if errors[name] != errors[name] else errors[name], default="")
        self.emit(
            AdapterStart(
                start_difference=_relative(adapted, base),
                modules=len(errors),
                algebra_error=errors.get(worst, float("nan")),
                algebra_error_at=worst,
                logit_change=_relative(changed, base),
            )
        )

    def _logits(self, session: Session, adapters: bool = True) -> torch.Tensor:
        """Logits of the first tokens of a held-out row; without dropout in train mode, the training's own path.

        The mode is put back.
        """
        ids = torch.tensor([session.batches.heldout[0].input_ids[:PROMPT_TOKENS]], device=session.device)
        model, was_training = session.model, session.model.training
        model.train(session.run.lora is not None and session.run.lora.dropout == 0)
        try:
            with torch.no_grad():
                if adapters:
                    return _forward(model, ids)
                with model.disable_adapter():
                    return _forward(model, ids)
        finally:
            model.train(was_training)


def _forward(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits.float()
    return logits


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@contextmanager
def _random_b(session: Session) -> Iterator[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """A and B of every adapter by module name, B random for as long as the context lasts."""
    parameters = {name: p for name, p in session.model.named_parameters() if ".lora_" in name}
    saved = {name: p.detach().clone() for name, p in parameters.items() if ".lora_B." in name}
    generator = torch.Generator().manual_seed(0)
    factors = {}
    try:
        with torch.no_grad():
            for name in saved:
                b = parameters[name]
                b.copy_(torch.randn(b.shape, generator=generator).to(b) / b.shape[1] ** 0.5)
                module = name.removeprefix("base_model.model.").partition(".lora_B.")[0]
                factors[module] = (parameters[name.replace(".lora_B.", ".lora_A.")].detach(), b.detach())
        yield factors
    finally:
        with torch.no_grad():
            for name, value in saved.items():
                parameters[name].copy_(value)


@contextmanager
def _recorded(session: Session, modules: list[str]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Input, base output and adapted output of each module's next call."""
    calls: dict[str, list[torch.Tensor]] = {name: [] for name in modules}
    handles = []
    for name in modules:
        module = session.model.get_submodule(f"base_model.model.{name}")
        base = getattr(module, "base_layer", module)
        handles.append(base.register_forward_hook(lambda _m, args, out, name=name: calls[name].extend((args[0], out))))
        handles.append(module.register_forward_hook(lambda _m, _args, out, name=name: calls[name].append(out)))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _algebra_error(session: Session, call: list[torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of (out - base - (alpha/r) B A x) over the norm of (alpha/r) B A x, with the run's own numbers."""
    lora = session.run.lora
    assert lora is not None
    if len(call) != 3:  # the module has no adapter: its own hook and its base's are one and the same call
        return float("nan")
    x, base, out = call
    delta = (x.float() @ a.float().T @ b.float().T) * (lora.alpha / lora.r)
    return float((out.float() - base.float() - delta).norm() / delta.norm())
