"""One forward pass held against the architecture's formulas, relation by relation.

Every module's inputs and outputs are recorded, and what lies between them is computed again by other code: norms,
rotary positions, causal attention with grouped heads, the gated MLP, residuals, head. What the linears themselves do is
for other probes. Formulas: RMSNorm (arXiv 1910.07467), rotary embedding (2104.09864), SwiGLU (2002.05202), grouped
queries (2305.13245), as Llama (2302.13971) puts them together. Imports torch; child process only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

from tunecheck.models.description import Architecture
from tunecheck.probes.reference.four_bit import is_packed, some_rows
from tunecheck.probes.reference.measures import relative_error, worst
from tunecheck.training.hooks import Hooks, OwnHooks
from tunecheck.training.tensors import is_encoded, whole

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2"})
"""Architectures of this one form."""
ROTARY = "rotary table"
"""The name of the cosines and sines that attention is handed, among calls and relations."""
LINEARS = (*(f"self_attn.{side}_proj" for side in "qkvo"), *(f"mlp.{part}_proj" for part in ("gate", "up", "down")))

HEAD_ROWS = 4096
"""Rows of the head's weight that are widened to fp32 at a time."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""Token ids and attention mask of a batch."""
Kept = tuple[torch.Tensor, torch.Tensor]
Calls = dict[str, Kept]
"""Module to the input and the output of its last call, of the batch's first row, in fp32 and without their graph."""


def has_formulas(architecture: Architecture, model: Any) -> bool:
    """Whether the formulas here are this architecture's, and the model's layers hold the linears that they name."""
    if architecture.model_type not in MODEL_TYPES or (architecture.model_extra or {}).get("rope_scaling"):
        return False
    return all({*LINEARS} <= {name for name, _ in layer.named_modules()} for layer in model.get_decoder().layers)


@contextmanager
def recorded_calls(modules: Mapping[str, Any], kept: Callable[[Any, Any], Kept]) -> Iterator[dict[str, Kept]]:
    """Of the last call of each module, what `kept` makes of its first argument and its output."""
    calls: dict[str, Kept] = {}
    with OwnHooks() as hooks:
        for name, module in modules.items():
            hooks.after(module, lambda _m, args, out, name=name: calls.update({name: kept(args[0], out)}))
        yield calls


def recorded(model: Any) -> AbstractContextManager[Calls]:
    """What the modules of this model are given and return, for as long as the context lasts."""
    modules, rotary = _modules(model), getattr(model.get_decoder(), "rotary_emb", None)
    return recorded_calls(modules | ({} if rotary is None else {ROTARY: rotary}), _first_row)


def _first_row(given: torch.Tensor, out: Any) -> Kept:
    if isinstance(out, tuple):  # cosines and sines
        return out[0][0].detach().float(), out[1][0].detach().float()
    row = given[0].detach().to(out.device)
    return row.float() if row.is_floating_point() else row, out[0].detach().float()


Deviations = tuple[dict[str, float], dict[str, float]]
"""Relation to its relative error, norm of the difference over the norm of what the formula gives. First of what is
rounded on its way, where a module that was not called is an infinite error. Then of what is looked up, handed on or
added once: in 16 bit, too, it is known to the last bit."""


