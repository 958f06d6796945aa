"""Gradients: which tensors get one, which still hold one, and the backward pass held against the model itself.

For y = W x + b the gradient by W is the sum of (gradient by y) x^T over all tokens of the window, and that by b the sum
of the gradients by y, whatever lies before and behind the layer and however the window is split. That of an embedding
is the sum of the gradients by each token's row, and where the head is tied to it, of both. So a gradient that was
scaled, left over, added to, compressed or rounded on its way to the optimizer shows, to the last digits that it has.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from tunecheck.checks.utilization import PROBED_STEPS
from tunecheck.core.check import or_infinite, worst_of
from tunecheck.core.evidence import Gradients, LayerGradients, Recomputation, WeightGradient
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.given import special_tokens
from tunecheck.probes.reference.measures import PART, differences, dtype_name, evenly, relative_error, worst
from tunecheck.training.events import Probe, probing
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import having, in_fp32, model_mode, own_gradients, random_state, uncached
from tunecheck.training.session import Session
from tunecheck.training.tensors import gradients_of, learning, own_parameters, undifferentiated, whole

LORA_SIDES = ("lora_A", "lora_B", "lora_magnitude_vector")
SMALLEST = torch.finfo(torch.float16).smallest_normal
READ_EVERY = 10
"""Steps whose norms stay on the device before they are read together: reading waits for the GPU."""

TOKENS = 32

ROWS, ELEMENTS = 64, PART // 16
"""Of a weight's gradient, evenly spread, and elements of inputs widened to fp32 at a time: products are taken on the
device while the step needs the most memory."""
CANCELLED, CANCELLED_16BIT = 1e-3, 1e-2
"""Share of the sum of absolute values below which a bias's gradient is taken for what rounding leaves of nothing: that
of the keys' bias is 0, since a softmax does not see what is added to all scores (OPT, Whisper, BERT). In fp32 1e-8 of
it is left in BERT; gradients of random signs in 10,000 tokens are 1e-2 of it."""


class GradientProbe(Probe[Gradients]):
    """Take every gradient's norm after backward, before clipping."""

    def start(self, session: Session) -> None:
        self._trainable, self._never = learning(session.model), undifferentiated(session.model)
        self._frozen = [(name, p) for name, p in session.model.named_parameters() if not p.requires_grad]
        self._waiting: list[Callable[..., Gradients]] = []
        # One buffer: a tensor for each waiting step would count as one that stays alive.
        self._norms = torch.zeros(READ_EVERY, len(self._trainable) + 2, device=session.device)
        self._left_over: tuple[str, ...] = ()

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Look for gradients of the steps before. Where they are cleared to None, as torch does, this costs nothing."""
        held = [(name, p.grad) for name, p in self._trainable if p.grad is not None]
        self._left_over = tuple(name for name, gradient in held if bool((whole(gradient) != 0).any()))

    def backward_end(self, session: Session, step: int) -> None:
        gradients = [whole(p).new_zeros(()) if p.grad is None else whole(p.grad) for _, p in self._trainable]
        norms = torch.stack([norm.to(self._norms) for norm in torch._foreach_norm(gradients)])
        thawed = [whole(p.grad).norm().to(norms) for _, p in self._frozen if p.requires_grad and p.grad is not None]
        later = torch.stack([norms.new_zeros(()), *thawed]).norm()
        share = norms.new_full((), math.nan)
        if session.precision == "fp16":
            counts = [torch.stack([(g != 0).sum(), ((g != 0) & (g.abs() < SMALLEST)).sum()]) for g in gradients]
            elements, small = torch.stack([count.to(norms.device) for count in counts]).sum(dim=0)
            share = small / elements
        record = partial(
            Gradients,
            step=step,
            frozen_with_gradient=tuple(name for name, p in self._frozen if p.grad is not None),
            left_over=self._left_over,
            micro_batch_tokens=tuple(batch.supervised_tokens for batch in session.window),
        )
        self._norms[len(self._waiting)].copy_(torch.cat([norms, later[None], share[None]]))
        self._waiting.append(record)
        if session.device.type == "cpu" or len(self._waiting) >= READ_EVERY:
            self._read()

    def end(self, session: Session) -> None:
        self._read()

    def _read(self) -> None:
        for record, row in zip(self._waiting, self._norms.tolist(), strict=False):
            norms = dict(zip((name for name, _ in self._trainable), row[:-2], strict=True))
            groups: dict[str, float] = {"other": row[-2]} if row[-2] else {}
            for name, norm in norms.items():
                group = next((side for side in LORA_SIDES if f".{side}." in name), "other")
                groups[group] = math.hypot(groups.get(group, 0.0), norm)
            seen = record(
                zero=tuple(name for name, norm in norms.items() if norm == 0 and name not in self._never),
                nonfinite=tuple(name for name, norm in norms.items() if not math.isfinite(norm)),
                norms=groups,
                subnormal=None if math.isnan(row[-1]) else row[-1],
            )
            self.emit(seen)
        self._waiting.clear()


class RecomputationProbe(Probe[Recomputation]):
    """Takes one row's gradient with checkpointing and without, after training, in train mode from one random state."""

    def end(self, session: Session) -> None:
        if not session.run.training.gradient_checkpointing:
            return
        layers = [module for module in session.model.modules() if getattr(module, "gradient_checkpointing", False)]
        recomputed = _gradients(session)
        with having((layer, "gradient_checkpointing", False) for layer in layers):
            kept, again = _gradients(session), _gradients(session)
        found = (differences(gradients, kept) for gradients in (recomputed, again))
        error, repeated = (float(errors.norm() / norms.norm()) for errors, norms in found)
        self.emit(Recomputation(layers=len(layers), gradient_error=error, repeat_error=repeated))


