"""What an adapter's dropout really drops: what A is given beside what the adapted linear is (arXiv 2106.09685, peft).

Dropout comes before A: the adapter adds s B A d(x), where d zeroes a share p of x and divides the rest by 1 - p, and
the base is given x itself.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear as product

from tunecheck.core.evidence import AdapterDropout
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.measures import relative_error
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import kept_values, random_state
from tunecheck.training.session import Session

TOKENS = 64
ROUNDINGS = 4
"""Of an element that is kept, in the dtype that A is given it in: the division, and room."""
SPREAD = 0.02
"""Of B's elements, that of usual weights: products of large ones would leave fp16's range."""
BEHIND = 0.05
"""Relative error of what an adapter adds: its products in 16 bit are off by less, where a hundredth falls by 0.1."""
UNTOLD = -1
Call = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""What the adapted linear, its base and A were given and returned."""


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
        factors = {name: p for name, p in session.model.named_parameters() if ".lora_" in name}
        places = [name.removesuffix(".weight").split(".lora_A.") for name in sorted(factors) if ".lora_A." in name]
        adapters = [_Adapter(lora, name, session.model.get_submodule(name), adapter) for name, adapter in places]
        # a B of zeros would hide what falls behind A
        second = [p for name, p in factors.items() if ".lora_B." in name]
        with kept_values(second), OwnHooks() as hooks, random_state(session.device):
            for factor in second:
                torch.nn.init.normal_(factor, std=SPREAD)
            for adapter in adapters:
                if session.precision != "fp32":  # so that what is added is not rounded to the size of the whole
                    hooks.after(adapter.linear.base_layer, lambda _m, _args, out: torch.zeros_like(out))
                for part, module in adapter.parts.items():
                    hooks.after(module, partial(_keep, adapter.call, part))
            logits_of(session.model, first_tokens(session, TOKENS), training=True)
            # one that was not called is for other checks to tell
            self.emit(_counted([adapter for adapter in adapters if adapter.call.keys() == adapter.parts.keys()]))


def _keep(call: Call, part: str, _module: Any, args: Any, out: torch.Tensor) -> None:
    call[part] = args[0].clone(), out.clone()


def _counted(adapters: Sequence["_Adapter"]) -> AdapterDropout:
    fallen = [adapter.fallen() for adapter in adapters]
    counts = [sum(int((pairs == kind).sum()) for pairs in fallen) for kind in range(4)]
    return AdapterDropout(
        pairs=sum(counts),
        dropped=counts[1] + counts[2] + 2 * counts[3],
        alone=counts[1] + counts[2],
        odd=sum(adapter.odd(pairs) for adapter, pairs in zip(adapters, fallen, strict=True)),
        neighbours=_agreeing((pairs[::2], pairs[1::2]) for pairs in fallen),
        siblings=_agreeing(zip(fallen[::2], fallen[1::2], strict=False)),  # pairs, so that no draw is counted twice
        base_untouched=all(torch.equal(call["base"][0], call["linear"][0]) for call in (a.call for a in adapters)),
    )


class _Adapter:
    def __init__(self, lora: Any, name: str, linear: Any, adapter: str) -> None:
        self.linear, self._share = linear, lora.dropout
        self._scale = lora.scale_of(name.removeprefix("base_model.model."))
        self._a, self._b = linear.lora_A[adapter], linear.lora_B[adapter]
        self.parts = {"linear": linear, "base": linear.base_layer, "A": self._a}
        self.call: Call = {}

    def fallen(self) -> torch.Tensor:
        """Return what fell of two neighbouring elements: neither, first, second, both; UNTOLD where one of x is 0."""
        x, d = (self.call[part][0].flatten(0, -2) for part in ("linear", "A"))
        fell, told = d == 0, x.abs() >= torch.finfo(d.dtype).smallest_normal
        return torch.where(told[:, :-1:2] & told[:, 1::2], fell[:, :-1:2] + 2 * fell[:, 1::2], UNTOLD)

    def odd(self, pairs: torch.Tensor) -> int:
        """Return the pairs of which an element is neither dropped nor the given one over 1 - p.

        All of them, where what is added is not s B A d(x): then something falls behind A, too.
        """
        x, d = (self.call[part][0].float().flatten(0, -2) for part in ("linear", "A"))
        rounding = ROUNDINGS * torch.finfo(self.call["A"][0].dtype).eps
        off = (d != 0) & ~((d * (1 - self._share) - x).abs() <= rounding * x.abs())
        base, out = (self.call[part][1].float().flatten(0, -2) for part in ("base", "linear"))
        bias = None if self._b.bias is None else self._b.bias.float()
        wanted = self._scale * product(product(d, self._a.weight.float()), self._b.weight.float(), bias)
        off |= not relative_error(out - base, wanted) <= BEHIND
        return int(((off[:, :-1:2] | off[:, 1::2]) & (pairs != UNTOLD)).sum())


def _agreeing(beside: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int]:
    """Return the places that both of two tell of, and those of them where the same fell."""
    told = agreeing = 0
    for one, other in beside:
        tokens, pairs = map(min, one.shape, other.shape)
        one, other = one[:tokens, :pairs], other[:tokens, :pairs]
        both = (one != UNTOLD) & (other != UNTOLD)
        told, agreeing = told + int(both.sum()), agreeing + int((both & (one == other)).sum())
    return told, agreeing
