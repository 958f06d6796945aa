"""Properties of one forward pass: the same twice, causal, blind to padding and to other rows; and one known product.

And does it use the trained tensors as they are, or what somebody remembered of them? A copy in another dtype, a fused
or merged matrix, a table made once: each must follow every update. All checks that run the model are blind to one that
does not, since they are given the same memory. So the trained tensors themselves change here, all of them by one half,
which binary numbers take without rounding, and each module's product must follow.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tunecheck.core.evidence import CurrentWeights, ForwardPaths, ForwardReference, LayerCalls
from tunecheck.models.layer_names import attention_of, stacked_layers
from tunecheck.probes.reference import architecture as formulas
from tunecheck.probes.reference.backward import layer_errors, negative_score_errors
from tunecheck.probes.reference.forwards import first_tokens, logits_of
from tunecheck.probes.reference.measures import dtype_name, relative_error, worst
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe
from tunecheck.training.hooks import Hooks, OwnHooks
from tunecheck.training.restore import dropouts, kept_values
from tunecheck.training.session import Session
from tunecheck.training.tensors import own_parameters, whole

ROW_TOKENS, SHORT_TOKENS = 10, 6
REFERENCE_TOKENS = 128
"""Of the longest row: what is wrong only far from a row's start (a window, a table that ends) must be reached."""


