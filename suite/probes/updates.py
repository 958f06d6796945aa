"""Every early optimizer step against closed-form AdamW fed with the same gradients.

AdamW (arXiv 1711.05101): p <- p (1 - lr wd) - lr (m / b1') / (sqrt(v / b2') + eps) with m, v averages of g, g^2.
The rate is the schedule's closed form, the clip factor min(1, max_norm / (norm + 1e-6)) as in torch.
"""

from __future__ import annotations

from itertools import accumulate

import torch

from suite.core.evidence import Update
from suite.core.schedule import learning_rate
from suite.training.events import Probe
from suite.training.session import Session
from suite.training.tensors import whole

STEPS = 20
"""Steps followed; the averages must be followed from the first one on."""
ELEMENTS = 4_000_000
"""Elements followed at most: all of an adapter, some tensors of a whole model."""


class UpdateProbe(Probe):
    """Keeps its own moments in fp32 and predicts each step."""

    emits = (Update,)

    def start(self, session: Session) -> None:
        """Choose the tensors to follow."""
        self._all = [p for p in session.model.parameters() if p.requires_grad]
        named = sorted(
            ((n, p) for n, p in session.model.named_parameters() if p.requires_grad), key=lambda x: x[1].numel()
        )
        sizes = accumulate(p.numel() for _, p in named)
        self._followed = [pair for pair, size in zip(named, sizes, strict=True) if size <= ELEMENTS] or named[:1]
        self._m = [torch.zeros_like(whole(p), dtype=torch.float32) for _, p in self._followed]
        self._v = [torch.zeros_like(m) for m in self._m]
        self._applied = 0
        self._expected: list[torch.Tensor] | None = None

    def backward_end(self, session: Session, step: int) -> None:
        """Predict this step's parameters."""
        self._expected = None
        if step >= STEPS:
            return
        training = session.run.training
        self._before = [whole(p).detach().clone() for _, p in self._followed]
        gradients = [
            torch.zeros_like(m) if p.grad is None else whole(p.grad).float()
            for m, (_, p) in zip(self._m, self._followed, strict=True)
        ]
        if training.max_grad_norm is not None:
            present = [whole(p.grad).float().flatten() for p in self._all if p.grad is not None]
            norm = torch.stack([g.dot(g) for g in present]).sum().sqrt() if present else torch.zeros(())
            # not in place: .float() of an fp32 gradient is the trainer's own tensor
            gradients = list(torch._foreach_mul(gradients, (training.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)))
        b1, b2 = training.adam_beta1, training.adam_beta2
        # products and sums alone: lerp, addcmul and a list's norm are the optimizer's and the clipping's own kernels
        self._next_m, self._next_v = list(torch._foreach_mul(self._m, b1)), list(torch._foreach_mul(self._v, b2))
        torch._foreach_add_(self._next_m, gradients, alpha=1 - b1)
        torch._foreach_add_(self._next_v, torch._foreach_mul(gradients, gradients), alpha=1 - b2)
        self._rate = learning_rate(
            self._applied,
            peak=training.learning_rate,
            schedule=training.lr_scheduler,
            warmup_ratio=training.warmup_ratio,
            max_steps=training.max_steps,
        )
        count = self._applied + 1
        self._expected = [
            p.float() * (1 - self._rate * training.weight_decay)
            - self._rate * (m / (1 - b1**count)) / ((v / (1 - b2**count)).sqrt() + training.adam_epsilon)
            for p, m, v in zip(self._before, self._next_m, self._next_v, strict=True)
        ]

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Compare the parameters and the optimizer's moments with the prediction."""
        if self._expected is None:
            return
        if applied:
            self._m, self._v, self._applied = self._next_m, self._next_v, self._applied + 1
        wanted = self._expected if applied else [p.float() for p in self._before]
        errors = torch.stack(
            [
                _relative(whole(p).detach().float() - before.float(), after.to(p.dtype).float() - before.float())
                for (_, p), before, after in zip(self._followed, self._before, wanted, strict=True)
            ]
        )
        worst = int(errors.nan_to_num(nan=torch.inf).argmax())
        moved = torch.stack(
            [(whole(p).detach() != before).any() for (_, p), before in zip(self._followed, self._before, strict=True)]
        )
        self.emit(
            Update(
                step=step,
                expected_learning_rate=self._rate,
                update_error=float(errors[worst]),
                worst_update=self._followed[worst][0],
                moment_error=self._moment_error(session),
                moved=bool(moved.any()),
            )
        )

    def _moment_error(self, session: Session) -> float:
        """Largest relative difference of the optimizer's moments from ours; NaN when it keeps none for some tensor."""
        errors = []
        for (_, parameter), m, v in zip(self._followed, self._m, self._v, strict=True):
            state = session.optimizer.state.get(parameter, {})
            if "exp_avg" not in state:
                return float("nan") if self._applied else 0.0
            errors += [_relative(whole(state[key]).float(), ours) for key, ours in (("exp_avg", m), ("exp_avg_sq", v))]
        return float(torch.stack(errors).nan_to_num(nan=torch.inf).max())


def _relative(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Norm of the difference over the wanted one's norm; 0 when they are equal, both nothing included."""
    difference, norm = (value - wanted).norm(), wanted.norm()
    return torch.where(difference == 0, 0.0, difference / norm)
