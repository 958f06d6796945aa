"""Which tensors get a gradient, step by step, and which still hold one when a step begins."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from tunecheck.core.evidence import Gradients
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning, whole

SMALLEST = torch.finfo(torch.float16).smallest_normal
READ_EVERY = 10
"""Steps whose norms stay on the device before they are read together: reading waits for the GPU."""


class GradientProbe(Probe):
    """Take every gradient's norm after backward, before clipping."""

    emits = (Gradients,)

    def start(self, session: Session) -> None:
        self._trainable = learning(session.model)
        self._frozen = [(name, p) for name, p in session.model.named_parameters() if not p.requires_grad]
        self._waiting: list[Callable[..., Gradients]] = []
        # One buffer: a tensor for each waiting step would count as one that stays alive.
        self._norms = torch.zeros(READ_EVERY, len(self._trainable) + 2, device=session.device)
        self._left_over: tuple[str, ...] = ()

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Look for gradients of the steps before. Where they are cleared to None, as torch does, this costs nothing."""
        held = [(name, p.grad) for name, p in self._trainable if p.grad is not None]
        self._left_over = tuple(name for name, gradient in held if bool((whole(gradient) != 0).any()))

    def backward_end(self, session: Session, step: int) -> None:
        """Note the norms; a missing gradient counts as zero."""
        gradients = [whole(p).new_zeros(()) if p.grad is None else whole(p.grad) for _, p in self._trainable]
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])
        thawed = [whole(p.grad).norm().float() for _, p in self._frozen if p.requires_grad and p.grad is not None]
        later = torch.stack([norms.new_zeros(()), *thawed]).norm()
        share = norms.new_full((), math.nan)
        if session.precision == "fp16":
            counts = [torch.stack([(g != 0).sum(), ((g != 0) & (g.abs() < SMALLEST)).sum()]) for g in gradients]
            elements, small = torch.stack(counts).sum(dim=0)
            share = small / elements
        frozen = tuple(name for name, p in self._frozen if p.grad is not None)
        record = partial(
            Gradients,
            step=step,
            frozen_with_gradient=frozen,
            left_over=self._left_over,
            micro_batch_tokens=tuple(batch.supervised_tokens for batch in session.window),
        )
        self._norms[len(self._waiting)].copy_(torch.cat([norms, later[None], share[None]]))
        self._waiting.append(record)
        if session.device.type == "cpu" or len(self._waiting) >= READ_EVERY:
            self._read()

    def end(self, session: Session) -> None:
        self._read()

    def _read(self) -> None:
        for record, row in zip(self._waiting, self._norms.tolist(), strict=False):
            norms = dict(zip((name for name, _ in self._trainable), row[:-2], strict=True))
            groups: dict[str, float] = {"other": row[-2]} if row[-2] else {}
            for name, norm in norms.items():
                groups[_group(name)] = math.hypot(groups.get(_group(name), 0.0), norm)
            seen = record(
                zero=tuple(name for name, norm in norms.items() if norm == 0),
                nonfinite=tuple(name for name, norm in norms.items() if not math.isfinite(norm)),
                norms=groups,
                subnormal=None if math.isnan(row[-1]) else row[-1],
            )
            self.emit(seen)
        self._waiting.clear()


def _group(name: str) -> str:
    return next((side for side in ("lora_A", "lora_B", "lora_magnitude_vector") if f".{side}." in name), "other")