def deviations(model: Any, architecture: Architecture, calls: Calls, logits: torch.Tensor) -> Deviations:
    """Return the errors of one forward pass, whose modules' calls and logits these are."""
    modules = _modules(model)
    if missing := [name for name in modules if name not in calls]:
        return {f"{name} was not called": float("inf") for name in missing}, {}
    errors, exact = dict[str, float](), dict[str, float]()

    def norm_of(name: str, wanted: torch.Tensor) -> torch.Tensor:
        """Add the errors of a norm's input and output; return the output."""
        given, out = calls[name]
        exact[f"what {name} is given"] = _exact_error(given, wanted)
        errors[name] = relative_error(out, normalised(given, _weight(modules[name], given).float(), architecture))
        return out

    ids, hidden = calls["embedding"]
    plain = type(modules["embedding"]) is torch.nn.Embedding  # an adapter around it computes in 16 bit
    (exact if plain else errors)["embedding"] = _exact_error(hidden, _weight(modules["embedding"], ids)[ids].float())
    if ROTARY in calls:
        cos, sin = calls[ROTARY]
        angles = _angles(torch.arange(len(cos), device=cos.device), cos.shape[-1], architecture, cos).repeat(1, 2)
        errors[ROTARY] = relative_error(torch.cat([cos, sin]), torch.cat([angles.cos(), angles.sin()]))
    for at in (f"layers.{number}" for number in range(architecture.num_hidden_layers)):
        q, k, v, o, gate, up, down = (calls[f"{at}.{name}"] for name in LINEARS)
        normed = norm_of(f"{at}.input_layernorm", hidden)
        exact |= {f"{at}: input of {s}_proj": _exact_error(x[0], normed) for s, x in zip("qkv", (q, k, v), strict=True)}
        errors[f"{at}: attention"] = relative_error(o[0], attention(q[1], k[1], v[1], architecture))
        normed = norm_of(f"{at}.post_attention_layernorm", calls[f"{at}.input_layernorm"][0] + o[1])
        exact |= {f"{at}: input of {s}_proj": _exact_error(x[0], normed) for s, x in (("gate", gate), ("up", up))}
        errors[f"{at}: gated activation"] = relative_error(down[0], gated(gate[1], up[1]))
        hidden = calls[f"{at}.post_attention_layernorm"][0] + down[1]
    norm_of("norm", hidden)
    given, out = calls["head"]
    exact["head's input"] = _exact_error(given, calls["norm"][1])
    ends = [0, -1]  # two positions: the whole product would cost as much as a layer
    weight, wanted = _weight(modules["head"], given), out[ends]
    if weight.dim() == 2 and weight.is_floating_point():
        wanted = torch.cat([given[ends] @ rows.float().T for rows in torch.split(weight, HEAD_ROWS)], dim=-1)
    errors["head"] = relative_error(out[ends], wanted)
    exact["logits"] = _exact_error(logits[0].float(), out)
    return errors, exact