def _gradients(session: Session) -> list[torch.Tensor]:
    """The gradient of everything trained for the first tokens of a held-out row; the random state is put back."""
    model = session.model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = first_tokens(session, TOKENS)
    with own_gradients(trained), model_mode(model, True), random_state(session.device):
        logits = uncached(model, input_ids=ids).logits.float()
        logits.log_softmax(dim=-1)[0, :-1].gather(1, ids[0, 1:, None]).mean().backward()
        return [gradient.float() for gradient in gradients_of(trained)]


STEP_SHARES = 3e-4, 5e-5
"""Lengths of steps to either side over that of the hidden states: above fp32's rounding, and nearly straight.

A token whose states are a hundred times as large makes the longer one too long for the others. A wrong gradient is
wrong at every length, so that the smaller error counts.
"""


class LayerGradientProbe(Probe[LayerGradients]):
    """Holds each layer's gradient to its own differences in fp32: a whole model's slope hides one wrong layer."""

    def end(self, session: Session) -> None:
        if not session.run.probes.directional_gradient or session.run.uses_dropout:
            return
        layers = list(session.model.get_decoder().layers)
        calls: list[tuple[torch.Tensor, dict[str, Any]]] = []
        """Of each layer in one forward pass: the hidden states and the other arguments that it is given."""
        with in_fp32(session.model), torch.autocast(session.device.type, enabled=False):
            with OwnHooks() as hooks:
                for layer in layers:
                    hooks.before(layer, lambda _m, args, more: calls.append((args[0].detach(), more)), with_kwargs=True)
                logits_of(session.model, first_tokens(session, TOKENS), training=True)
            errors = {number: _slope_error(layer, *calls[number]) for number, layer in enumerate(layers)}
        if errors:
            number, error = worst_of(errors.items(), key=itemgetter(1))
            self.emit(LayerGradients(layers=len(errors), error=error, worst=number))


def _slope_error(layer: Any, hidden: torch.Tensor, others: dict[str, Any]) -> float:
    """Relative error of the slope of <layer(h) - h, v>, v random; not of the first token, whose states may be huge."""
    cotangent = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden)
    given = hidden.clone().requires_grad_(True)

    def value(states: torch.Tensor) -> torch.Tensor:
        inner = (out[0] if isinstance(out := layer(states, **others), tuple) else out) - states
        projected: torch.Tensor = (inner * cotangent)[:, 1:].double().sum()
        return projected

    with model_mode(layer, True):
        gradient = torch.autograd.grad(value(given), given)[0].clone()
        gradient[:, 0] = 0
        if not (norm := float(gradient.norm())):
            return float("nan")
        errors = []
        for share in STEP_SHARES:
            width = share * float(hidden[:, 1:].norm())
            step = width / norm * gradient
            with torch.no_grad():
                slope = float(value(hidden + step) - value(hidden - step)) / (2 * width)
            errors.append(abs(slope - norm) / norm)
    return min(errors)


