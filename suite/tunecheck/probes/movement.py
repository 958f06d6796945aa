"""From start to end each trainable tensor moves and each frozen byte stays; between two steps nothing changes."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

import torch

from tunecheck.core.check import grouped
from tunecheck.core.evidence import Continuity, Movement
from tunecheck.core.premises import Premise
from tunecheck.models.layer_names import is_pretrained, stacked_layers
from tunecheck.probes.reference.four_bit import is_packed, with_statistics
from tunecheck.probes.reference.measures import digest, digests, evenly, sample, sampled_places
from tunecheck.probes.reference.vocabulary import vocabulary_size
from tunecheck.probes.reference.weight_file import WeightFile, drawn_heads, file_name, unmarked_heads
from tunecheck.training.events import Probe
from tunecheck.training.hooks import rate_of
from tunecheck.training.restore import adapted_layers
from tunecheck.training.session import Session
from tunecheck.training.tensors import is_encoded, learning, own_parameters, undifferentiated, whole

MOST_EXPERTS = 512
"""Rows of a router's weight at most."""
ADDED_TOKENS = ".trainable_tokens_delta."
"""In the names of the rows that peft trains of an embedding."""
LOW_RANK = "lora"
CLOSE = 0.85
"""Likeness of a name to requires_grad, by difflib."""
FEWEST_ELEMENTS, EDGE = 64, 8.0
"""Elements by which a distribution is known, and how far the largest may be from its bound, over their number."""
A_HEAD = 0.1
"""Of the parameters of a model's layers, those of its head at most."""
NO_GRADIENT = 1e-6
"""Share of all gradients' norm up to which one may be a rounded 0, as a bias's before a norm is: 1e-8 measured."""

TRAINED_ELEMENTS, FROZEN_ELEMENTS = 512, 64
"""Elements compared of each tensor, evenly spread: a part is not enough to find a flipped bit, which the digests at the
end do, but it shows at every step what changed a tensor as a whole."""

Named = Sequence[tuple[str, torch.Tensor]]


