"""Every early optimizer step, and some of the later ones, against closed-form AdamW fed with the same gradients.

AdamW (arXiv 1711.05101): p <- p (1 - lr wd) - lr (m / b1') / (sqrt(v / b2') + eps) with m, v averages of g, g^2.
The rate is the schedule's closed form, the clip factor min(1, max_norm / (norm + 1e-6)) as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from suite.core.evidence import Update
from suite.core.weight_decay import decays
from suite.training.events import Probe
from suite.training.session import Session
from suite.training.tensors import whole

if TYPE_CHECKING:
    from suite.config.schema import Training

STEPS = 20
"""Steps all of which are followed, the averages by sums of our own from the first one on."""
LATER = 7
"""Of the steps after those, every so many are followed, and the last two: from the optimizer's averages before each. A
number that has nothing in common with those of micro-batches and epochs."""
ROUNDINGS = 8
"""Roundings to the weights' dtype that an update of 16-bit weights may be off by: both averages, their root, the
correction, the division. The averages measured 5 of them at step 2 (bf16)."""
ELEMENTS = 4_000_000
"""Elements followed at most: all of an adapter, some tensors of a whole model."""


class UpdateProbe(Probe):
    """Keeps its own moments in fp32 and predicts each step.

    All of it in the CPU's memory, where the prediction is computed too: what a probe keeps on the card from one moment
    to the next is in the run's peak.
    """

    emits = (Update,)

    def start(self, session: Session) -> None:
        """Choose the tensors to follow."""
        self._all = [p for p in session.model.parameters() if p.requires_grad]
        named = sorted(
            ((n, p) for n, p in session.model.named_parameters() if p.requires_grad), key=lambda x: x[1].numel()
        )
        sizes = accumulate(p.numel() for _, p in named)
        self._followed = [pair for pair, size in zip(named, sizes, strict=True) if size <= ELEMENTS] or named[:1]
        self._m = [torch.zeros(whole(p).shape, dtype=torch.float32) for _, p in self._followed]
        self._v = [torch.zeros_like(m) for m in self._m]
        self._applied = 0
        self._counts = [0] * len(self._followed)
        self._before: list[torch.Tensor] = []

    def backward_end(self, session: Session, step: int) -> None:
        """Keep this step's parameters and clipped gradients."""
        self._gradients: list[torch.Tensor] | None = None
        self._present = [p.grad is not None for _, p in self._followed]
        if step >= STEPS and step % LATER and step < session.run.training.max_steps - 2:
            return
        if step >= STEPS and not self._take_over(session):
            return
        self._before = [_on_host(p) for _, p in self._followed]
        factor = 1.0
        if (max_norm := session.run.training.max_grad_norm) is not None:
            present = [whole(p.grad).float().flatten() for p in self._all if p.grad is not None]
            norm = float(torch.stack([g.dot(g) for g in present]).sum().sqrt()) if present else 0.0
            factor = min(max_norm / (norm + 1e-6), 1.0)
        self._clipped = factor < 1
        self._gradients = [
            torch.zeros_like(m) if p.grad is None else _on_host(p.grad).float() * factor
            for m, (_, p) in zip(self._m, self._followed, strict=True)
        ]

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Compare the parameters and the optimizer's moments with the prediction."""
        if applied:  # torch's optimizers leave a tensor without a gradient alone: no decay, no count
            self._counts = [n + present for n, present in zip(self._counts, self._present, strict=True)]
        if self._gradients is None:
            self._applied += applied
            return
        training = session.run.training
        rate = training.rate(self._applied)
        settings = self._settings(session, rate)
        betas = training.adam_beta1, training.adam_beta2
        if training.by_groups:  # of which a schedule may change both, as one of a single cycle does
            betas = session.optimizer.param_groups[0].get("betas", betas)
        wanted = self._updated(training, settings, betas) if applied else [p.float() for p in self._before]
        self._gradients = None
        after = [_on_host(p) for _, p in self._followed]
        moves = [
            (p.float() - before.float(), _explained(p, before.float(), predicted) - before.float())
            for p, before, predicted in zip(after, self._before, wanted, strict=True)
        ]
        errors = torch.stack([_relative(got, expected) for got, expected in moves])
        worst = int(errors.nan_to_num(nan=torch.inf).argmax())
        moved = any(bool((p != before).any()) for p, before in zip(after, self._before, strict=True))
        self._before = []
        self.emit(
            Update(
                step=step,
                expected_learning_rate=rate,
                update_error=float(errors[worst]),
                worst_update=self._followed[worst][0],
                moment_error=self._moment_error(session),
                moved=moved,
                length_error=_length_error(moves) if applied and rate > 0 else None,
                clipped=self._clipped,
            )
        )

    def _settings(self, session: Session, rate: float) -> list[tuple[float, float]]:
        """Return rate and decay of each tensor: the declared ones, or what a loop's own groups say at this step."""
        training = session.run.training
        if not training.by_groups:
            decay = training.weight_decay
            return [(rate, decay * decays(name, training.weight_decay_on)) for name, _ in self._followed]
        groups = session.optimizer.param_groups
        own = {id(p): (float(group["lr"]), group.get("weight_decay", 0.0)) for group in groups for p in group["params"]}
        return [own.get(id(p), (rate, 0.0)) for _, p in self._followed]

    def _updated(
        self, training: Training, settings: Sequence[tuple[float, float]], betas: tuple[float, float]
    ) -> list[torch.Tensor]:
        """Advance the moments by this step's gradients; return the parameters that AdamW must give."""
        assert self._gradients is not None
        b1, b2 = betas
        # products and sums alone: lerp, addcmul and a list's norm are the optimizer's and the clipping's own kernels
        m, v, gradients = (
            [tensor for tensor, present in zip(tensors, self._present, strict=True) if present]
            for tensors in (self._m, self._v, self._gradients)
        )
        if gradients:
            torch._foreach_mul_(m, b1)
            torch._foreach_add_(m, gradients, alpha=1 - b1)
            torch._foreach_mul_(v, b2)
            torch._foreach_mul_(gradients, gradients)
            torch._foreach_add_(v, gradients, alpha=1 - b2)
        self._applied += 1
        moments = zip(self._before, self._m, self._v, self._counts, strict=True)
        return [
            p.float() * (1 - rate * decay)
            - rate * (m / (1 - b1**count)) / ((v / (1 - b2**count)).sqrt() + training.adam_epsilon)
            if present
            else p.float()
            for (p, m, v, count), (rate, decay), present in zip(moments, settings, self._present, strict=True)
        ]

    def _take_over(self, session: Session) -> bool:
        """Go on from the optimizer's own averages and step count; False where a tensor that learns has none."""
        states = [session.optimizer.state.get(parameter, {}) for _, parameter in self._followed]
        for at, (state, count) in enumerate(zip(states, self._counts, strict=True)):
            if {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
                self._m[at], self._v[at] = _on_host(state["exp_avg"]).float(), _on_host(state["exp_avg_sq"]).float()
            elif count:
                return False
        return True

    def _moment_error(self, session: Session) -> float:
        """Largest relative difference of the optimizer's moments from ours; NaN when it keeps none for some tensor."""
        errors = []
        for (_, parameter), m, v, count in zip(self._followed, self._m, self._v, self._counts, strict=True):
            state = session.optimizer.state.get(parameter, {})
            if not {"exp_avg", "exp_avg_sq"} <= state.keys():  # Lion keeps the first alone
                if count:
                    return float("nan")
                continue
            errors += [
                _relative(_on_host(state[key]).float(), ours) for key, ours in (("exp_avg", m), ("exp_avg_sq", v))
            ]
        return float(torch.stack(errors).nan_to_num(nan=torch.inf).max()) if errors else 0.0


def _explained(after: torch.Tensor, before: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """Return what the weights must be in their dtype: for 16-bit ones the nearest to `after` that rounding explains.

    There a step is about as long as the distance of two weights, so that averages that are rounded too decide for many
    elements whether they move: 0.39 of the update of SmolLM2's lora_A in bf16 at a rate of 2e-4, with nothing wrong.
    """
    if after.dtype == torch.float32:
        return predicted
    slack = ROUNDINGS * torch.finfo(after.dtype).eps * (predicted - before).abs()
    return after.float().clamp((predicted - slack).to(after.dtype).float(), (predicted + slack).to(after.dtype).float())


def _length_error(moves: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """How far the moves' projection on the expected ones is from their length, over that length."""
    along = sum(float((got.double() * expected.double()).sum()) for got, expected in moves)
    length = sum(float(expected.double().square().sum()) for _, expected in moves)
    return abs(along / length - 1) if length else float(along != 0)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in the CPU's memory, whose later changes are not the trainer's."""
    return whole(tensor).detach().to("cpu", copy=True)


def _relative(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Norm of the difference over the wanted one's norm; 0 when they are equal, both nothing included."""
    difference, norm = (value - wanted).norm(), wanted.norm()
    return torch.where(difference == 0, 0.0, difference / norm)
