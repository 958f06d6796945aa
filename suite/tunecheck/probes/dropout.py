"""What an adapter's dropout really drops: what A is given beside what the adapted linear is (arXiv 2106.09685, peft).

Dropout comes before A: the adapter adds s B A d(x), where d zeroes a share p of x and divides the rest by 1 - p, and
the base is given x itself.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from tunecheck.core.evidence import AdapterDropout
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import random_state
from tunecheck.training.session import Session

TOKENS = 64
ROUNDINGS = 4
"""Of an element that is kept, in the dtype that A is given it in: the division, and room."""
UNTOLD = -1
Call = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""What the adapted linear, its base, A and B were given and returned."""


class DropoutProbe(Probe):
    """Looks once, before training, at plain LoRA. The random state is put back."""

    emits = (AdapterDropout,)

    def start(self, session: Session) -> None:
        """Count what is dropped in one forward pass in train mode."""
        lora = session.run.lora
        if lora is None or not lora.dropout or lora.use_dora:
            return
        if session.run.training.offload == "parameters":  # they are another place's, and only lent
            return
        factors = [name for name, _ in session.model.named_parameters() if ".lora_A." in name]
        calls: dict[str, Call] = {name.partition(".lora_A.")[0]: {} for name in sorted(factors)}
        with OwnHooks() as hooks, random_state(session.device):
            for name, call in calls.items():
                linear = session.model.get_submodule(name)
                parts = {"linear": [linear], "base": [linear.base_layer]}
                for part, modules in {**parts, "A": linear.lora_A.values(), "B": linear.lora_B.values()}.items():
                    for module in modules:
                        hooks.after(module, partial(_keep, call, part))
            logits_of(session.model, first_tokens(session, TOKENS), training=True)
        # one that was not called is for other checks to tell
        self.emit(_counted(lora.dropout, [call for call in calls.values() if len(call) == 4]))


def _keep(call: Call, part: str, _module: Any, args: Any, out: torch.Tensor) -> None:
    call[part] = args[0].clone(), out.clone()


def _counted(share: float, calls: Sequence[Call]) -> AdapterDropout:
    """Return what these adapters dropped in their calls, where this share of elements is to fall."""
    fallen = [_fallen(call) for call in calls]
    counts = [sum(int((pairs == kind).sum()) for pairs in fallen) for kind in range(4)]
    return AdapterDropout(
        pairs=sum(counts),
        dropped=counts[1] + counts[2] + 2 * counts[3],
        alone=counts[1] + counts[2],
        odd=sum(_odd(share, call, pairs) for call, pairs in zip(calls, fallen, strict=True)),
        neighbours=_agreeing((pairs[::2], pairs[1::2]) for pairs in fallen),
        siblings=_agreeing(zip(fallen[::2], fallen[1::2], strict=False)),  # pairs, so that no draw is counted twice
        base_untouched=all(torch.equal(call["base"][0], call["linear"][0]) for call in calls),
    )


def _fallen(call: Call) -> torch.Tensor:
    """Return what fell of two neighbouring elements: neither, the first, the second, both; UNTOLD beside a 0 of x."""
    x, d = (call[part][0].flatten(0, -2) for part in ("linear", "A"))
    fell, told = d == 0, x.abs() >= torch.finfo(d.dtype).smallest_normal
    return torch.where(told[:, :-1:2] & told[:, 1::2], fell[:, :-1:2] + 2 * fell[:, 1::2], UNTOLD)


def _odd(share: float, call: Call, pairs: torch.Tensor) -> int:
    """Return the pairs of which an element is neither dropped nor the given one over 1 - share.

    All of them, where B is given something else than A returns: what falls there is not A's input.
    """
    x, d = (call[part][0].float().flatten(0, -2) for part in ("linear", "A"))
    off = (d != 0) & ~((d * (1 - share) - x).abs() <= ROUNDINGS * torch.finfo(call["A"][0].dtype).eps * x.abs())
    wrong = off[:, :-1:2] | off[:, 1::2] | (not torch.equal(call["A"][1], call["B"][0]))
    return int((wrong & (pairs != UNTOLD)).sum())


def _agreeing(beside: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int]:
    """Return the places that both of two tell of, and those of them where the same fell."""
    told = agreeing = 0
    for one, other in beside:
        tokens, pairs = map(min, one.shape, other.shape)
        one, other = one[:tokens, :pairs], other[:tokens, :pairs]
        both = (one != UNTOLD) & (other != UNTOLD)
        told, agreeing = told + int(both.sum()), agreeing + int((both & (one == other)).sum())
    return told, agreeing