class MovementProbe(Probe[Movement]):
    """Keeps samples of what learns and digests of what does not."""

    def start(self, session: Session) -> None:
        self._trainable = [(name, p) for name, p in learning(session.model) if p.numel()]
        # on the CPU: what is kept from step to step would be in the run's peak
        self._samples = {name: sample(p).cpu() for name, p in self._trainable}
        self._digests = {name: digest(p) for name, p in self._trainable}
        table = session.model.get_input_embeddings().weight if session.run.holds(Premise.CAUSAL_LM) else None
        self._lookup = None if table is _head(session.model) else table  # only a head's every row has a gradient
        self._read: set[int] = set()
        self._held = _rows_held(session) if table is not None else math.inf
        """Rows of the embedding that the base's file has."""
        named = {name for name, _ in self._trainable}
        self._idle = named & undifferentiated(session.model) if session.run.holds(Premise.CAUSAL_LM) else named
        """Tensors that need not move: a model that is not known may have parts that take no part."""
        self._first_norms: dict[str, float] = {}
        """Of the gradients that the first steps give."""
        self._reached: set[str] = set()
        """Those that backward gave a gradient, of 0 too."""
        self._rates: dict[int, float] = {}
        """Identity of each tensor that the optimizer holds to its highest rate."""
        self._without: list[str] = []
        """Those without any in the first step, then in the second one."""
        self._called: set[int] = set()
        """Modules, by their identity, that the second step calls; noted only where some are without a gradient."""
        self._uncalled: dict[str, tuple[str, ...]] = {}
        # an embedding's A has a column for each token, those that are read learn
        self._columns = {name: p for name, p in self._trainable if ".lora_embedding_A." in name}
        self._parts = _learning_in_part(session.model, self._lookup) | self._columns
        counts = {name: p.shape[1] if name in self._columns else len(p) for name, p in self._parts.items()}
        self._learnt = {n: torch.zeros(counts[n], dtype=torch.bool, device=p.device) for n, p in self._parts.items()}
        frozen = list(_frozen(session))
        held = zip(digests(tensor for _, tensor in frozen), frozen, strict=True)
        self._frozen = {name: (before, tensor) for before, (name, tensor) in held}
        self._thawed = set[str]()
        learnt = set(self._digests.values())
        heads = drawn_heads(session.model, session.folder) | unmarked_heads(session.model)
        adapted = tuple(f"{name}." for name in adapted_layers(session.model))
        # a copy of what learns follows it later on, as a target network does
        own = {n: p for n, (before, p) in self._frozen.items() if before not in learnt and ".original_module." not in n}
        self._drawn = {n for n, p in own.items() if n in heads or (not n.startswith(adapted) and _is_as_built(p))}
        own_factors = _factors(() if adapted else self._trainable)
        self._both_drawn = tuple(n for n, pair in own_factors.items() if pair[1:] and all(whole(p).any() for p in pair))
        self._at_0 = {name for name, _ in _frozen_at_0(session.model)}
        self._misfrozen = tuple(_misfrozen(session.model))
        packed = [(n, m.bias) for n, m in session.model.named_modules() if is_packed(m._parameters.get("weight"))]
        self._biases = {f"{n}.bias": b.detach().clone() for n, b in packed if b is not None and not b.requires_grad}

    def step_begin(self, session: Session, step: int, window: object) -> None:
        if step == 1 and self._without:
            self.hooks.before(None, lambda module, _: self._called.add(id(module)))

    def backward_end(self, session: Session, step: int) -> None:
        """Note the tokens that were read: a table of its own learns in their rows alone; of others, what learns."""
        self.hooks.remove()
        self._thawed |= _thawed(session)
        if step < 2:
            self._without = [name for name, p in self._trainable if p.grad is None]
        if step == 1:
            self._uncalled = _uncalled(session.model, self._without, self._called)
        for group in session.optimizer.param_groups:
            rate = rate_of(group, math.inf)
            self._rates |= {id(p): max(rate, self._rates.get(id(p), rate)) for p in group["params"]}
        if self._held < math.inf or (self._lookup is not None and self._lookup.requires_grad):
            for batch in session.window:
                self._read.update(batch.input_ids[batch.attention_mask.bool()].tolist())
        if self._idle:
            norms = {name: float(whole(p.grad).norm()) for name, p in self._trainable if p.grad is not None}
            least = NO_GRADIENT * math.hypot(*norms.values()) if norms else 0.0
            self._idle -= {name for name, norm in norms.items() if not norm <= least}
            self._first_norms = {**norms, **self._first_norms}
            self._reached |= norms.keys()
        for name, part in self._parts.items():
            if part.grad is not None:
                sizes = whole(part.grad).abs()
                learning = sizes > NO_GRADIENT**2 * sizes.max()  # less is what is left where terms cancel
                by_row = learning.reshape(len(learning), -1).any(1)
                self._learnt[name] |= learning.any(0) if name in self._columns else by_row

    def end(self, session: Session) -> None:
        # Names are looked up afresh: a tensor that was exchanged for another must show as changed.
        now = dict(_frozen(session))
        found = dict(zip(now, digests(now.values()), strict=True))
        # bitsandbytes has a packed layer's bias in its input's dtype
        held = ((name, bias, now[name]) for name, bias in self._biases.items() if name in now)
        rounded = {n for n, bias, got in held if bias.dtype != got.dtype and torch.equal(bias.to(got.dtype), got)}
        self._frozen = {name: held for name, held in self._frozen.items() if name not in self._thawed}
        changed = [n for n, (before, _) in self._frozen.items() if found.get(n) != before and n not in rounded]
        live = dict(session.model.named_parameters())
        after = {name: live.get(name, old) for name, old in self._trainable}
        appeared = [name for name in now if name not in {*self._frozen, *after, *self._thawed}]
        unused = {name for name, rows in self._learnt.items() if not rows.any()}
        vectors = {name for name in unused if self._parts[name].numel() == max(self._parts[name].shape)}
        idle = self._idle | vectors | {name for name in unused if "expert" in name or ADDED_TOKENS in name}
        rates = {name: self._rates.get(id(p)) for name, p in self._trainable}
        # an optimizer may scale its rate by what it finds, as Prodigy (arXiv 2306.06101) does: no step was larger
        taken = max((self._median_change(name, p) for name, p in after.items()), default=0.0) or math.inf
        # steps of SGD are as long as gradients, and no gradient is ten times as long as the first one
        norms = self._first_norms if isinstance(session.optimizer, torch.optim.SGD) else {}
        steps = {n: min(r, taken, 10 * r * norms.get(n, 1.0)) for n, r in rates.items() if r}
        small = tuple(n for n, step in steps.items() if _is_below_last_digit(step, self._samples[n]))
        resting = idle.union(small, _damped(session.optimizer, after))
        # a table's rows may be 0 because nothing reads them
        matrices = (name for name in self._idle & self._reached - self._learnt.keys() if after[name].ndim > 1)
        unmoved = tuple(n for n, p in after.items() if n not in idle and digest(p) == self._digests[n])
        moved = ((name, p) for name, p in after.items() if name not in unmoved)
        shares = {name: 1.0 if name in resting else self._moved_share(name, p) for name, p in moved}
        least = min(shares, key=shares.__getitem__, default="")
        seen = Movement(
            unmoved=unmoved,
            smallest_moved_share=shares.get(least, 0.0),
            smallest_moved_share_at=least,
            frozen_tensors=len(self._frozen),
            frozen_bytes=sum(tensor.numel() * tensor.element_size() for _, tensor in self._frozen.values()),
            frozen_changed=tuple(changed + appeared),
            idle=tuple(sorted(idle)),
            stuck_at_0=tuple(sorted(name for name in matrices if not whole(after[name]).any())),
            without_rate=tuple(name for name, rate in rates.items() if rate == 0),
            rate_scheduled=any(group.get("initial_lr") for group in session.optimizer.param_groups),
            below_last_digit=small,
            drawn=tuple(sorted(self._drawn & now.keys() - {*changed})),
            at_0=tuple(sorted(self._at_0 & now.keys() - {*changed})),
            misfrozen=self._misfrozen,
            adapted=tuple(_adapted(self._trainable)),
            both_drawn=self._both_drawn,
            uncalled=self._uncalled,
            added=tuple(sorted(token for token in self._read if token >= self._held)),
            upper_rest=_upper_rest(session.model),
            rates_fall=_rates_fall(session.model, self._rates),
            layers_rest=_layers_rest(session.model, math.inf if session.run.holds(Premise.CAUSAL_LM) else A_HEAD),
            nonfinite=tuple(name for name, p in after.items() if not whole(p).isfinite().all()),
        )
        self.emit(seen)
        self._frozen.clear()

    def _median_change(self, name: str, parameter: torch.Tensor) -> float:
        """Of the elements that changed; 0 where none did."""
        change = (sample(parameter).cpu().double() - self._samples[name].double()).abs()
        return float(change[change > 0].median()) if change.any() else 0.0

    def _moved_share(self, name: str, parameter: torch.Tensor) -> float:
        """Changed elements over those that could change."""
        moved, (rows, columns) = sample(parameter).cpu() != self._samples[name], sampled_places(parameter)
        if parameter is self._lookup:
            moved = moved[torch.isin(rows.cpu(), torch.tensor(sorted(self._read)))]
        elif name in self._learnt:
            moved = moved[self._learnt[name][columns if name in self._columns else rows].cpu()]
        return float(moved.float().mean()) if moved.numel() else 0.0


