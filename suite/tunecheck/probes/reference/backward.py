"""Every norm, and what lies between the linears of each layer, on inputs of size 1, forwards and backwards.

A model's own states are where they happen to be: keys that hardly matter, gates around zero. A kernel that is wrong
elsewhere, or in its backward pass alone, is then wrong without a trace. So a layer's linears are made to return random
numbers, and what comes of them, and its gradient, is computed again by other code in float64. Norms are called by
themselves, all of them: the last one is often fused with what follows. Imports torch; child process only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from tunecheck.models.description import Architecture
from tunecheck.models.layer_names import stacked_layers
from tunecheck.probes.reference.architecture import attention, cotangent, gated, normalised
from tunecheck.probes.reference.measures import relative_error
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import in_fp32, model_mode, uncached
from tunecheck.training.tensors import whole

TOKENS, PADDED_TO, NORMED = 24, 33, 8
HALF_TILES = (64, 192)
"""Lengths that leave 64 in 128: cuDNN's tiles of 128 keys are then half padding, which its backward pass takes for
scores of 0 (pytorch issue 196678)."""
NEGATIVE_SCORE = -120.0
"""Below -88.7, the logarithm of fp32's largest number, exp(0 - score) overflows. Trained models have such heads."""

ROUNDING_OF_SCORES = 1e-2
"""Error that is not judged: scores of that size are rounded to 1e-5, and accuracy is the other relations' subject."""
Tensors = dict[str, torch.Tensor]
DRAWN = ("hidden", "q", "k", "v", "gate", "up")
"""The random inputs, each from a seed of its own."""


class _Enough(Exception):
    """The layers have been seen; nothing behind them is run."""


def layer_errors(
    model: Any,
    architecture: Architecture,
    device: torch.device,
    *,
    training: bool,
    every: bool = True,
    widened: bool = False,
) -> dict[str, float]:
    """Relation to its relative error, of the first layer for one row alone, of it or every one for two with padding.

    Then every norm's by itself. With `widened` all of it in fp32: a function that is wrong by a thousandth is then seen
    in a 16-bit model too. With `training` what a layer is made of is in train mode, the layer itself is not: it would
    be recomputed. The modes are put back.
    """
    errors: dict[str, float] = {}
    layers = model.get_decoder().layers
    with model_mode(model, False):
        for part in (part for layer in layers for part in layer.children()):
            part.train(training)
        for kind, lengths in (("", (TOKENS,)), (", padded", (TOKENS, PADDED_TO))):
            called = layers if kind and every else layers[:1]
            found, hidden = _called_in_place(model, architecture, called, lengths, device, widened=widened)
            errors |= {f"{what}{kind}": error for what, error in found.items()}
        if hidden is not None:
            errors |= _norm_errors(model.get_decoder(), architecture, hidden[:1, :NORMED])
    return errors


def _called_in_place(
    model: Any, architecture: Architecture, layers: Any, lengths: Sequence[int], device: torch.device, *, widened: bool
) -> tuple[dict[str, float], torch.Tensor | None]:
    """Call each of these layers with random inputs; return the errors of what it makes of them, for rows so long.

    All are called in the first one's place with what that is given, inside of whatever the model's forward enters.
    Also what the last layer's norm was given.
    """
    errors: dict[str, float] = {}
    hidden: torch.Tensor | None = None
    longest = max(lengths)
    ids = torch.ones(len(lengths), longest, dtype=torch.long, device=device)
    mask = torch.tensor([[1] * n + [0] * (longest - n) for n in lengths], device=device)

    def call(_module: Any, args: Any, others: Any) -> None:
        nonlocal hidden
        hooks.remove()
        for number, layer in enumerate(layers):
            with _substituted(layer, longest) as (given, seen):
                with in_fp32(layer) if widened else nullcontext(), suppress(_Enough):
                    layer(*args, **others)
                with torch.autocast(device.type, enabled=False):
                    name = f"layer {number}'s" if number else "first layer's"
                    found = _relations(layer, architecture, lengths, given, seen)
                    errors.update({f"{name} {relation}": error for relation, error in found})
            hidden = given.get("hidden", hidden)
        raise _Enough

    with OwnHooks() as hooks, torch.enable_grad(), suppress(_Enough):
        hooks.before(stacked_layers(model)[0], call, with_kwargs=True)
        if widened:  # its output, not its weight: that may be gigabytes
            hooks.after(model.get_input_embeddings(), lambda _m, _args, out: out.float())
        uncached(model, input_ids=ids, attention_mask=mask if len(lengths) > 1 else None)
    return errors, hidden


