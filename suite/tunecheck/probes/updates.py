"""Every early optimizer step, and some of the later ones, against closed-form AdamW fed with the same gradients.

AdamW (arXiv 1711.05101): p <- p (1 - lr wd) - lr (m / b1') / (sqrt(v / b2') + eps) with m, v averages of g, g^2.
The rate is the schedule's closed form, the clip factor min(1, max_norm / (norm + 1e-6)) as in torch.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch

from tunecheck.core.check import or_infinite
from tunecheck.core.evidence import Update
from tunecheck.core.optimization import decays
from tunecheck.core.premises import Premise
from tunecheck.probes.reference.measures import relative_error, worst
from tunecheck.training.events import Probe
from tunecheck.training.hooks import rate_of, tensors_of
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


class UpdateProbe(Probe[Update]):
    """Keeps its own fp32 moments and predicts each step; in the CPU's memory, as the card's is in the run's peak."""

    def start(self, session: Session) -> None:
        named = sorted(learning(session.model), key=lambda pair: pair[1].numel())
        self._all = [p for _, p in named]
        held = {id(p) for p in tensors_of(session.optimizer)}
        if not session.run.holds(Premise.SETTINGS_DECLARED):  # what it leaves out is optimizer_coverage's question
            named = [pair for pair in named if id(pair[1]) in held] or named
        sizes = accumulate(p.numel() for _, p in named)
        self._followed = [pair for pair, size in zip(named, sizes, strict=True) if size <= ELEMENTS] or named[:1]
        self._m, self._v = ([torch.zeros(whole(p).numel()) for _, p in self._followed] for _ in range(2))
        self._applied = 0
        self._counts = [0] * len(self._followed)
        if session.optimizer.state and not session.run.holds(Premise.OPTIMIZER_OF_TRAINED):
            if not self._take_over(session):
                raise RuntimeError("the optimizer has steps behind it, and keeps no averages to go on from")
            states = [session.optimizer.state.get(p, {}) for _, p in self._followed]
            self._counts = [int(state.get("step", 0)) for state in states]

    def backward_end(self, session: Session, step: int) -> None:
        self._before: list[torch.Tensor] = []
        """Of a step that is followed."""
        self._present = [p.grad is not None for _, p in self._followed]
        apart = step % LATER and step < session.run.training.max_steps - 2
        if step >= STEPS and (apart or not self._take_over(session)):
            return
        self._before = _flat([p for _, p in self._followed])
        # a schedule of one optimizer may step before the next optimizer does
        self._declared = self._settings(session, session.run.training.rate(self._applied))
        factor = 1.0
        if (max_norm := session.run.training.max_grad_norm) is not None:
            present = [whole(p.grad).float().flatten() for p in self._all if p.grad is not None]
            squares = [g.dot(g).to(present[0].device) for g in present]
            norm = float(torch.stack(squares).sum().sqrt()) if present else 0.0
            factor = min(max_norm / (norm + 1e-6), 1.0)
        self._clipped = factor < 1
        gradients = iter(_flat([p.grad for _, p in self._followed if p.grad is not None]))
        self._gradients = [next(gradients) * factor if present else None for present in self._present]

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        if applied:  # torch's optimizers leave a tensor without a gradient alone: no decay, no count
            self._counts = [n + present for n, present in zip(self._counts, self._present, strict=True)]
        training = session.run.training
        rate = training.rate(self._applied)
        self._applied += applied
        if not self._before:
            return
        settings = self._declared
        betas = training.adam_beta1, training.adam_beta2
        known = session.run.holds(Premise.UPDATE_RULE_KNOWN)  # the betas of another rule may be one, or three
        if known and not session.run.holds(Premise.SETTINGS_DECLARED):  # a schedule of a single cycle changes them
            betas = session.optimizer.param_groups[0].get("betas", betas)
        before, after = self._before, _flat([p for _, p in self._followed])
        predicted = self._updated(settings, betas, training.adam_epsilon) if applied else before
        each = zip(after, before, predicted, self._followed, strict=True)
        moves = [(new - old, explained(new, old, own, p.dtype) - old) for new, old, own, (_, p) in each]
        errors = {
            name: relative_error(got.double(), own.double(), CANCELLED * usual * len(got) ** 0.5)
            for (name, _), (usual, _), (got, own) in zip(self._followed, settings, moves, strict=True)
        }
        at, error = worst(errors)
        pulled = [(g != 0, got != 0) for g, (got, _) in zip(self._gradients, moves, strict=True) if g is not None]
        count = sum(int(own.sum()) for own, _ in pulled)
        self._before, self._gradients = [], []
        seen = Update(
            step=step,
            expected_learning_rate=rate,
            update_error=error,
            worst_update=at,
            moment_error=self._moment_error(session),
            moved=any(bool(got.any()) for got, _ in moves),
            moved_share=sum(int((own & moved).sum()) for own, moved in pulled) / count if count else None,
            length_error=_length_error(moves) if applied and rate > 0 else None,
            clipped=self._clipped,
        )
        self.emit(seen)

    def _settings(self, session: Session, rate: float) -> Settings:
        """Return rate and decay of each tensor: the declared ones, or what a loop's own groups say at this step."""
        training = session.run.training
        if session.run.holds(Premise.SETTINGS_DECLARED):
            decay = training.weight_decay
            return [(rate, decay * decays(name, training.weight_decay_on)) for name, _ in self._followed]
        groups = session.optimizer.param_groups
        own = {id(p): (rate_of(each, rate), each.get("weight_decay", 0.0)) for each in groups for p in each["params"]}
        return [own.get(id(p), (rate, 0.0)) for _, p in self._followed]

    def _updated(self, settings: Settings, betas: tuple[float, float], epsilon: float) -> list[torch.Tensor]:
        """Advance the moments by this step's gradients; return the parameters that AdamW must give."""
        b1, b2 = betas
        updated = [*self._before]
        for at, (before, gradient) in enumerate(zip(self._before, self._gradients, strict=True)):
            if gradient is None:
                continue
            # products and sums alone: lerp and addcmul are the optimizer's own kernels
            self._m[at] = m = self._m[at] * b1 + gradient * (1 - b1)
            self._v[at] = v = self._v[at] * b2 + gradient * gradient * (1 - b2)
            (rate, decay), count = settings[at], self._counts[at]
            step = (m / (1 - b1**count)) / ((v / (1 - b2**count)).sqrt() + epsilon)
            updated[at] = before * (1 - rate * decay) - rate * step
        return updated

    def _take_over(self, session: Session) -> bool:
        """Go on from the optimizer's own averages and step count; False where a tensor that learns has none."""
        averages = self._averages(session, "step")
        for ours, theirs in zip((self._m, self._v), averages, strict=False):
            for at, average in theirs.items():
                ours[at] = average
        return bool(averages)

    def _averages(self, session: Session, *more: str) -> list[dict[int, torch.Tensor]]:
        """Return the optimizer's averages by their tensor's number, of those that have stepped; [] without any."""
        kinds = ("exp_avg", "exp_avg_sq")
        states = [session.optimizer.state.get(parameter, {}) for _, parameter in self._followed]
        pairs = zip(states, self._m, strict=True)
        # Lion keeps the first kind alone, and GaLore that of a projection
        held = [{*kinds, *more} <= state.keys() and state["exp_avg"].numel() == len(own) for state, own in pairs]
        if any(count and not known for known, count in zip(held, self._counts, strict=True)):
            return []
        known = [at for at, own in enumerate(held) if own]
        return [dict(zip(known, _flat([states[at][kind] for at in known]), strict=True)) for kind in kinds]

    def _moment_error(self, session: Session) -> float:
        """Largest relative difference of the optimizer's moments from ours; NaN when it keeps none for some tensor."""
        averages = self._averages(session)
        errors = [0.0] * len(averages)  # what has not stepped has none
        for kind, (ours, theirs) in enumerate(zip((self._m, self._v), averages, strict=False)):
            for at, average in theirs.items():
                least = 0.0 if kind else CANCELLED * float(self._v[at].double().sum()) ** 0.5
                errors.append(relative_error(average.double(), ours[at].double(), least))
        return max(map(or_infinite, errors), default=float("nan"))