class ForwardProbe(Probe[ForwardPaths | ForwardReference | LayerCalls]):
    """Small forwards before training; during one step counts of layer calls and the kernels of attention."""

    def start(self, session: Session) -> None:
        with _speaking(session.model):
            self._compare(session)

    def _compare(self, session: Session) -> None:
        """Compare logits of rows that differ in one respect each."""
        architecture = session.run.model.architecture
        known = formulas.has_formulas(architecture, session.model)
        row, other = torch.tensor([row.input_ids[:ROW_TOKENS] for row in session.batches.heldout[:2]])
        vocabulary = len(session.model.get_input_embeddings().weight)
        later = torch.cat([row[:-1], (other[-1:] + (other[-1:] == row[-1:]).long()) % vocabulary])
        padded = torch.cat([row[:SHORT_TOKENS], other[SHORT_TOKENS:]])
        mask = torch.ones(3, ROW_TOKENS, dtype=torch.long)
        mask[2, SHORT_TOKENS:] = 0
        first = self._logits(session, torch.stack([row, later, padded]), mask)
        among_others = self._logits(session, torch.stack([row, other, padded]), mask)
        again = among_others
        if not torch.equal(first[::2], again[::2]):  # is it a second forward, or one among other rows?
            again = self._logits(session, torch.stack([row, later, padded]), mask)
        scale = float(first.abs().max())
        a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
        product = (a.to(session.device) @ b.to(session.device)).cpu().double()
        seen = ForwardPaths(
            repeat_difference=_largest(first[::2], again[::2]),
            future_token_difference=_largest(first[0, :-1], first[1, :-1]) / scale,
            padding_difference=_largest(first[0, :SHORT_TOKENS], first[2, :SHORT_TOKENS]) / scale,
            other_row_difference=_largest(first[0], among_others[0]) / scale,
            matmul_error=relative_error(product, a.double() @ b.double()),
            attention=str(session.model.config._attn_implementation),
        )
        self.emit(seen)

        errors: dict[str, float] = {}
        exact: dict[str, Any] = {}
        if known:
            rows = (*session.batches.heldout, *session.batches.train)
            longest = torch.tensor([max((row.input_ids for row in rows), key=len)])
            whole = longest[:, :REFERENCE_TOKENS]
            in_place = session.run.training.offload != "parameters"
            with formulas.recorded(session.model) as calls, OwnHooks() as hooks:
                linears = formulas.WatchedLinears(session.model, hooks) if in_place else None
                logits = self._logits(session, whole, torch.ones_like(whole))
            if linears is not None and (gains := linears.errors()):
                exact["product_gain_error_at"], exact["product_gain_error"] = worst(gains)
            computed, finer = formulas.deviations(session.model, architecture, calls, logits)
            errors = computed | finer
            if session.precision != "fp32":  # in fp32 the relations' own limit is as fine
                exact["gain_error"], exact["gain_error_at"] = formulas.worst_gain(session.model, architecture, calls)
            if longest.shape[1] > REFERENCE_TOKENS:
                padless = longest.to(session.device), torch.ones_like(longest)
                with OwnHooks() as hooks:
                    watched = formulas.WatchedAttention(session.model, architecture, lambda: [padless], hooks)
                    self._logits(session, *padless)
                errors[f"first layer's attention of {longest.shape[1]} tokens"] = watched.seen()[1]
            if in_place:  # a forward that ends in its middle would keep them here
                training = not session.run.uses_dropout
                of_layers = partial(layer_errors, session.model, architecture, session.device, training=training)
                widens = session.precision != "fp32" and not session.autocast
                errors |= of_layers(every=not widens)
                if widens:
                    finer = finer | of_layers(widened=True)
            if session.precision != "fp32":
                finer = finer | formulas.head_error(session.model, calls)
                exact["fp32_error_at"], exact["fp32_error"] = worst(finer)
            if session.run.training.attention == "sdpa":
                extreme = negative_score_errors(architecture.head_width, session.model.dtype, session.device)
                exact["extreme_error_at"], exact["extreme_error"] = worst(extreme)
        at, error = worst(errors)
        self.emit(ForwardReference(has_formulas=known, relations=len(errors), error=error, worst=at, **exact))

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Count layer calls during the second step, of a single one during that."""
        self._counted = min(1, session.run.training.max_steps - 1)
        if step == self._counted:
            self._counts = Counter(calls=0, recomputed=0, head_tokens=0, cached_calls=0)
            """By fields of LayerCalls."""
            layers = stacked_layers(session.model)
            self._layers = len(layers)
            attentions = [attention_of(layer) for layer in layers]
            for layer, inner in zip(layers, attentions, strict=True):
                self.hooks.before(layer if inner is None else inner, self._count)
                self.hooks.before(layer, self._note, with_kwargs=True)
            architecture, self._attention = session.run.model.architecture, None
            dropping = {id(module) for module, _, _ in dropouts(session.model)}
            of_first = {id(part) for first in attentions[:1] if first for part in (first, *first.children())}
            if formulas.has_formulas(architecture, session.model) and dropping.isdisjoint(of_first):
                self._attention = formulas.WatchedAttention(
                    session.model, architecture, lambda: [(b.input_ids, b.attention_mask) for b in window], self.hooks
                )
            self._kernels, self._dtypes = set[str](), set[str]()
            self.hooks.before(session.model.get_output_embeddings(), self._note_tokens)
            self._products: dict[str, set[str]] = {"_proj": set(), "lora_A.default": set()}
            for name, module in (named for layer in layers for named in layer.named_modules()):
                for ending, seen in self._products.items():
                    if name.endswith(ending):
                        self.hooks.after(module, lambda _m, _args, out, seen=seen: seen.add(dtype_name(out.dtype)))
            # a hybrid's first layers may have another attention, without a softmax
            for attention in {type(inner): inner for inner in reversed(attentions) if inner is not None}.values():
                self.hooks.around(attention, self._noting_kernels)

    def backward_end(self, session: Session, step: int) -> None:
        if step == self._counted:
            self.hooks.remove()
            rows, error = self._attention.seen() if self._attention else (0, math.nan)
            seen = LayerCalls(
                layers=self._layers,
                micro_batches=len(session.exchange.share(session.window)),
                attention_kernels=tuple(sorted(self._kernels)),
                hidden_dtypes=tuple(sorted(self._dtypes)),
                product_dtypes=tuple(sorted(self._products["_proj"])),
                adapter_dtypes=tuple(sorted(self._products["lora_A.default"])),
                **self._counts,
                attention_rows=rows,
                attention_error=error,
            )
            self.emit(seen)

    def _count(self, *_: object) -> None:
        self._counts.update(calls=1, recomputed=torch._C._current_graph_task_id() != -1)  # -1 where no backward pass is

    def _note(self, _module: object, args: tuple[torch.Tensor, ...], others: dict[str, object]) -> None:
        given = (value for value in (*args, *others.values()) if isinstance(value, torch.Tensor))
        self._dtypes.add(next(dtype_name(value.dtype) for value in given if value.is_floating_point()))
        # transformers 5.24 calls the argument otherwise than the releases before it
        self._counts["cached_calls"] += any(hasattr(value, "get_seq_length") for value in others.values())

    @contextmanager
    def _noting_kernels(self) -> Iterator[None]:
        """Note the kernels of attention in the block: SDPA picks its own by shapes, dtypes and masks, call by call."""
        called, operators = list[bool](), set[Any]()
        with Hooks() as hooks, _Operators(self.hooks.guarded(operators.add)):
            hooks.function(functional, "scaled_dot_product_attention", before=lambda *_, **__: called.append(True))
            yield
        names = {operator.overloadpacket.__name__ for operator in operators}
        kernels = {name for name in names if "attention" in name or "flash_attn" in name}
        eager = {"eager"} if any("softmax" in name for name in names) else set()
        self._kernels |= {f"sdpa:{name}" for name in kernels or {"math"}} if called else kernels or eager

    def _note_tokens(self, _module: object, args: tuple[torch.Tensor, ...]) -> None:
        self._counts["head_tokens"] = max(self._counts["head_tokens"], math.prod(args[0].shape[:-1]))

    def _logits(self, session: Session, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the logits in train mode, the training path itself, or with dropout in eval mode."""
        training = not session.run.uses_dropout
        return logits_of(session.model, ids.to(session.device), training=training, mask=mask.to(session.device))


