"""The algebra of LoRA: untouched adapters change nothing, touched ones add exactly s B A x with s = alpha/r.

With rsLoRA s = alpha/sqrt(r). With DoRA (arXiv 2402.09353) the linear becomes b + m / ||W + s B A|| (W + s B A) x, the
norm taken over each row of the matrix and m the magnitude that learns. Dropout (arXiv 2106.09685, peft) comes before A:
it adds s B A d(x), where d zeroes a share p of x and divides the rest by 1 - p, and the base is given x itself.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.functional import linear as product

from tunecheck.core.check import or_infinite
from tunecheck.core.evidence import AdapterDropout, AdapterStart
from tunecheck.models.description import Lora
from tunecheck.probes.reference.architecture import Kept, cotangent, recorded_calls
from tunecheck.probes.reference.backward import gradients_by
from tunecheck.probes.reference.forwards import PROMPT_TOKENS, first_tokens, logits_of
from tunecheck.probes.reference.four_bit import matrix
from tunecheck.probes.reference.measures import relative_difference, relative_error, worst
from tunecheck.probes.reference.weight_file import WeightFile
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import kept_values, random_state, without_adapters, without_dropout
from tunecheck.training.session import Session

RANK_TOLERANCE = 1e-4
"""Of the largest singular value: rows that repeat each other give 1e-7, random ones 0.1 and more at usual ranks."""
Factors = dict[str, torch.Tensor]
"""One adapter's tensors: A [r, in], B [out, r], B's bias [out] and DoRA's magnitude [out], those that it has."""

TOKENS = 64
ROUNDINGS = 4
"""Of an element that is kept, in the dtype that A is given it in: the division, and room."""
SPREAD = 0.02
"""Of B's elements, that of usual weights: products of large ones would leave fp16's range."""
BEHIND = 0.05
"""Relative error of what an adapter adds: its products in 16 bit are off by less, where a hundredth falls by 0.1."""
UNTOLD = -1


class AdapterProbe(Probe[AdapterStart]):
    """Looks at the adapters once, before training; what is touched at random is put back."""

    def start(self, session: Session) -> None:
        """Compare every adapted linear with its base; then, touched at random, with its formula."""
        if (lora := session.run.lora) is None:
            return
        expected = session.run.expected_trainable(WeightFile(session.folder).names)
        modules = _modules(expected) | _modules(name for name, _ in session.model.named_parameters())
        first = first_tokens(session)
        learnt = getattr(lora, "token_indices", [])  # rows of the embedding, in trainings of others
        ids = torch.cat([first, first.new_tensor([learnt[:PROMPT_TOKENS]])], dim=1)
        training = not session.run.uses_dropout  # what adds noise in train mode, NEFTune, say, is off in eval mode
        with without_dropout(session.model) if training else nullcontext(), _recorded(session, modules) as calls:
            start = logits_of(session.model, ids, training=True)
        with without_dropout(session.model):
            adapted = start if training else logits_of(session.model, ids, training=False)
            with without_adapters(session.model):
                base_difference = relative_difference(adapted, logits_of(session.model, ids, training=training))
        reached = {name: call for name, call in calls.items() if call}  # others are a part for pictures, say
        differences = [relative_difference(*call[1:]) if len(call) == 3 else math.nan for call in reached.values()]
        sizes, repeated, dependent = _starts(session)
        with _touched(session, lora) as factors:
            with _recorded(session, modules) as calls:
                # a forward without its backward pass would keep parameters that are offloaded
                graph = session.run.training.offload != "parameters"
                # dropout on a touched adapter's input changes what it adds, so only eval mode is comparable then; and
                # what drops anywhere else in a checkpointed layer would be missing when it is recomputed, below
                changed = logits_of(session.model, ids, training=training, graph=graph)
            each = {n: _algebra_errors(session, lora, n, calls[n], factors[n]) for n in factors if n in reached}
        errors = {name + part: error for name, found in each.items() for part, error in found.items()}
        at, error = worst(errors)
        seen = AdapterStart(
            start_difference=max(differences, key=or_infinite, default=math.nan),
            base_difference=base_difference,
            modules=len(factors),
            algebra_error=error,
            algebra_error_at=at,
            least_algebra_error=min((errors[name] for name in each), default=math.nan),
            logit_change=relative_difference(changed, start),
            a_sizes=sizes,
            a_repeated=repeated,
            a_dependent=dependent,
            seed=torch.initial_seed() - session.exchange.rank,  # each rank's dropout has a seed of its own
        )
        self.emit(seen)