def explained(after: torch.Tensor, before: torch.Tensor, predicted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what weights of this dtype must be: for 16-bit ones the nearest to `after` that rounding explains.

    There a step is about as long as the distance of two weights, so that averages that are rounded too decide for many
    elements whether they move: 0.39 of the update of SmolLM2's lora_A in bf16 at a rate of 2e-4, with nothing wrong.
    """
    if dtype == torch.float32:
        return predicted
    slack = ROUNDINGS * torch.finfo(dtype).eps * (predicted - before).abs()
    return after.clamp((predicted - slack).to(dtype).float(), (predicted + slack).to(dtype).float())


def _length_error(moves: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """How far the moves' projection on the expected ones is from their length, over that length."""
    got, expected = (torch.cat(parts).double() for parts in zip(*moves, strict=True))
    along, length = float(got.dot(expected)), float(expected.dot(expected))
    return abs(along / length - 1) if length else float(along != 0)


def _flat(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a copy of each of these as a vector, fp32, in the CPU's memory: one transfer for all."""
    parts = [whole(tensor).detach().flatten() for tensor in tensors]
    if len({part.device for part in parts}) > 1:
        parts = [part.cpu() for part in parts]
    return [*torch.split(torch.cat(parts).cpu().float(), [len(part) for part in parts])] if parts else []