@contextmanager
def _speaking(model: Any) -> Iterator[None]:
    """Have a head of zeros, as some trainings begin with, tell rows apart in the block."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    silent = [] if weight is None or whole(weight).any() else [weight]
    with kept_values(silent):
        for matrix in silent:
            torch.nn.init.normal_(matrix, std=matrix.shape[-1] ** -0.5)
        yield


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, seen: Callable[[Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._seen(func)
        return func(*args, **(kwargs or {}))


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


class WeightsInUseProbe(Probe[CurrentWeights]):
    """Looks once, after training, in train mode. Adapters are touched by another probe, before training."""

    def start(self, session: Session) -> None:
        self._reached: set[Any] = set()
        """Parameters that had a gradient."""

    def backward_end(self, session: Session, step: int) -> None:
        if session.run.trains_base:
            self._reached.update(p for p in session.model.parameters() if p.grad is not None)

    def end(self, session: Session) -> None:
        """Two forwards: what is remembered of the first must not serve the second."""
        if not session.run.trains_base:
            return
        # others may scale embeddings, or norms by 1 + weight
        known = formulas.has_formulas(session.run.model.architecture, session.model)
        every = session.model.named_modules()
        learnt = ((n, m) for n, m in every if any(p.requires_grad and p in self._reached for p in own_parameters(m)))
        plain = ((n, m) for n, m in learnt if type(m) is torch.nn.Linear or known)
        # a list of tensors, as IA3's, has no weight
        modules = {n: m for n, m in plain if hasattr(m, "weight") and m.weight.is_floating_point()}
        before = _logits(session)
        trained = [p for p in session.model.parameters() if p.requires_grad]
        with _halved(trained), formulas.recorded_calls(modules, _last_two) as calls:
            _logits(session)
            products = [name for name in modules if name in calls and _is_product(modules[name], *calls[name])]
            errors = {n: relative_error(calls[n][1], _product(modules[n], calls[n][0], session)) for n in products}
        for name, module in modules.items():
            if name not in errors:  # others read its tensors, as Mamba's kernel does: then the logits follow them
                with _halved([p for p in own_parameters(module) if p.requires_grad]):
                    errors[name] = math.inf if torch.equal(_logits(session), before) else 0.0
        at, error = worst(errors)
        self.emit(CurrentWeights(modules=len(errors), error=error, worst=at))


def _logits(session: Session) -> torch.Tensor:
    return logits_of(session.model, first_tokens(session), training=True)


@contextmanager
def _halved(parameters: list[Any]) -> Iterator[None]:
    """These tensors at half their size; bit for bit what they were afterwards."""
    # halved, numbers near a dtype's smallest lose a bit: in fp16 those below 1e-4, else below 1e-37, which no weight is
    kept = {at: whole(p).detach().clone() for at, p in enumerate(parameters) if p.dtype == torch.float16}
    try:
        with torch.no_grad():
            for parameter in parameters:
                whole(parameter).mul_(0.5)
        yield
    finally:
        with torch.no_grad():
            for at, parameter in enumerate(parameters):
                whole(parameter).copy_(kept[at]) if at in kept else whole(parameter).mul_(2)


def _last_two(given: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a module is given and returns at the last two positions."""
    given = given.flatten(0, -2)[-2:].float() if given.is_floating_point() else given.flatten()[-2:]
    # copies: Llama 4 adds its experts to the shared one's output in place
    return given.clone(), out.flatten(0, -2)[-2:].float().clone()


def _is_product(module: Any, given: torch.Tensor, out: torch.Tensor) -> bool:
    """Return whether the shapes are a norm's, a linear's or a table's, and not those of a rotation, say, as OFT's."""
    # A class of the script's own may compute otherwise, as may what makes the weight of other tensors for each pass
    if "weight" not in module._parameters or not type(module).__module__.startswith(("torch.", "transformers.")):
        return False
    height, width = module.weight.shape[0], module.weight.shape[-1]
    if not given.is_floating_point():
        return bool(width == out.shape[-1])
    return bool(width == given.shape[-1] and height == out.shape[-1])


def _product(module: Any, given: torch.Tensor, session: Session) -> torch.Tensor:
    """What the module's tensors, as they are, make of this."""
    weight = whole(module.weight).detach().to(given.device)
    if not given.is_floating_point():
        return weight[given].float()
    if weight.dim() == 1:
        return formulas.normalised(given, weight.float(), session.run.model.architecture)
    product = given @ weight.float().T
    return product if module.bias is None else product + whole(module.bias).detach().to(given.device).float()