def _relations(
    layer: Any, architecture: Architecture, lengths: Sequence[int], given: Tensors, seen: Tensors
) -> Iterator[tuple[str, float]]:
    """Yield the error of each relation, whose formula is taken of each row without its padding, and its gradients'."""
    norm = whole(layer.input_layernorm.weight).detach().double()
    formulas: dict[tuple[str, ...], Callable[..., torch.Tensor]] = {
        ("norm", "hidden"): lambda x: normalised(x, norm.to(x.device), architecture),
        ("attention", "q", "k", "v"): lambda q, k, v: attention(q, k, v, architecture),
        ("activation", "gate", "up"): gated,
    }
    for (relation, *inputs), formula in formulas.items():
        if relation not in seen or not given.keys() >= {*inputs}:
            yield f"{relation}, which was not reached", float("inf")
            continue
        own = [given[part] for part in inputs]
        copies = [x.detach().double().requires_grad_(True) for x in own]
        wanted = torch.cat([formula(*(x[row, :length] for x in copies)) for row, length in enumerate(lengths)])
        got = torch.cat([row[:length] for row, length in zip(seen[relation], lengths, strict=True)])
        above = cotangent(wanted)
        yield relation, relative_error(got.detach().double(), wanted)
        theirs, ours = gradients_by(got, own, above), torch.autograd.grad(wanted, copies, above)
        for part, other, mine in zip(inputs, theirs, ours, strict=True):
            yield f"{relation}, its gradient by {part}", relative_error(other.double(), mine)


@contextmanager
def _substituted(layer: Any, longest: int) -> Iterator[tuple[Tensors, Tensors]]:
    """Have the layer's norm be given random numbers and its linears return some; yield these, and what is seen."""
    given: Tensors = {}
    seen: Tensors = {}

    def random(name: str, like: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(DRAWN.index(name)))
        given[name] = drawn.to(like).requires_grad_(True)
        return given[name]

    def stop(_module: Any, args: Any) -> None:
        seen["activation"] = args[0]
        raise _Enough

    linears = {
        **{side: layer.self_attn.get_submodule(f"{side}_proj") for side in "qkv"},
        **{part: layer.mlp.get_submodule(f"{part}_proj") for part in ("gate", "up")},
    }
    with OwnHooks() as hooks:
        norm = layer.input_layernorm
        hooks.before(norm, lambda _m, args: (random("hidden", args[0]), *args[1:]))
        hooks.after(norm, lambda _m, _args, out: seen.update(norm=out))
        hooks.before(layer.self_attn.o_proj, lambda _m, args: seen.update(attention=args[0]))
        hooks.before(layer.mlp.down_proj, stop)
        for name, linear in linears.items():  # what they make of one token tells the shape and the dtype
            hooks.before(linear, lambda _m, args: (args[0][:, :1], *args[1:]))
            hooks.after(linear, lambda _m, _args, out, name=name: random(name, out.expand(-1, longest, -1)))
        yield given, seen


def negative_score_errors(width: int, dtype: torch.dtype, device: torch.device) -> dict[str, float]:
    """Return the errors of sdpa's output and gradients where a mask is given and every score is strongly negative.

    The relation's name to its error, infinite where a number is not finite. One element of queries and keys carries the
    score; in the queries' gradient it is the difference of large equal numbers, so there it must only be finite.
    """
    generator = torch.Generator().manual_seed(0)
    errors = {}
    for tokens in HALF_TILES:
        q, k, v, above = (torch.randn(1, 1, tokens, width, generator=generator) for _ in range(4))
        q, k = q * 0.1, k * 0.1
        q[..., 0], k[..., 0] = 1.0, NEGATIVE_SCORE * width**0.5
        q, k, v, above = (x.to(device, dtype) for x in (q, k, v, above))
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()[None, None]
        given = [x.requires_grad_(True) for x in (q, k, v)]
        copies = [x.detach().double().requires_grad_(True) for x in given]
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            wanted = (copies[0] @ copies[1].mT / width**0.5).masked_fill(~mask, -torch.inf).softmax(dim=-1) @ copies[2]
        where = f"attention of {tokens} masked tokens with scores near {NEGATIVE_SCORE:.0f}"
        theirs = [out, *torch.autograd.grad(out, given, above)]
        ours = [wanted, *torch.autograd.grad(wanted, copies, above.double())]
        for name, got, right in zip(("", *(f", its gradient by {part}" for part in "qkv")), theirs, ours, strict=True):
            error = relative_error(got[..., 1:].double(), right[..., 1:]) if got.isfinite().all() else float("inf")
            errors[where + name] = 0.0 if error < ROUNDING_OF_SCORES else error
    return errors


def _norm_errors(decoder: Any, architecture: Architecture, hidden: torch.Tensor) -> dict[str, float]:
    """The error of each of the decoder's norms, and of its gradient, on these numbers."""
    errors = {}
    for name, norm in decoder.named_modules():
        if not name.endswith("norm") or getattr(norm, "weight", None) is None:  # DeLoRA's are kept numbers
            continue
        here = hidden.detach().to(norm.weight.device)
        given, copy = here.detach().requires_grad_(True), here.double().requires_grad_(True)
        with torch.enable_grad():
            got = norm(given)
            wanted = normalised(copy, whole(norm.weight).detach().double(), architecture)
        above = cotangent(wanted)
        [theirs], [ours] = gradients_by(got, [given], above), torch.autograd.grad(wanted, [copy], above)
        errors[f"{name} alone"] = relative_error(got.detach().double(), wanted.detach())
        errors[f"{name} alone, its gradient"] = relative_error(theirs.double(), ours)
    return errors


def gradients_by(out: torch.Tensor, inputs: list[torch.Tensor], above: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient of `out` by each input, for this one by `out`; zeros where there is none. Keep the graph."""
    found: Sequence[torch.Tensor | None] = [None] * len(inputs)
    if out.requires_grad:
        found = torch.autograd.grad(out, inputs, above.to(out.dtype), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(inputs, found, strict=True)]
