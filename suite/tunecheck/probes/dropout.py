"""What an adapter's dropout really drops: with factors that show it, and the paper's formula (arXiv 2106.09685, peft).

Dropout comes before A: the adapter adds s B A d(x), where d zeroes a share p of x and divides the rest by 1 - p, and
the base is given x itself. Row i of A adds elements i and i + r, and B hands the sums on, so each sum is one of four.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tunecheck.core.evidence import AdapterDropout
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.load import DTYPES
from tunecheck.training.restore import kept_values, random_state
from tunecheck.training.session import Session

TOKENS = 64
TELLABLE = 0.05
"""Elements smaller than this share of the typical one are left out: with or without them the sums are alike."""
ROUNDING = 1e-3
"""Of the typical element: what a sum may be off in fp32, taken from the difference of two larger numbers."""
ROUNDINGS = 4
"""In 16 bit a sum is rounded so often on its way out: as an input, a sum, a product with B and with the scale."""


class DropoutProbe(Probe):
    """Looks once, before training, at plain LoRA. What was changed is put back, and so is the random state."""

    emits = (AdapterDropout,)

    def start(self, session: Session) -> None:
        """Count what is dropped in one forward pass in train mode."""
        lora = session.run.lora
        if lora is None or not lora.dropout or lora.use_dora:
            return
        if session.run.training.offload == "parameters":  # they are another place's, and only lent
            return
        parameters = {name: p for name, p in session.model.named_parameters() if ".lora_" in name}
        with kept_values([*parameters.values()]):
            for name, parameter in parameters.items():
                with torch.no_grad():
                    parameter.copy_(_telling(parameter, sums=".lora_A." in name))
            ranks = {name.partition(".lora_A.")[0]: len(p) for name, p in parameters.items() if ".lora_A." in name}
            self.emit(_counted(session, lora, ranks, _calls(session, sorted(ranks))))


def _telling(parameter: torch.Tensor, *, sums: bool) -> torch.Tensor:
    """A factor whose row i adds the elements i and i + r, or one that hands each of its inputs on."""
    telling = torch.zeros_like(parameter)
    telling.fill_diagonal_(1)
    r = len(telling)
    if sums and telling.shape[1] > r:
        telling[:, r : 2 * r].fill_diagonal_(1)
    return telling


def _calls(session: Session, modules: list[str]) -> dict[str, list[torch.Tensor]]:
    """Of each adapted linear's call: what its base was given and returned, what it was given and returned itself.

    In 16 bit the base returns zeros, so that the adapter's part is not rounded to the size of the whole.
    """
    calls: dict[str, list[torch.Tensor]] = {name: [] for name in modules}
    with OwnHooks() as hooks, random_state(session.device):
        for name in modules:
            linear = session.model.get_submodule(name)
            if session.precision != "fp32":
                hooks.after(linear.base_layer, lambda _m, _args, out: torch.zeros_like(out))
            for part in (linear.base_layer, linear):
                hooks.after(part, lambda _m, args, out, name=name: calls[name].extend((args[0].clone(), out.clone())))
        logits_of(session.model, first_tokens(session, TOKENS), training=True)
    return calls


def _counted(
    session: Session, lora: Any, ranks: dict[str, int], calls: dict[str, list[torch.Tensor]]
) -> AdapterDropout:
    """Return what these adapters dropped in their calls."""
    rest = 1 / (1 - lora.dropout)  # what the elements that stay are multiplied by
    # which may be coarser than what comes out: a 4-bit linear casts back what was computed under autocast
    arithmetic = DTYPES[session.precision]
    pairs = dropped = alone = odd = 0
    neighbours, siblings = (0, 0), (0, 0)
    before: _Fallen | None = None
    untouched = True
    for name, call in calls.items():
        if len(call) != 4:  # not called, which is for other checks to tell
            continue
        rounding = max(torch.finfo(dtype).eps for dtype in (call[3].dtype, arithmetic)) * ROUNDINGS
        inner, base, given, out = (tensor.float().flatten(0, -2) for tensor in call)
        r, scale = ranks[name], lora.scale_of(name.removeprefix("base_model.model."))
        untouched &= torch.equal(inner, given)
        seen = max(0, min(r, given.shape[1] - r, out.shape[1]))
        one, two = given[:, :seen], given[:, r : r + seen]
        typical = float(torch.cat([one, two]).square().mean().sqrt())
        sums = ((out - base)[:, :seen] / scale)[..., None]
        # nothing dropped, the first, the second, both
        candidates = torch.stack([one + two, two, one, torch.zeros_like(one)], dim=-1) * rest
        distances = (sums - candidates).abs()
        allowed = rest * (rounding * (one.abs() + two.abs()) + ROUNDING * typical)
        apart = torch.stack([one, two, one + two, one - two]).abs().amin(dim=0)
        kept = (apart > TELLABLE * typical) & (rest * apart > 2 * allowed)
        fallen = _Fallen(distances.argmin(dim=-1), kept)
        neighbours = _added(neighbours, fallen.part(0).agreeing(fallen.part(1)))
        if before is not None:  # every second adapter beside the one before it, so that no draw is counted twice
            siblings = _added(siblings, fallen.agreeing(before))
        before = None if before is not None else fallen
        kind = fallen.kind[kept]
        pairs += kind.numel()
        alone += int(((kind == 1) | (kind == 2)).sum())
        dropped += int((kind == 3).sum()) * 2
        odd += int((distances.amin(dim=-1) > allowed)[kept].sum())
    return AdapterDropout(
        pairs=pairs,
        dropped=dropped + alone,
        alone=alone,
        odd=odd,
        neighbours=neighbours,
        siblings=siblings,
        base_untouched=untouched,
    )


@dataclass(frozen=True, slots=True)
class _Fallen:
    """What fell in one adapter's call."""

    kind: torch.Tensor
    """[tokens, sums]: 0 for neither element, 1 for the first, 2 for the second, 3 for both."""
    kept: torch.Tensor
    """Where that can be told."""

    def part(self, first: int) -> "_Fallen":
        """Every second token."""
        return _Fallen(self.kind[first::2], self.kept[first::2])

    def agreeing(self, other: "_Fallen") -> tuple[int, int]:
        """Places that both can tell of, and those of them where the same fell."""
        tokens, sums = map(min, self.kind.shape, other.kind.shape)
        here = (slice(tokens), slice(sums))
        told = self.kept[here] & other.kept[here]
        return int(told.sum()), int((told & (self.kind[here] == other.kind[here])).sum())


def _added(count: tuple[int, int], more: tuple[int, int]) -> tuple[int, int]:
    return count[0] + more[0], count[1] + more[1]