def _modules(names: Iterable[str]) -> set[str]:
    """Modules of the base that have an adapter, by the names of its tensors."""
    owners = (name.partition(".lora_") for name in names)
    return {owner.removeprefix("base_model.model.") for owner, lora, _ in owners if lora}


def _starts(session: Session) -> tuple[dict[str, float], tuple[str, ...], tuple[str, ...]]:
    """Extreme sizes of A, see AdapterStart; the names of those that repeat an earlier one; of less than full rank."""
    factors = {name: p.detach().float() for name, p in session.model.named_parameters() if ".lora_A." in name}
    if not factors:
        return {"smallest": math.nan, "largest": math.nan}, (), ()
    sizes = torch.stack([a.square().mean().sqrt() * (3 * a.shape[1]) ** 0.5 for a in factors.values()])
    # not their sums: of numbers drawn in bf16, the sums of two hundred A are the same once in eight trainings
    begins = [tuple(a.flatten()[:64].tolist()) for a in factors.values()]
    repeated = tuple(name for at, name in enumerate(factors) if begins[at] in begins[:at])
    # on the CPU: a GPU's solver would be loaded, with its workspace, for this alone
    ranks = {name: int(torch.linalg.matrix_rank(a.cpu(), rtol=RANK_TOLERANCE)) for name, a in factors.items()}
    # a square one may lack a dimension by chance: its smallest singular value is of the order of 1 / inputs
    dependent = tuple(n for n, a in factors.items() if ranks[n] < min(a.shape) - (a.shape[0] == a.shape[1]))
    return {"smallest": float(sizes.min()), "largest": float(sizes.max())}, repeated, dependent


@contextmanager
def _touched(session: Session, lora: Lora) -> Iterator[dict[str, Factors]]:
    """The factors of every adapter by module name: B random, magnitudes off their start, for as long as it lasts."""
    parameters = {name: p for name, p in session.model.named_parameters() if ".lora_" in name}
    touched = {name: p for name, p in parameters.items() if ".lora_A." not in name}
    generator, factors = torch.Generator().manual_seed(0), dict[str, Factors]()
    with kept_values([*touched.values()]):
        with torch.no_grad():
            for name in (name for name in touched if ".lora_B." in name and name.endswith(".weight")):
                a, b = parameters[name.replace(".lora_B.", ".lora_A.")], parameters[name]
                module = name.removeprefix("base_model.model.").partition(".lora_B.")[0]
                # a small scale would leave what is added to the rounding of the sum in 16 bit, not to its formula
                enlarged = max(1.0, 1 / abs(lora.scale_of(module) or 1.0))
                b.copy_(enlarged * torch.randn(b.shape, generator=generator).to(b) / b.shape[1] ** 0.5)
                if (magnitude := parameters.get(name.replace(".lora_B.", ".lora_magnitude_vector."))) is not None:
                    magnitude.mul_((0.5 + torch.rand(magnitude.shape, generator=generator)).to(magnitude))
                if (bias := parameters.get(f"{name.removesuffix('weight')}bias")) is not None:
                    bias.copy_(enlarged * torch.randn(bias.shape, generator=generator).to(bias))
                every = {"A": a, "B": b, "bias": bias, "magnitude": magnitude}
                factors[module] = {part: p for part, p in every.items() if p is not None}
        yield factors