def _is_below_last_digit(rate: float, weights: torch.Tensor) -> bool:
    """Return whether most of these weights, in fp32, may round a step of this rate away."""
    if weights.dtype != torch.float32:
        return False
    sizes = weights.abs()
    return bool((torch.nextafter(sizes, sizes.new_tensor(math.inf)) - sizes > rate).float().mean() > 0.5)


def _damped(optimizer: Any, tensors: dict[str, Any]) -> Iterator[str]:
    """Yield those of which Adam's epsilon exceeds most second moments' roots, so that its steps are below the rate."""
    groups = (group for group in optimizer.param_groups if isinstance(group.get("eps"), float))  # Adafactor has two
    held = {id(p): group["eps"] for group in groups for p in group["params"]}
    for name, p in tensors.items():
        second = optimizer.state.get(p, {}).get("exp_avg_sq") if id(p) in held else None
        known = isinstance(second, torch.Tensor) and second.is_floating_point()
        if known and bool((whole(second).sqrt() < held[id(p)]).float().mean() > 0.5):
            yield name


def _is_as_built(tensor: torch.Tensor) -> bool:
    """Return whether a matrix has the spread of torch's own first values: uniform, up to 1 / sqrt(inputs)."""
    # Training soon moves one of many elements past that bound
    if tensor.ndim < 2 or not tensor.is_floating_point() or (count := tensor.numel()) < FEWEST_ELEMENTS:
        return False
    elements = sample(tensor).float() / (len(tensor) / count) ** 0.5
    largest, count = float(elements.abs().max()), len(elements)
    spread = float(elements.square().mean()) * 3 - 1
    return 1 - EDGE / count < largest <= 1 + torch.finfo(tensor.dtype).eps and abs(spread) < EDGE / 2 * count**-0.5


