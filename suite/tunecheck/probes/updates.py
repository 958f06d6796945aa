"""Every early optimizer step, and some of the later ones, against closed-form AdamW fed with the same gradients.

AdamW (arXiv 1711.05101): p <- p (1 - lr wd) - lr (m / b1') / (sqrt(v / b2') + eps) with m, v averages of g, g^2.
The rate is the schedule's closed form, the clip factor min(1, max_norm / (norm + 1e-6)) as in torch.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from tunecheck.core.evidence import Update
from tunecheck.core.optimization import decays
from tunecheck.core.premises import Premise
from tunecheck.training.events import Probe
from tunecheck.training.hooks import rate_of
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning, whole

STEPS = 20
"""Steps all of which are followed, the averages by sums of our own from the first one on."""
LATER = 7
"""Of the steps after those, every so many are followed, and the last two: from the optimizer's averages before each. A
number that has nothing in common with those of micro-batches and epochs."""
ROUNDINGS = 8
"""Roundings to the weights' dtype that an update of 16-bit weights may be off by: both averages, their root, the
correction, the division. The averages measured 5 of them at step 2 (bf16)."""
CANCELLED = 1e-2
"""Share of a usual step below which a tensor's averages cancel, as those of a bias of two classes do now and then. What
is left of them is half rounding: 0.011 of such a step measured in fp32."""
ELEMENTS = 4_000_000
"""Elements followed at most: all of an adapter, some tensors of a whole model."""
Settings = Sequence[tuple[float, float]]
"""Rate and decay of each tensor."""


class UpdateProbe(Probe):
    """Keeps its own moments in fp32 and predicts each step.

    All of it in the CPU's memory, where the prediction is computed too: what a probe keeps on the card from one moment
    to the next is in the run's peak.
    """

    emits = (Update,)

    def start(self, session: Session) -> None:
        named = sorted(learning(session.model), key=lambda pair: pair[1].numel())
        self._all = [p for _, p in named]
        sizes = accumulate(p.numel() for _, p in named)
        self._followed = [pair for pair, size in zip(named, sizes, strict=True) if size <= ELEMENTS] or named[:1]
        self._sizes = [whole(p).numel() for _, p in self._followed]
        self._m, self._v = torch.zeros(2, sum(self._sizes))
        self._applied = 0
        self._counts = [0] * len(self._followed)
        self._before = torch.empty(0)
        if session.optimizer.state and not session.run.holds(Premise.OPTIMIZER_OF_TRAINED):
            if not self._take_over(session):
                raise RuntimeError("the optimizer has steps behind it, and keeps no averages to go on from")
            states = [session.optimizer.state.get(p, {}) for _, p in self._followed]
            self._counts = [int(state.get("step", 0)) for state in states]

    def backward_end(self, session: Session, step: int) -> None:
        """Keep this step's parameters and clipped gradients."""
        self._gradient: torch.Tensor | None = None
        self._present = [p.grad is not None for _, p in self._followed]
        if step >= STEPS and step % LATER and step < session.run.training.max_steps - 2:
            return
        if step >= STEPS and not self._take_over(session):
            return
        self._before = _flat([p for _, p in self._followed])
        factor = 1.0
        if (max_norm := session.run.training.max_grad_norm) is not None:
            present = [whole(p.grad).float().flatten() for p in self._all if p.grad is not None]
            norm = float(torch.stack([g.dot(g) for g in present]).sum().sqrt()) if present else 0.0
            factor = min(max_norm / (norm + 1e-6), 1.0)
        self._clipped = factor < 1
        self._gradient = torch.zeros_like(self._m)
        _place(torch.split(self._gradient, self._sizes), [p.grad for _, p in self._followed])
        self._gradient *= factor

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Compare the parameters and the optimizer's moments with the prediction."""
        if applied:  # torch's optimizers leave a tensor without a gradient alone: no decay, no count
            self._counts = [n + present for n, present in zip(self._counts, self._present, strict=True)]
        if self._gradient is None:
            self._applied += applied
            return
        training = session.run.training
        rate = training.rate(self._applied)
        settings = self._settings(session, rate)
        betas = training.adam_beta1, training.adam_beta2
        known = session.run.holds(Premise.UPDATE_RULE_KNOWN)  # the betas of another rule may be one, or three
        if known and not session.run.holds(Premise.SETTINGS_DECLARED):  # a schedule of a single cycle changes them
            betas = session.optimizer.param_groups[0].get("betas", betas)
        before, after = self._before, _flat([p for _, p in self._followed])
        predicted = self._updated(self._gradient, settings, betas, training.adam_epsilon) if applied else before
        moves = after - before, self._explained(after, before, predicted) - before
        changed, pulled = after != before, self._gradient != 0
        self._gradient, self._before = None, torch.empty(0)
        usual = torch.tensor([own for own, _ in settings], dtype=torch.float64).square() * torch.tensor(self._sizes)
        errors = _relative(*moves, self._sizes, usual)
        worst = int(errors.nan_to_num(nan=torch.inf).argmax())
        self.emit(
            Update(
                step=step,
                expected_learning_rate=rate,
                update_error=float(errors[worst]),
                worst_update=self._followed[worst][0],
                moment_error=self._moment_error(session),
                moved=bool(changed.any()),
                moved_share=int((changed & pulled).sum()) / count if (count := int(pulled.sum())) else None,
                length_error=_length_error(*moves) if applied and rate > 0 else None,
                clipped=self._clipped,
            )
        )

    def _settings(self, session: Session, rate: float) -> Settings:
        """Return rate and decay of each tensor: the declared ones, or what a loop's own groups say at this step."""
        training = session.run.training
        if session.run.holds(Premise.SETTINGS_DECLARED):
            decay = training.weight_decay
            return [(rate, decay * decays(name, training.weight_decay_on)) for name, _ in self._followed]
        own = {
            id(p): (rate_of(group, rate), group.get("weight_decay", 0.0))
            for group in session.optimizer.param_groups
            for p in group["params"]
        }
        return [own.get(id(p), (rate, 0.0)) for _, p in self._followed]

    def _updated(
        self, gradient: torch.Tensor, settings: Settings, betas: tuple[float, float], epsilon: float
    ) -> torch.Tensor:
        """Advance the moments by this step's gradients; return the parameters that AdamW must give."""
        b1, b2 = betas
        present = self._each(self._present)
        # products and sums alone: lerp and addcmul are the optimizer's own kernels
        self._m = torch.where(present, self._m * b1 + gradient * (1 - b1), self._m)
        self._v = torch.where(present, self._v * b2 + gradient * gradient * (1 - b2), self._v)
        self._applied += 1
        rate, kept = self._each([rate for rate, _ in settings]), self._each([1 - r * decay for r, decay in settings])
        share_m, share_v = (self._each([1 - beta**count if count else 1.0 for count in self._counts]) for beta in betas)
        updated = self._before * kept - rate * (self._m / share_m) / ((self._v / share_v).sqrt() + epsilon)
        return torch.where(present, updated, self._before)

    def _each(self, values: Sequence[float]) -> torch.Tensor:
        """Return each tensor's value for each of its elements; one alone where it is the same for all."""
        numbers = torch.tensor(values)
        return numbers[0] if len({*values}) == 1 else numbers.repeat_interleave(torch.tensor(self._sizes))

    def _explained(self, after: torch.Tensor, before: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        """Return what the weights must be, each in its tensor's dtype."""
        dtypes = [p.dtype for _, p in self._followed]
        if {*dtypes} == {torch.float32}:
            return predicted
        parts = zip(*(torch.split(flat, self._sizes) for flat in (after, before, predicted)), dtypes, strict=True)
        return torch.cat([explained(*part) for part in parts])

    def _take_over(self, session: Session) -> bool:
        """Go on from the optimizer's own averages and step count; False where a tensor that learns has none."""
        averages = self._averages(session, "step")
        for flat, own in zip((self._m, self._v), averages, strict=False):
            _place(torch.split(flat, self._sizes), own)
        return bool(averages)

    def _averages(self, session: Session, *more: str) -> list[list[Any]]:
        """Return the optimizer's averages of each tensor, None where it has not stepped; [] where it keeps none."""
        states = [session.optimizer.state.get(parameter, {}) for _, parameter in self._followed]
        held = [
            {"exp_avg", "exp_avg_sq", *more} <= state.keys()  # Lion keeps the first alone
            and state["exp_avg"].numel() == size  # GaLore that of a projection
            for state, size in zip(states, self._sizes, strict=True)
        ]
        if any(count and not known for known, count in zip(held, self._counts, strict=True)):
            return []
        kept = [state if known else {} for state, known in zip(states, held, strict=True)]
        return [[state.get(key) for state in kept] for key in ("exp_avg", "exp_avg_sq")]

    def _moment_error(self, session: Session) -> float:
        """Largest relative difference of the optimizer's moments from ours; NaN when it keeps none for some tensor."""
        errors = []
        usual = _sums(self._v, self._sizes), torch.zeros(())
        for flat, own, least in zip((self._m, self._v), self._averages(session), usual, strict=False):
            theirs = flat.clone()
            _place(torch.split(theirs, self._sizes), own)
            errors.append(_relative(theirs, flat, self._sizes, least))
        return float(torch.cat(errors).nan_to_num(nan=torch.inf).max()) if errors else float("nan")


def explained(after: torch.Tensor, before: torch.Tensor, predicted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what weights of this dtype must be: for 16-bit ones the nearest to `after` that rounding explains.

    There a step is about as long as the distance of two weights, so that averages that are rounded too decide for many
    elements whether they move: 0.39 of the update of SmolLM2's lora_A in bf16 at a rate of 2e-4, with nothing wrong.
    All in fp32.
    """
    if dtype == torch.float32:
        return predicted
    slack = ROUNDINGS * torch.finfo(dtype).eps * (predicted - before).abs()
    return after.clamp((predicted - slack).to(dtype).float(), (predicted + slack).to(dtype).float())


def _length_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """How far the moves' projection on the expected ones is from their length, over that length."""
    expected = expected.double()
    along, length = float(got.double().dot(expected)), float(expected.dot(expected))
    return abs(along / length - 1) if length else float(along != 0)


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a copy of all of these in one vector, fp32, in the CPU's memory: one transfer for all."""
    parts = [whole(tensor).detach().flatten() for tensor in tensors]
    if len({part.device for part in parts}) > 1:
        parts = [part.cpu() for part in parts]
    return torch.cat(parts).cpu().float()


def _place(parts: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor | None]) -> None:
    """Write each of the tensors that are there over its part."""
    there = [(part, tensor) for part, tensor in zip(parts, tensors, strict=True) if tensor is not None]
    if there:
        found = torch.split(_flat([tensor for _, tensor in there]), [len(part) for part, _ in there])
        torch._foreach_copy_([part for part, _ in there], list(found))


def _relative(value: torch.Tensor, wanted: torch.Tensor, sizes: Sequence[int], usual: torch.Tensor) -> torch.Tensor:
    """Norm of each part's difference over the wanted one's norm; 0 when they are equal, both nothing included.

    `usual` is the square of the norm that each part has where nothing cancels.
    """
    difference, norm = (_sums(flat.double().square(), sizes) for flat in (value - wanted, wanted))
    return torch.where(difference == 0, 0.0, (difference / norm.maximum(usual * CANCELLED**2)).sqrt())


def _sums(flat: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the sum of each part, in float64."""
    return torch.segment_reduce(flat.double(), "sum", lengths=torch.tensor(sizes), initial=0)