@dataclass(slots=True)
class _Sums:
    """What the calls of one linear, or of the embedding and a head that is tied to it, have added up to so far."""

    users: tuple[Any, ...]
    """The modules that compute with the weight."""
    special: frozenset[int]
    """Tokens whose look-up may have no gradient."""
    rows: Any
    """Those of the weight's gradient that are compared: of an embedding some that are looked up."""
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    """Gradient by the weight, in the compared rows, that by the bias, and the sum of the absolute values behind it."""
    dtypes: set[str] = field(default_factory=set)
    """Of the outputs, and so of the products behind the gradient."""
    inputs: list[list[torch.Tensor]] = field(default_factory=list)
    """Of each call, until its gradient arrives: a loss that is still held keeps the hook, which must not keep these."""
    called: set[int] = field(default_factory=set)
    """Users that were called while gradients are recorded, by id, and those whose output's gradient arrived."""
    arrived: set[int] = field(default_factory=set)

    def add(self, name: str, part: torch.Tensor) -> None:
        self.parts[name] = self.parts[name].add_(part) if name in self.parts else part


class WeightGradientProbe(Probe[WeightGradient]):
    """Follows all adapters in the first steps, else some trained linears in every step, so that all have their turn.

    Each one's input is kept until its gradient arrives: where activations are recomputed, that would undo the saving.
    """

    def start(self, session: Session) -> None:
        """List the linears and the embedding, with a head that is tied to it, and how many to follow in a step."""
        training = session.run.training
        owners = Counter(id(p) for module in session.model.modules() for p in own_parameters(module))
        # 4-bit ones and fused ones compute otherwise
        linears = ((name, m) for name, m in session.model.named_modules() if type(m) is torch.nn.Linear)
        named = [(name, (m,)) for name, m in linears if any(p.requires_grad for p in own_parameters(m))]
        self._special = _special_tokens(session) if (embedding := _embedding(session)) else frozenset[int]()
        # sharded: products of whole ones would gather them
        every: list[tuple[str, tuple[Any, ...]]] = [] if training.offload == "parameters" else [*named, *embedding]
        self._followed = [(name, users) for name, users in every if owners[id(users[0].weight)] == len(users)]
        self._each_step = -(-len(self._followed) // max(1, training.max_steps))
        self._every_one = PROBED_STEPS if session.run.lora is not None and not training.gradient_checkpointing else 0
        self._next = 0

    def step_begin(self, session: Session, step: int, window: object) -> None:
        chosen = self._followed
        if step >= self._every_one:  # the next ones in turn
            first, self._next = self._next, self._next + self._each_step
            chosen = [self._followed[number % len(self._followed)] for number in range(first, self._next)]
        self._sums = {name: _Sums(users, self._special, evenly(len(users[0].weight), ROWS)) for name, users in chosen}
        for sums in self._sums.values():
            for module in sums.users:
                self.hooks.after(module, partial(self._called, sums), with_kwargs=True)

    def _called(self, sums: _Sums, module: Any, args: Any, named: dict[str, Any], out: torch.Tensor) -> None:
        """Have the gradient of this call's output add the call's part to the sums."""
        if not torch.is_grad_enabled():
            return
        sums.called.add(id(module))
        read = args[0] if args else named["input"]
        given = [read.detach().to(out.device)]  # which a hook of accelerate's may do within the call
        if type(module) is torch.nn.Embedding and isinstance(sums.rows, slice):
            occurring = given[0].unique()
            sums.rows = occurring[evenly(len(occurring), ROWS)]
        if out.requires_grad:
            sums.inputs.append(given)
            self.hooks.gradient(out, partial(_arrived, sums, module, given))

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        scale = session.scaler.get_scale() if session.scaler else 1.0
        found: dict[tuple[str, ...], dict[str, float]] = {}
        self._add_up(session)
        for name, sums in self._sums.items():
            for given in sums.inputs:
                given.clear()
            # else a part of its products is computed where nothing is seen, as chunked and fused losses do with a head
            if sums.called == {id(user) for user in sums.users}:
                module, errors = sums.users[-1], []  # a tied head, which may have a bias
                share = CANCELLED if sums.dtypes == {dtype_name(torch.float32)} else CANCELLED_16BIT
                least_bias = share * sums.parts["bias_size"].norm() if "bias_size" in sums.parts else 0.0
                for part, rows, least in (("weight", sums.rows, 0.0), ("bias", slice(None), least_bias)):
                    if (wanted := sums.parts.get(part)) is not None:
                        gradient = getattr(module, part).grad
                        got = torch.zeros_like(wanted) if gradient is None else gradient[rows].float()
                        errors.append(relative_error(got, wanted / scale, least / scale))
                if sums.arrived and sums.arrived != sums.called:  # of a shared weight, whose other user hides it
                    errors.append(math.inf)
                if errors:
                    dtypes = tuple(sorted({*sums.dtypes, dtype_name(module.weight.dtype)}))
                    found.setdefault(dtypes, {})[name] = max(errors, key=or_infinite)
            sums.parts, sums.rows = {}, None  # the hook of a loss that is still held keeps the sums
        self._sums = {}
        for dtypes, each in (found or {(): {}}).items():
            at, error = worst(each, 0.0)
            self.emit(WeightGradient(step=step, linears=len(each), error=error, worst=at, dtypes=dtypes))

    def _add_up(self, session: Session) -> None:
        """Where several ranks train, take the mean of their sums: so the optimizer is given the mean gradient."""
        if session.exchange.count == 1:
            return
        of_ranks = session.exchange.gathered({name: sums.parts for name, sums in self._sums.items()})
        for name, sums in self._sums.items():
            held = [of_rank[name] for of_rank in of_ranks]
            everywhere = [part for part in sums.parts if all(part in each for each in held)]
            sums.parts = {part: torch.stack([each[part] for each in held]).mean(dim=0) for part in everywhere}


def _embedding(session: Session) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the input embedding's name with itself and a head that is tied to it; nothing unless both are plain.

    Without a head of its own, the weight may be the head in a product that no module makes. Ranks choose other rows.
    """
    if not hasattr(model := session.model, "get_output_embeddings") or session.exchange.count > 1:
        return []
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = type(embedding) is torch.nn.Embedding and type(head) is torch.nn.Linear
    if not plain or not embedding.weight.requires_grad or embedding.sparse or embedding.max_norm is not None:
        return []
    name = next(name for name, module in model.named_modules() if module is embedding)
    return [(name, (embedding, head) if head.weight is embedding.weight else (embedding,))]


def _special_tokens(session: Session) -> frozenset[int]:
    """Return all special tokens: any may be an embedding's padding_idx, fixed before scripts choose other padding."""
    special, added = (getattr(session.tokenizer, name, ()) for name in ("all_special_ids", "added_tokens_decoder"))
    return frozenset({*special, *added, *special_tokens(session.model.config, "pad", "eos", "bos")})


def _arrived(sums: _Sums, module: Any, given: list[torch.Tensor], gradient: torch.Tensor) -> None:
    if not given or probing():
        return  # another backward pass through the same graph: after this step's, or a probe's
    sums.arrived.add(id(module))
    sums.dtypes.add(dtype_name(gradient.dtype))
    with torch.no_grad():
        above = gradient.detach().flatten(0, -2)
        if type(module) is torch.nn.Embedding:
            ids = given[0].flatten()
            own = ids[:, None] == sums.rows  # [tokens, rows]
            if module.padding_idx in sums.special:
                own &= (ids != module.padding_idx)[:, None]
            sums.add("weight", own.float().T @ above.float())
        else:
            _multiplied(sums, module, given[0].flatten(0, -2), above)
    given.clear()


def _multiplied(sums: _Sums, module: Any, x: torch.Tensor, above: torch.Tensor) -> None:
    tokens = max(1, ELEMENTS // x.shape[-1])
    for part, inputs in zip(torch.split(above, tokens), torch.split(x, tokens), strict=True):
        if module.weight.requires_grad:
            # autocast multiplies in its own dtype, which the output has
            sums.add("weight", part[:, sums.rows].float().T @ inputs.to(above.dtype).float())
        if module.bias is not None and module.bias.requires_grad:
            sums.add("bias", part.float().sum(dim=0))
            sums.add("bias_size", part.float().abs().sum(dim=0))