@contextmanager
def _recorded(session: Session, modules: Collection[str]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Yield input, base output and adapted output of each module's last call."""
    # Some models run their layers several times, so that gradients are those of all calls: of these there is no graph
    calls: dict[str, list[torch.Tensor]] = {name: [] for name in modules}
    again = set[str]()

    def begin(name: str, given: torch.Tensor, out: torch.Tensor) -> None:
        again.update([name] if calls[name] else ())
        calls[name][:] = given.to(out.device), out.clone()

    def end(name: str, out: torch.Tensor) -> None:
        calls[name].append(out.detach().clone() if name in again else out.clone())

    with OwnHooks() as hooks:
        for name in modules:
            module = session.model.get_submodule(f"base_model.model.{name}")
            base = getattr(module, "base_layer", module)
            # a copy each, since the layer may add to an output in place, as Falcon's does
            hooks.after(base, lambda _m, args, out, name=name: begin(name, args[0], out))
            hooks.after(module, lambda _m, _args, out, name=name: end(name, out))
        yield calls


def _algebra_errors(
    session: Session, lora: Lora, name: str, call: list[torch.Tensor], factors: Factors
) -> dict[str, float]:
    """Relative errors of what the adapter adds ("") and of its gradients, by the formula with the run's own numbers."""
    if len(call) != 3 or lora.use_dora != ("magnitude" in factors):
        # no adapter (its own hook and its base's are one and the same call), or one of another kind
        return {"": math.nan}
    x, base, out = (tensor.detach().float() for tensor in call)
    copies = {part: p.detach().float().requires_grad_(True) for part, p in factors.items()}
    a, b = copies["A"], copies["B"]
    with torch.enable_grad():
        scale = lora.scale_of(name)
        wanted = scale * (x @ a.T @ b.T + copies.get("bias", 0))
        if "magnitude" in factors:
            adapted = session.model.get_submodule(f"base_model.model.{name}")
            linear = adapted.base_layer
            # held constant, see section 4.3 of DoRA
            weight = matrix(linear.weight)
            weight = weight.T if getattr(adapted, "fan_in_fan_out", False) else weight
            ratio = copies["magnitude"] / (weight + scale * (b @ a).detach()).norm(dim=1)
            plain = base if linear.bias is None else base - linear.bias.float()
            wanted = (ratio - 1) * plain + ratio * wanted
    errors = {"": relative_error(out - base, wanted)}
    if call[2].requires_grad and all(p.requires_grad for p in factors.values()):
        above = cotangent(wanted)
        ours = torch.autograd.grad(wanted, [*copies.values()], above)
        given = above.to(call[2].dtype)
        theirs = torch.autograd.grad(call[2], [*factors.values()], given, retain_graph=True, allow_unused=True)
        for part, it, own in zip(factors, theirs, ours, strict=True):
            errors[f"'s gradient by {part}"] = math.nan if it is None else relative_error(it.float(), own)
        if "magnitude" not in factors and call[0].requires_grad:
            # over all of it, since in 16 bit the adapter's part is the difference of two rounded ones, and may be small
            whole, plain = (gradients_by(y, [call[0]], above)[0].float() for y in (call[2], call[1]))
            errors["'s gradient by its input"] = relative_error(whole, plain + scale * (above @ b @ a).detach())
    return errors


class DropoutProbe(Probe[AdapterDropout]):
    """Looks once, before training, at plain LoRA. What was changed is put back, and so is the random state."""

    def start(self, session: Session) -> None:
        lent = session.run.training.offload == "parameters"  # they are another place's
        if (lora := session.run.lora) is None or not lora.dropout or lora.use_dora or lent:
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
                copies = recorded_calls(adapter.parts, lambda given, out: (given.clone(), out.clone()))
                adapter.call = hooks.enter_context(copies)
            logits_of(session.model, first_tokens(session, TOKENS), training=True)
            # one that was not called is for other checks to tell
            self.emit(_counted([adapter for adapter in adapters if adapter.call.keys() == adapter.parts.keys()]))


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
    def __init__(self, lora: Lora, name: str, linear: Any, adapter: str) -> None:
        self.linear, self._share = linear, lora.dropout
        self._scale = lora.scale_of(name.removeprefix("base_model.model."))
        self._a, self._b = linear.lora_A[adapter], linear.lora_B[adapter]
        self.parts = {"linear": linear, "base": linear.base_layer, "A": self._a}
        self.call: dict[str, Kept] = {}
        """What each of these was given and returned."""

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