def _rows_held(session: Session) -> float:
    """Return the tokens that the base has learned, of a frozen embedding; infinity where it learns, or is not known.

    A base's file may have more rows than its tokenizer has tokens.
    """
    held, file = [*session.model.get_input_embeddings().parameters()], WeightFile(session.folder)
    if any(p.requires_grad for p in held):
        return math.inf
    own = {id(p) for p in held if p.ndim == 2}
    names = (file_name(name) for name, p in session.model.named_parameters() if id(p) in own)
    return min([vocabulary_size(session.folder), *(file.shape(name)[0] for name in names if name in file)])


def _frozen_at_0(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the frozen matrices of zeros that no file brought: of a low-rank product one may rest."""
    of_files = {id(p) for module in model.modules() if is_pretrained(module) for p in module.parameters()}
    for name, p in model.named_parameters():
        several = sum(size > 1 for size in p.shape) > 1 and id(p) not in of_files and LOW_RANK not in name.lower()
        if several and not p.requires_grad and p.is_floating_point() and not sample(p).any() and not p.any():
            yield name, p


def _misfrozen(model: Any) -> Iterator[str]:
    """Yield what was to be frozen by an attribute that torch does not read: of a module, or of another name."""
    for name, part in (*model.named_modules(), *model.named_parameters()):
        off = [key for key, value in vars(part).items() if value is False]
        learns = any(p.requires_grad for p in ([part] if isinstance(part, torch.Tensor) else part.parameters()))
        if off and learns and get_close_matches("requires_grad", off, cutoff=CLOSE):
            yield name


def _factors(trained: Named) -> dict[str, list[torch.Tensor]]:
    """Return the low-rank factors of each module, which bear "lora" in their names."""
    low = ((name, p) for name, p in trained if p.ndim == 2 and LOW_RANK in name.lower())
    return grouped((name[: name.lower().index(LOW_RANK)].rstrip("."), p) for name, p in low)


def _adapted(trained: Named) -> Iterator[str]:
    """Yield the matrices that learn beside low-rank factors of their own."""
    factors = _factors(trained)
    for name, p in trained:
        owner = name.rpartition(".")[0]
        beside = [*factors.get(owner, ()), *factors.get(owner.rpartition(".")[0], ())]
        if p.ndim == 2 and LOW_RANK not in name.lower() and beside[1:] and p.shape[1] in beside[0].shape:
            yield name


def _uncalled(model: Any, tensors: Sequence[str], called: AbstractSet[int]) -> dict[str, tuple[str, ...]]:
    """Return the largest parts that hold modules of their own, and called none of them, to these tensors in them."""
    found = defaultdict[str, list[str]](list)
    adapted, modules = adapted_layers(model), dict(model.named_modules())
    for tensor in tensors:
        around = accumulate(tensor.split(".")[:-1], "{}.{}".format)
        name = next((each for each in around if called.isdisjoint(map(id, modules[each].modules()))), "")
        if name and name not in adapted and [*modules[name].children()]:
            found[name].append(tensor)
    return {name: tuple(held) for name, held in found.items()}


def _layers_rest(model: Any, most: float) -> bool:
    """Return whether no matrix and no bias of pretrained layers learns: biases alone are BitFit (arXiv 2106.10199).

    Adapters may lie in embeddings alone, not in the head alone. What learns has `most` of the layers' parameters: more
    of them are a network of its own, as one that maps pictures to tokens. A part of another model that rests whole is
    frozen on purpose.
    """
    if hasattr(model, "get_base_model"):
        adapted, head = adapted_layers(model).values(), _output_layer(model)
        return bool(adapted) and all(layer is head for layer in adapted)
    parts = [module for module in model.modules() if is_pretrained(module)]
    live = (part for part in parts if part is model or any(p.requires_grad for p in part.parameters()))
    named = [pair for part in live for layer in stacked_layers(part) for pair in layer.named_parameters()]
    if not named or any(p.requires_grad and (p.ndim > 1 or name.endswith("bias")) for name, p in named):
        return False
    learnt = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return bool(learnt <= most * sum(p.numel() for p in {p for _, p in named}))


def _stacks(model: Any) -> Iterator[tuple[str, list[torch.nn.Module]]]:
    """Yield the name and the layers of each list of at least three layers of one class."""
    lists = ((name, [*held]) for name, held in model.named_modules() if isinstance(held, torch.nn.ModuleList))
    yield from ((name, layers) for name, layers in lists if len(layers) > 2 and len({*map(type, layers)}) == 1)


def _upper_rest(model: Any) -> str:
    """Return which layers at the end of a list rest whole, where those at its beginning learn; "" without any."""
    for name, layers in () if hasattr(model, "get_base_model") else _stacks(model):
        learn = [any(p.requires_grad for p in layer.parameters()) for layer in layers]
        if learn[0] and not learn[-1] and learn == sorted(learn, reverse=True):
            return f"{learn.count(False)} of {len(learn)} layers of {name}"
    return ""


def _rates_fall(model: Any, rates: Mapping[int, float]) -> str:
    """Return the rates of layers that have the smaller ones the nearer they are to the output; "" without any."""
    for name, layers in _stacks(model):
        held = [max((rates.get(id(p), 0.0) for p in layer.parameters()), default=0.0) for layer in layers]
        if len({*held}) > 2 and held == sorted(held, reverse=True) and held[-1] > 0:
            return f"the rates of {len(layers)} layers of {name} fall from {held[0]:.3g} to {held[-1]:.3g}"
    return ""


def _output_layer(model: Any) -> Any:
    return getattr(model, "get_output_embeddings", lambda: None)()


def _head(model: Any) -> Any:
    return getattr(_output_layer(model), "weight", None)


def _learning_in_part(model: Any, lookup: Any) -> dict[str, torch.Tensor]:
    """The trainable tensors of which a window may give a part alone a gradient, but for `lookup` and the head.

    Tables that are looked up (positions, kinds of token), added tokens, and experts, to which no token may be routed.
    Of transformers' own modules vectors beside the weights, too: of gates, which saturate, or for a choice of experts;
    and small matrices, as of routers, some of which learn for the chosen experts alone.
    """
    own = [m._parameters for m in model.modules() if type(m).__module__.startswith("transformers.")]
    held = [(name, p) for parameters in own for name, p in parameters.items() if p is not None]
    vectors = {id(p) for name, p in held if name not in ("weight", "bias") and p.numel() == max(p.shape, default=0)}
    small = {id(p) for _, p in held if p.dim() == 2 and len(p) <= MOST_EXPERTS}
    tables = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in own_parameters(m)}
    in_part = (tables | vectors | small) - {id(_head(model)), id(lookup)}
    learn = ((name, p) for name, p in model.named_parameters() if p.requires_grad and (p.dim() > 1 or id(p) in vectors))
    return {name: p for name, p in learn if id(p) in in_part or ".experts." in name or ADDED_TOKENS in name}


def _frozen(session: Session) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that must not change: frozen parameters, their quantisation statistics, buffers."""
    yield from with_statistics((name, p) for name, p in session.model.named_parameters() if not p.requires_grad)
    if session.run.holds(Premise.CAUSAL_LM):  # of other models some keep averages in them, as batch normalisation does
        yield from session.model.named_buffers()


def _thawed(session: Session) -> set[str]:
    """Return what learns by now, where the script alone says what is to learn, as in gradual unfreezing."""
    if session.run.holds(Premise.TRAINED_SET_DECLARED):
        return set()
    return {name for name, p in session.model.named_parameters() if p.requires_grad}


class ContinuityProbe(Probe[Continuity]):
    """Keeps samples of all parameters and compares them at every moment of a step.

    The optimizer's own step lies between the end of the backward pass and the end of the step: all that trained tensors
    change elsewhere is no update, and frozen ones change nowhere. To gather offloaded ones would cost more than a step.
    """

    def start(self, session: Session) -> None:
        self._watched = session.run.training.offload != "parameters"
        # an encoded one would be decoded at every moment
        named = session.model.named_parameters() if self._watched else ()
        parameters = [(name, p) for name, p in named if not is_encoded(p)]
        self._trained = _Samples([(name, p) for name, p in parameters if p.requires_grad], TRAINED_ELEMENTS)
        self._frozen = _Samples([(name, p) for name, p in parameters if not p.requires_grad], FROZEN_ELEMENTS)
        self._thawed = set[str]()
        self._moments = 0

    def step_begin(self, session: Session, step: int, window: object) -> None:
        self._compare(step)

    def backward_end(self, session: Session, step: int) -> None:
        self._thawed |= _thawed(session)
        self._compare(step)

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        self._trained.renew()

    def end(self, session: Session) -> None:
        self._compare(session.run.training.max_steps)
        if self._watched:
            seen = Continuity(
                moments=self._moments,
                trained=self._trained.count,
                frozen=self._frozen.count,
                trained_changed=self._trained.changed(),
                frozen_changed={n: at for n, at in self._frozen.changed().items() if n not in self._thawed},
            )
            self.emit(seen)

    def _compare(self, step: int) -> None:
        self._moments += 1
        self._trained.compare(step)
        self._frozen.compare(step)


class _Samples:
    """Samples of tensors, one flat tensor a dtype, and where each first differed: on their device, never waited for."""

    def __init__(self, tensors: Named, elements: int) -> None:
        self.count, self._elements = len(tensors), elements
        by_kind = grouped(((pair[1].dtype, pair[1].device), pair) for pair in tensors)
        kept = [(part, self._taken(part)) for part in by_kind.values()]
        self._parts = [(part, own, torch.full_like(own, -1, dtype=torch.int32)) for part, own in kept]
        """Tensors, their samples, and for each element the step in which it first differed, -1 while it has not."""

    def _taken(self, part: Named) -> torch.Tensor:
        return torch.cat([self._sample(tensor) for _, tensor in part])

    def _sample(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().flatten()[evenly(tensor.numel(), self._elements)]

    def renew(self) -> None:
        """Take what the tensors hold now for right."""
        for part, kept, _ in self._parts:
            kept.copy_(self._taken(part))

    def compare(self, step: int) -> None:
        """Note every element that differs from the kept one for the first time; it is right from then on."""
        for part, kept, first in self._parts:
            now = self._taken(part)
            other = (now != kept) & (now == now)  # NaN differs from itself; `finite` is for it
            first.masked_fill_(other & (first < 0), step)

    def changed(self) -> dict[str, int]:
        """Return names and first steps of the tensors that differed; waits for the device."""
        found = {}
        for part, _, first in self._parts:
            sizes = [len(self._sample(tensor)) for _, tensor in part]
            for (name, _), steps in zip(part, torch.split(first.cpu(), sizes), strict=True):
                if len(seen := steps[steps >= 0]):
                    found[name] = int(seen.min())
        return found
