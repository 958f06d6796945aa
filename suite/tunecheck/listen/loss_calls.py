"""Calls of loss functions that leave nothing of their own in the graph of a loss, and what they are given."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tunecheck.listen.loop_loss import ENTROPIES, are_stretched, plainly
from tunecheck.probes.reference import loss_graph
from tunecheck.probes.reference.measures import living
from tunecheck.training.hooks import Hooks

SIGNS = {"cosine_embedding_loss": 2, "margin_ranking_loss": 2, "hinge_embedding_loss": 1, "soft_margin_loss": 1}
"""Loss of torch.nn.functional whose targets are -1 or 1 to the place of these among its arguments."""
BROADCAST = "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"
"""Losses that stretch outputs and targets of different shapes to one, as is seen where they are called alone."""
LOSSES = ("kl_div", *SIGNS, *BROADCAST)
"""Losses that leave nothing of their own in the graph, or too little, and are heard as they are called."""
OF_SCORES = {
    "LogSoftmaxBackward0": ("SoftmaxBackward0",),
    "BinaryCrossEntropyWithLogitsBackward0": ("SoftmaxBackward0", "SigmoidBackward0"),
    **dict.fromkeys(ENTROPIES, ("SoftmaxBackward0", "SigmoidBackward0")),
}
"""Functions that expect scores, or their logarithms, to those whose results are probabilities already."""
ROWS_SUMMED = 64
MOST_OF_LOG_1 = 0.05
"""Logarithm of the sum of probabilities at most, which 16 bit round, and to which a script may add a little."""
MOST_ROUNDING = 1e-2
"""Of a length, in 16 bit."""


@dataclass(slots=True)
class LossCalls:
    """Calls of losses that leave nothing of their own in the graph, and what they are given that they do not expect."""

    functions: int = 0
    wrong: list[str] = field(default_factory=list)
    repeats: float = 0.0
    """How far a ratio of two passes of the model may be from 1 by rounding; 0 where it drops, or is not known."""
    stretched: int = 0
    """Losses of outputs and targets of shapes that differ."""
    softened: bool | None = None
    """Whether two temperatures make the first divergence's distributions of their logits."""
    reversed: int = 0
    """Divergences whose targets learn, and whose inputs do not."""
    over: bool = False
    """Whether the first loss is about to be differentiated, which further calls are no part of."""

    def hear(self, hooks: Hooks) -> None:
        """Hook these losses."""
        for name in LOSSES:
            hooks.function(torch.nn.functional, name, before=partial(self.called, name))

    def called(self, name: str, *given: Any, **named: Any) -> None:
        """Look at what this loss is about to be called with."""
        if self.over:
            return
        place = SIGNS.get(name, 1)
        target = named.get("target", given[place] if len(given) > place else None)
        if name in SIGNS:
            if isinstance(target, torch.Tensor) and target.numel():
                self.functions += 1
                if float(target.min()) == 0:  # beside targets of -1 a 0 leaves a pair out
                    self.wrong.append(f"{name} of targets from 0, which are to be -1 or 1")
            return
        scores = named.get("input", next(iter(given), None))
        if name in BROADCAST:
            self.stretched += are_stretched(scores, target)
            return
        if not isinstance(scores, torch.Tensor) or not scores.requires_grad:
            self.reversed += isinstance(scores, torch.Tensor) and getattr(target, "requires_grad", False)
            return
        self.functions += 1
        if isinstance(target, torch.Tensor) and target.shape == scores.shape:
            if not named.get("log_target") and bool((target < 0).any()):
                self.wrong.append("kl_div of logarithms as targets, without log_target")
                return
            logarithms = target if named.get("log_target") else target.log()
            axes, others = normalised(scores), normalised(logarithms)
            if axes and others and axes.isdisjoint(others):
                self.wrong.append(f"{name} of distributions over axis {min(axes)} and over axis {min(others)}")
                return
            alive = living(torch.Tensor) if self.softened is None else []
            known = [each for one in (scores, logarithms) if (each := _temperature(one, alive)) is not None]
            self.softened = self.softened or (len(known) == 2 and min(known) < (1 - MOST_OF_LOG_1) * max(known))
        made = loss_graph.straight_back((scores.grad_fn, 0))[0]
        if made is not None and made.name() in OF_SCORES["BinaryCrossEntropyWithLogitsBackward0"]:
            self.wrong.append(f"{name} of a {plainly(made)}")


def normalised(likelihoods: torch.Tensor) -> set[int]:
    """Return the axes over which these logarithms are of probabilities."""
    axes = {axis for axis, size in enumerate(likelihoods.shape) if size > 1}
    for axis in tuple(axes):  # all along it, a few of the others: a copy of all may take gigabytes
        some = tuple(slice(None if at == axis else ROWS_SUMMED) for at in range(likelihoods.ndim))
        found = likelihoods.detach()[some].float().logsumexp(dim=axis)
        axes -= set() if bool((found.abs() <= MOST_OF_LOG_1).all()) else {axis}
    return axes


def _temperature(likelihoods: torch.Tensor, alive: list[torch.Tensor]) -> float | None:
    """Return by what the logits of these log-likelihoods were divided; None where no living tensor holds them.

    The largest one counts: a variable may hold what was divided already.
    """
    wanted, found = centred(likelihoods), list[float]()
    for logits in alive:
        plain = type(logits) is torch.Tensor and logits.layout is torch.strided and logits.is_floating_point()
        here = plain and logits.device == likelihoods.device and logits.numel() == likelihoods.numel()
        if here and logits.shape[-1:] == likelihoods.shape[-1:]:
            given = centred(logits)
            slope = float((given * wanted).sum() / given.square().sum())
            alike = slope > 0 and bool((wanted - slope * given).norm() <= MOST_ROUNDING * wanted.norm())
            if alike and not normalised(logits):  # as these log-likelihoods are themselves
                found.append(1 / slope)
    return max(found, default=None)


def centred(scores: torch.Tensor) -> torch.Tensor:
    """Return the first rows of these, each with mean 0: logits and their log-likelihoods are then alike."""
    rows = scores.detach().reshape(-1, scores.shape[-1])[:ROWS_SUMMED].float()
    return rows - rows.mean(dim=-1, keepdim=True)
