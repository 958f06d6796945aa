"""Properties of one forward pass: the same twice, causal, blind to padding and to other rows; and one known product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from suite.core.evidence import ForwardPaths, ForwardReference, LayerCalls
from suite.models.layer_names import attention_of, stacked_layers
from suite.probes.reference.architecture import WatchedAttention, deviations, has_formulas, recorded, worst_gain
from suite.probes.reference.backward import layer_errors, negative_score_errors
from suite.probes.reference.forwards import logits_of
from suite.probes.reference.measures import dtype_name, worst
from suite.training.data import Batch
from suite.training.events import Probe
from suite.training.session import Session

ROW_TOKENS, SHORT_TOKENS = 10, 6
REFERENCE_TOKENS = 128
"""Of the longest row: what is wrong only far from a row's start (a window, a table that ends) must be reached."""


class ForwardProbe(Probe):
    """Small forwards before training; during one step counts of layer calls and the kernels of attention."""

    emits = (ForwardPaths, ForwardReference, LayerCalls)

    def start(self, session: Session) -> None:
        """Compare logits of rows that differ in one respect each."""
        architecture = session.run.model.architecture
        known = has_formulas(architecture)
        ids = torch.tensor([row.input_ids[:ROW_TOKENS] for row in session.batches.heldout[:2]])
        row, other = ids[0], ids[1]
        later = torch.cat([row[:-1], other[-1:] + (other[-1:] == row[-1:]).long()])
        padded = torch.cat([row[:SHORT_TOKENS], other[SHORT_TOKENS:]])
        mask = torch.ones(3, ROW_TOKENS, dtype=torch.long)
        mask[2, SHORT_TOKENS:] = 0
        first = self._logits(session, torch.stack([row, later, padded]), mask)
        among_others = self._logits(session, torch.stack([row, other, padded]), mask)
        again = among_others
        if not torch.equal(first[::2], again[::2]):  # is it a second forward, or one among other rows?
            again = self._logits(session, torch.stack([row, later, padded]), mask)
        scale = float(first.abs().max())
        self.emit(
            ForwardPaths(
                repeat_difference=_largest(first[::2], again[::2]),
                future_token_difference=_largest(first[0, :-1], first[1, :-1]) / scale,
                padding_difference=_largest(first[0, :SHORT_TOKENS], first[2, :SHORT_TOKENS]) / scale,
                other_row_difference=_largest(first[0], among_others[0]) / scale,
                matmul_error=_matmul_error(session.device),
                attention=str(session.model.config._attn_implementation),
            )
        )

        errors: dict[str, float] = {}
        exact: dict[str, Any] = {}
        if known:
            rows = (*session.batches.heldout, *session.batches.train)
            longest = torch.tensor([max((row.input_ids for row in rows), key=len)])
            whole = longest[:, :REFERENCE_TOKENS]
            with recorded(session.model) as calls:
                logits = self._logits(session, whole, torch.ones_like(whole))
            errors = deviations(session.model, architecture, calls, logits)
            if session.precision != "fp32":  # in fp32 the relations' own limit is as fine
                exact = dict(
                    zip(("gain_error", "gain_error_at"), worst_gain(session.model, architecture, calls), strict=True)
                )
            if longest.shape[1] > REFERENCE_TOKENS:
                errors |= self._longest(session, longest)
            if session.run.training.offload != "parameters":  # a forward that ends in its middle would keep them here
                of_layers = partial(
                    layer_errors, session.model, architecture, session.device, training=not session.run.uses_dropout
                )
                widens = session.precision != "fp32" and not session.autocast
                errors |= of_layers(every=not widens)
                if widens:
                    widened = of_layers(widened=True)
                    at = worst(widened) or ""
                    exact |= {"fp32_error": widened.get(at, math.nan), "fp32_error_at": at}
            if session.run.training.attention == "sdpa":
                errors |= negative_score_errors(session.model, session.device)
        at = worst(errors) or ""
        self.emit(
            ForwardReference(
                has_formulas=known, relations=len(errors), error=errors.get(at, math.nan), worst=at, **exact
            )
        )

    def _longest(self, session: Session, ids: torch.Tensor) -> dict[str, float]:
        """The attention of the first layer alone, for this row as a whole."""
        rows = (ids.to(session.device), torch.ones_like(ids))
        watched = WatchedAttention(session.model, session.run.model.architecture, lambda: [rows])
        self._logits(session, *rows)
        return {f"first layer's attention of {ids.shape[1]} tokens": watched.close()[1]}

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Count layer calls during the second step."""
        if step == 1:
            self._calls, self._window = 0, session.exchange.share(window)
            layers = stacked_layers(session.model)
            self._layers = len(layers)
            attentions = [attention_of(layer) for layer in layers]
            counted = [layer if inner is None else inner for layer, inner in zip(layers, attentions, strict=True)]
            self._handles = [module.register_forward_pre_hook(self._count) for module in counted]
            self._handles += [layer.register_forward_pre_hook(self._note, with_kwargs=True) for layer in layers]
            architecture = session.run.model.architecture
            self._attention = (
                WatchedAttention(session.model, architecture, lambda: [(b.input_ids, b.attention_mask) for b in window])
                if has_formulas(architecture)
                else None
            )
            self._kernels, self._dtypes = _AttentionKernels(), set[str]()
            self._head_tokens = self._cached_calls = 0
            head = session.model.get_output_embeddings()
            self._handles.append(head.register_forward_pre_hook(self._note_tokens))
            self._products: dict[str, set[str]] = {"_proj": set(), "lora_A.default": set()}
            for ending, seen in self._products.items():
                linears = (
                    module for layer in layers for name, module in layer.named_modules() if name.endswith(ending)
                )
                self._handles += [linear.register_forward_hook(_noting(seen)) for linear in linears]
            for attention in [inner for inner in attentions if inner is not None][:1]:
                self._handles.append(attention.register_forward_pre_hook(self._kernels.enter))
                self._handles.append(attention.register_forward_hook(self._kernels.leave, always_call=True))

    def backward_end(self, session: Session, step: int) -> None:
        """The second step's backward is done, recomputed layers included."""
        if step == 1:
            for handle in self._handles:
                handle.remove()
            rows, error = self._attention.close() if self._attention else (0, math.nan)
            self.emit(
                LayerCalls(
                    layers=self._layers,
                    micro_batches=len(self._window),
                    calls=self._calls,
                    attention_kernels=tuple(sorted(self._kernels.seen)),
                    hidden_dtypes=tuple(sorted(self._dtypes)),
                    product_dtypes=tuple(sorted(self._products["_proj"])),
                    adapter_dtypes=tuple(sorted(self._products["lora_A.default"])),
                    head_tokens=self._head_tokens,
                    cached_calls=self._cached_calls,
                    attention_rows=rows,
                    attention_error=error,
                )
            )

    def _count(self, *_: object) -> None:
        self._calls += 1

    def _note(self, _module: object, args: tuple[torch.Tensor, ...], others: dict[str, object]) -> None:
        self._dtypes.add(dtype_name(args[0].dtype))
        self._cached_calls += others.get("past_key_values") is not None

    def _note_tokens(self, _module: object, args: tuple[torch.Tensor, ...]) -> None:
        self._head_tokens = max(self._head_tokens, math.prod(args[0].shape[:-1]))

    def _logits(self, session: Session, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the logits in train mode, the training path itself, or with dropout in eval mode."""
        training = not session.run.uses_dropout
        return logits_of(session, ids.to(session.device), training=training, mask=mask.to(session.device))


class _AttentionKernels:
    """Names of the kernels that a module runs between `enter` and `leave`, which are its forward hooks.

    Asking the configuration would not do: SDPA picks its kernel by shapes, dtypes and masks, call by call.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._modes: list[ExitStack] = []

    def enter(self, *_: object) -> None:
        """The module's forward begins."""
        self._calls_sdpa, self._ops = False, set[str]()
        self._modes.append(ExitStack())
        self._modes[-1].enter_context(_Functions(self))
        self._modes[-1].enter_context(_Operators(self))

    def leave(self, *_: object) -> None:
        """The module's forward is over, also by an error."""
        self._modes.pop().close()
        kernels = {name for name in self._ops if "attention" in name or "flash_attn" in name}
        if self._calls_sdpa:
            self.seen |= {f"sdpa:{name}" for name in kernels or {"math"}}
        else:
            self.seen |= kernels or {"eager"}

    def call(self, function: Any) -> None:
        """A function of torch is called."""
        self._calls_sdpa |= function is torch.nn.functional.scaled_dot_product_attention

    def run(self, name: str) -> None:
        """An operator runs."""
        self._ops.add(name)


class _Functions(TorchFunctionMode):
    def __init__(self, kernels: _AttentionKernels) -> None:
        super().__init__()
        self._kernels = kernels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._kernels.call(func)
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, kernels: _AttentionKernels) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._kernels.run(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _noting(seen: set[str]) -> Callable[..., None]:
    """A forward hook that adds the dtype of what its module returns."""
    return lambda _module, _args, out: seen.add(dtype_name(out.dtype))


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def _matmul_error(device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator)
    wanted = a.double() @ b.double()
    got = (a.to(device) @ b.to(device)).cpu().double()
    return float((got - wanted).norm() / wanted.norm())