def head_error(model: Any, calls: Calls) -> dict[str, float]:
    """Return the head's error in fp32 arithmetic on two of its own inputs, for some rows of its weight.

    All rows in fp32 may be gigabytes. Nothing for a head that is no plain linear, or whose weight lies elsewhere.
    """
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or "head" not in calls or hasattr(head.weight, "to_local"):
        return {}
    sampled = slice(None, None, -(-len(head.weight) // HEAD_ROWS))
    wide = {n: p.detach()[sampled].float() for n, p in head._parameters.items() if p is not None}
    given = calls["head"][0][[0, -1]].to(head.weight.device)
    with mock.patch.dict(head._parameters, wide), torch.no_grad(), torch.autocast(given.device.type, enabled=False):
        wanted = given @ head.weight.T if head.bias is None else given @ head.weight.T + head.bias
        return {"head": relative_error(head(given), wanted)}


def worst_gain(model: Any, architecture: Architecture, calls: Calls) -> tuple[float | None, str]:
    """How far a norm's gain is off, and which norm's: a token's is the median over its elements, a norm's their RMS.

    In 16 bit each element is rounded, up and down alike, and the median is hardly moved by it; what is rounded before
    the token's scale is taken moves all of its elements alike. The median, since a trained model's largest element may
    be all of its token's norm.
    """
    gains: dict[str, float] = {}
    for name, module in _modules(model).items():
        if name.endswith("norm") and name in calls:
            given, out = calls[name]
            scale = torch.rsqrt(given.square().mean(-1, keepdim=True) + architecture.rms_norm_eps)
            wanted = _weight(module, given).float() * given * scale
            # a scale of nearly 1, 2 or 1/2 moves no 16-bit number from its place: all elements are then off by as much
            moved = (2**0.5 * torch.frexp(2**0.5 * scale).mantissa - 1).abs() > 2 * torch.finfo(model.dtype).eps
            told = wanted.ne(0).any(-1) & moved[..., 0]  # the padding's embedding is zeros, whose gain is no number
            if told.any():
                ratios = (out / wanted)[told].cpu()  # nanmedian has no deterministic kernel on CUDA
                gains[name] = float((ratios.nanmedian(-1).values - 1).square().mean().sqrt())
    at, gain = worst(gains)
    return (gain if gains else None), at


class WatchedLinears:
    """How far the gain of each plain frozen linear is off in one call of the model, and that of its gradient.

    It is that of the product's part along the product of the weight: rounding, up and down alike, hardly moves it. What
    an adapter adds is not in it. Linears that learn are held to their weights elsewhere.
    """

    def __init__(self, model: Any, hooks: Hooks) -> None:
        """Watches the next call, until the hooks are removed."""
        self._given: dict[str, tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._gains: dict[str, float] = {}
        modules = {name: module for name, module in _modules(model).items() if name.startswith("layers.")}
        layers = sorted({int(name.split(".")[1]) for name in modules})
        self._taken = {layers[at] for at in (0, len(layers) // 2, -1)} if layers else set[int]()
        """Layers whose linears are called again: all of SmolLM2-135M's take as long as half a step."""
        for name, module in modules.items():
            while hasattr(module, "base_layer"):
                module = module.base_layer
            weight: Any = getattr(module, "weight", None)
            linear = type(module) is torch.nn.Linear and weight.dim() == 2
            plain = linear and not hasattr(weight, "to_local") and not is_encoded(weight)
            if (plain or is_packed(weight)) and not (weight.requires_grad or weight.is_meta):
                hooks.after(module, partial(self._note, name))

    def errors(self) -> dict[str, float]:
        """Return them by name; some layers' linears are called once more for their gradient, with their last tokens."""
        for name, (module, given, at, weight) in self._given.items():
            with torch.enable_grad():
                own = given.clone().requires_grad_(True)
                out = module(own)
            above = cotangent(out[..., at])
            [got] = torch.autograd.grad(out, own, torch.zeros_like(out).index_copy(-1, at, above))
            self._gains[f"{name}, its gradient,"] = _gain_error(got.float(), above.float() @ weight)
        return self._gains

    def _note(self, name: str, module: Any, args: Any, out: torch.Tensor) -> None:
        with torch.no_grad(), torch.autocast(out.device.type, enabled=False):
            given, (rows, weight) = args[0][:1].detach().to(out.device), some_rows(module.weight)
            at, weight = torch.tensor([row for part in rows for row in part], device=out.device), weight.to(out.device)
            got = out[:1, :, at].float() - (0 if module.bias is None else module.bias.to(out.device)[at].float())
            self._gains[name] = _gain_error(got, given.float() @ weight.T)
            if int(name.split(".")[1]) in self._taken:
                dtype = given.dtype if is_packed(module.weight) else module.weight.dtype
                self._given[name] = module, given[:, -2:].to(dtype), at, weight


def _gain_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return abs(float(torch.where(wanted.any(), (got * wanted).sum() / wanted.square().sum(), 1.0)) - 1)


class WatchedAttention:
    """The first layer's attention against its formula in a training's own calls: their shapes choose the kernel."""

    def __init__(
        self, model: Any, architecture: Architecture, batches: Callable[[], Sequence[Rows]], hooks: Hooks
    ) -> None:
        """Watches the calls for these batches until the hooks are removed."""
        decoder = model.get_decoder()
        attention = decoder.layers[0].self_attn
        self._architecture, self._batches = architecture, batches
        self._mask: torch.Tensor | None = None
        self._projected: dict[str, torch.Tensor] = {}
        self._errors: list[torch.Tensor] = []
        hooks.before(decoder, self._begin, with_kwargs=True)
        for side in "qkv":
            hooks.after(getattr(attention, f"{side}_proj"), partial(self._keep, side))
        hooks.before(attention.o_proj, self._compare)

    def seen(self) -> tuple[int, float]:
        """Rows compared, and the largest relative error of one; NaN when there was none."""
        largest = torch.stack(self._errors).nan_to_num(nan=torch.inf).max() if self._errors else float("nan")
        return len(self._errors), float(largest)

    def _begin(self, _module: Any, _args: Any, others: dict[str, Any]) -> None:
        """What is padding is the batch's to say, not the call's; rows with positions of their own would be packed.

        A model of pictures and text gives its decoder embeddings: of two batches of one shape nothing is then known.
        """
        ids, embeddings = others.get("input_ids"), others.get("inputs_embeds")
        if ids is not None:
            masks = [mask for rows, mask in self._batches() if torch.equal(rows, ids)]
        else:
            shape = None if embeddings is None else embeddings.shape[:2]
            masks = [mask for rows, mask in self._batches() if rows.shape == shape]
        known = masks and (ids is not None or len(masks) == 1) and others.get("position_ids") is None
        self._mask = masks[0].bool() if known else None

    def _keep(self, side: str, _module: Any, _args: Any, out: torch.Tensor) -> None:
        if self._mask is not None:
            self._projected[side] = out.detach()

    def _compare(self, _module: Any, args: Any) -> None:
        mask, self._mask = self._mask, None
        if mask is None:  # also of a layer that is computed once more for its gradient
            return
        given = args[0].detach()
        with torch.no_grad(), torch.autocast(given.device.type, enabled=False):
            for row, real in enumerate(mask):
                if not real.any():
                    continue
                q, k, v = (self._projected[side][row][real].float() for side in "qkv")
                wanted = attention(q, k, v, self._architecture, real.nonzero().squeeze(1).to(q.device))
                self._errors.append((given[row][real].float() - wanted).norm() / wanted.norm())
        self._projected.clear()


def _modules(model: Any) -> dict[str, Any]:
    decoder = model.get_decoder()
    found = {"embedding": model.get_input_embeddings(), "norm": decoder.norm, "head": model.get_output_embeddings()}
    names = ("input_layernorm", "post_attention_layernorm", *LINEARS)
    layers = enumerate(decoder.layers)
    return found | {f"layers.{at}.{name}": layer.get_submodule(name) for at, layer in layers for name in names}


def _weight(module: Any, beside: torch.Tensor) -> torch.Tensor:
    """The module's weight where this tensor is: an offloaded one lies on the CPU between forward passes."""
    return whole(module.weight).detach().to(beside.device)


def normalised(x: torch.Tensor, weight: torch.Tensor, architecture: Architecture) -> torch.Tensor:
    """RMSNorm of the last dimension."""
    return weight * x / (x.square().mean(-1, keepdim=True) + architecture.rms_norm_eps) ** 0.5


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """SwiGLU, its activation put together from the exponential: the model's own kernel must not vouch for itself."""
    return gate / (1 + (-gate).exp()) * up


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, architecture: Architecture, at: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention of one row: [tokens, heads x dim] from queries, and keys and values of fewer heads.

    `at` are the tokens' positions: those of a row with padding in its middle have gaps.
    """
    tokens, heads, groups = len(q), architecture.num_attention_heads, architecture.num_key_value_heads
    q, k, v = (x.view(tokens, number, -1).transpose(0, 1) for x, number in ((q, heads), (k, groups), (v, groups)))
    at = torch.arange(tokens, device=q.device) if at is None else at
    q, k = _rotated(q, architecture, at), _rotated(k, architecture, at)
    behind = at[:, None] - at
    future = behind < 0
    if architecture.model_type == "mistral":  # its configuration's default; the others have no window
        future |= behind >= ((architecture.model_extra or {}).get("sliding_window", 4096) or tokens)
    mixed = []
    # one group after the other: all scores at once are gigabytes for a long row
    for queries, key, value in zip(torch.split(q, heads // groups), k, v, strict=True):
        scores = (queries @ key.T / key.shape[-1] ** 0.5).masked_fill(future, -torch.inf)
        weights = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        mixed.append(weights / weights.sum(-1, keepdim=True) @ value)
    return torch.cat(mixed).transpose(0, 1).reshape(tokens, -1)


def _rotated(x: torch.Tensor, architecture: Architecture, at: torch.Tensor) -> torch.Tensor:
    """[heads, tokens, dim] turned by position x theta^(-2i/dim), halves paired as transformers pairs them."""
    angles = _angles(at, x.shape[-1], architecture, x)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _angles(at: torch.Tensor, dim: int, architecture: Architecture, like: torch.Tensor) -> torch.Tensor:
    """[positions, dim / 2], of this one's dtype and device."""
    exponents = torch.arange(0, dim, 2, dtype=like.dtype, device=like.device) / dim
    return at[:, None] * architecture.rope_theta**-exponents


def _exact_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the relative error beside what is wanted in the dtype that all of these numbers fit."""
    fitting = (dtype for dtype in (torch.bfloat16, torch.float16) if torch.equal(got.to(dtype).float(), got))
    return relative_error(got, wanted.to(next(fitting, torch.float32)).float())


def cotangent(out: torch.Tensor) -> torch.Tensor:
    """Return a gradient by `out` to begin a backward pass with: numbers of 0.5 to 1, the same in every call."""
    return torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).cos().view_as(out)
