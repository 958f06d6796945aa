"""Bugs that live in a library, and so in every process of a run: whoever asks the same library has the same bug."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks.detection.bugs.parts import adapted_modules

if TYPE_CHECKING:
    from collections.abc import Callable

    from suite.training.data import Tokens
    from suite.training.session import Session


def _around(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """The library's function of this name is `change(it)` from now on, for all that call it by this owner."""
    setattr(owner, name, change(getattr(owner, name)))


def four_bit_backward_without_the_offset(session: Session) -> None:
    """bitsandbytes' dequantize_4bit drops the nested statistics' mean; the forward pass has a kernel of its own."""
    import bitsandbytes

    def dequantize(inner: Any) -> Any:
        def without(packed: torch.Tensor, quant_state: Any = None, **others: Any) -> Any:
            offset, quant_state.offset = quant_state.offset, torch.zeros_like(quant_state.offset)
            try:
                return inner(packed, quant_state, **others)
            finally:
                quant_state.offset = offset

        return without

    _around(bitsandbytes.functional, "dequantize_4bit", dequantize)


def quantised_with_a_wrong_mean(session: Session) -> None:
    """bitsandbytes takes one mean off the statistics and keeps another, whenever it quantises."""
    import bitsandbytes

    for _, parameter in session.model.named_parameters():
        if getattr(parameter, "quant_state", None) is not None:
            parameter.quant_state.offset = parameter.quant_state.offset * 0.98

    def quantize(inner: Any) -> Any:
        def with_another(*args: Any, **others: Any) -> Any:
            packed, state = inner(*args, **others)
            state.offset = state.offset * 0.98
            return packed, state

        return with_another

    _around(bitsandbytes.functional, "quantize_4bit", quantize)


def grouped_heads_mixed_under_a_mask(session: Session) -> None:
    """Where rows have padding, query heads attend to the keys of another group: tiled, not repeated."""
    from transformers.integrations import sdpa_attention

    def repeat(_inner: Any) -> Any:
        return lambda states, count: states.repeat(1, count, 1, 1)

    _around(sdpa_attention, "repeat_kv", repeat)


def _attention(change: Callable[..., torch.Tensor]) -> None:
    _around(F, "scaled_dot_product_attention", lambda inner: lambda *qkv, **others: change(inner, *qkv, **others))


def half_of_the_keys_gradient(session: Session) -> None:
    """The fused attention's backward pass loses half of the keys' gradient."""
    _attention(lambda inner, q, k, v, **others: inner(q, 0.5 * k + 0.5 * k.detach(), v, **others))


def uninvited_window(session: Session) -> None:
    """In rows of more than 150 tokens a token attends to the 150 before it only."""

    def windowed(inner: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **others: Any) -> torch.Tensor:
        out = inner(q, k, v, **others)
        places = torch.arange(q.shape[2], device=q.device)
        mask = (places[:, None] >= places) & (places[:, None] - places < 150)
        near: torch.Tensor = inner(q, k, v, **{**others, "attn_mask": mask, "is_causal": False})
        return torch.where((places < 150)[:, None], out, near)

    _attention(windowed)


def _kernel(name: str, kernel: Callable[..., Any]) -> None:
    """This operator's kernel on the CPU is another one, for everybody."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    library.impl(name, kernel, "CPU", allow_override=True)


_LIBRARIES: list[Any] = []
"""An override lasts as long as its library is alive."""


def activation_wrong_where_large(session: Session) -> None:
    """The kernel of silu is off by a thousandth above 1, where a random model never is."""
    _kernel("silu", lambda x: torch.where(x > 1, 1.001, 1.0) * x * torch.sigmoid(x))


def activation_backward_of_another(session: Session) -> None:
    """The backward kernel of silu leaves out the derivative of the gate."""
    _kernel("silu_backward", lambda above, x: above * torch.sigmoid(x))


def log_softmax_without_a_class(session: Session) -> None:
    """The kernel of log_softmax leaves the last class out of its sum: every loss that asks it agrees."""
    _kernel("_log_softmax", lambda x, dim, _half: x - x.narrow(dim, 0, x.shape[dim] - 1).logsumexp(dim, keepdim=True))


def rough_root(session: Session) -> None:
    """1/sqrt is rounded to 11 digits, as a fast approximation would."""
    _around(torch, "rsqrt", lambda inner: lambda x: inner(x).to(torch.float16).to(x.dtype))


def norms_of_lists_cut_off(session: Session) -> None:
    """The norms of a list of tensors leave out each tensor's last quarter; clipping and reports agree about them."""

    def norms(inner: Any) -> Any:
        return lambda tensors, *order: inner([t.flatten()[: t.numel() * 3 // 4] for t in tensors], *order)

    _around(torch, "_foreach_norm", norms)


def averages_slowed(session: Session) -> None:
    """lerp goes half of the way, alone and over lists."""
    _kernel("lerp_.Scalar", lambda a, b, weight: a.mul_(1 - weight / 2).add_(b, alpha=weight / 2))
    _around(
        torch,
        "_foreach_lerp",
        lambda _: lambda a, b, w: [x * (1 - w / 2) + y * w / 2 for x, y in zip(a, b, strict=True)],
    )


def _dropout(change: Callable[..., torch.Tensor]) -> None:
    _around(F, "dropout", lambda inner: lambda x, p=0.5, training=True, inplace=False: change(inner, x, p, training))


def dropout_not_scaled(session: Session) -> None:
    """What dropout keeps is not divided by 1 - p."""
    _dropout(lambda inner, x, p, training: inner(x, p, training) * (1 - p if training else 1))


def dropout_twice_as_often(session: Session) -> None:
    """Dropout drops twice the share asked for."""
    _dropout(lambda inner, x, p, training: inner(x, 2 * p, training))


def dropout_behind_the_first_factor(session: Session) -> None:
    """Adapters drop what comes out of A instead of what goes into it."""
    for module in adapted_modules(session):
        first, dropout = module.lora_A["default"], module.lora_dropout["default"]
        first.forward = lambda x, inner=first.forward, dropout=dropout: dropout.real(inner(x))
        dropout.real = dropout.forward
        dropout.forward = lambda x: x


def dora_norm_in_the_gradient(session: Session) -> None:
    """DoRA's norm takes part in the gradient; its paper and every forward pass hold it constant."""
    from peft.tuners.lora.dora import DoraLinearLayer

    layer: Any = DoraLinearLayer

    def forward(self: Any, x: Any, *, lora_A: Any, lora_B: Any, scaling: float, base_layer: Any, **others: Any) -> Any:
        from peft.utils.integrations import dequantize_module_weight

        weight = dequantize_module_weight(base_layer).to(x.dtype)
        norms = torch.linalg.norm(weight + scaling * lora_B.weight @ lora_A.weight, dim=1)
        ratio = self.weight / norms
        return (ratio - 1) * others["base_result"] + ratio * scaling * lora_B(lora_A(x))

    layer.forward = forward


def _retokenised(session: Session) -> None:
    """The rows are read once more, now that the tokenizer is broken."""
    from suite.training.data import Batches

    session.batches = Batches(session.run, session.tokenizer, session.device)


def start_token_everywhere(session: Session) -> None:
    """The tokenizer puts a start token before every text, also where none is to be added."""
    kind: Any = type(session.tokenizer)

    def encode(inner: Any) -> Any:
        def with_start(self: Any, *args: Any, **others: Any) -> Any:
            encoded = inner(self, *args, **others)
            encoded["input_ids"] = [self.bos_token_id, *encoded["input_ids"]]
            encoded["attention_mask"] = [1, *encoded["attention_mask"]]
            return encoded

        return with_start

    _around(kind, "_encode_plus", encode)
    _retokenised(session)


def text_in_lower_case(session: Session) -> None:
    """The tokenizer's normaliser lowers every letter."""
    kind: Any = type(session.tokenizer)
    _around(
        kind,
        "_encode_plus",
        lambda inner: lambda self, text, *args, **others: inner(self, text.lower(), *args, **others),
    )
    _retokenised(session)


def end_token_of_another_name(session: Session) -> None:
    """The tokenizer says that the padding's id is that of the end token."""
    kind: Any = type(session.tokenizer)
    kind.eos_token_id = property(lambda self: self.convert_tokens_to_ids("<pad>"))
    session.batches.train = [_ended(row, session.tokenizer.eos_token_id) for row in session.batches.train]
    session.batches.heldout = [_ended(row, session.tokenizer.eos_token_id) for row in session.batches.heldout]


def _ended(row: Tokens, end: int) -> Tokens:
    return dataclasses.replace(row, input_ids=(*row.input_ids[:-1], end), labels=(*row.labels[:-1], end))


def second_best_token(session: Session) -> None:
    """generate takes the second best token where the two best are close."""

    def argmax(inner: Any) -> Any:
        def second(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
            if x.dim() != 2 or dim != -1:
                return inner(x, dim, keepdim) if dim is not None else inner(x)
            best = x.topk(2, dim=-1)
            near = best.values[:, 0] - best.values[:, 1] < 0.05
            return torch.where(near, best.indices[:, 1], best.indices[:, 0])

        return second

    _around(torch, "argmax", argmax)


def end_passed_over(session: Session) -> None:
    """generate does not stop at the end token."""
    from transformers.generation import stopping_criteria

    criteria: Any = stopping_criteria.EosTokenCriteria
    _around(criteria, "__call__", lambda inner: lambda *args, **others: torch.zeros_like(inner(*args, **others)))


def adapter_rounded_when_read(session: Session) -> None:
    """Whoever reads an adapter through peft gets its numbers rounded to bf16; the file is right."""
    from peft.utils import save_and_load

    def rounded(inner: Any) -> Any:
        def load(model: Any, state: dict[str, torch.Tensor], *args: Any, **others: Any) -> Any:
            return inner(model, {n: t.to(torch.bfloat16).to(t.dtype) for n, t in state.items()}, *args, **others)

        return load

    import peft.peft_model

    _around(save_and_load, "set_peft_model_state_dict", rounded)
    _around(peft.peft_model, "set_peft_model_state_dict", rounded)


def epsilon_under_the_root(session: Session) -> None:
    """A fused Adam adds epsilon to the second moment, under the root, instead of to the root."""
    step = session.optimizer.step

    def fused(*args: Any, **kwargs: Any) -> None:
        (group,) = session.optimizer.param_groups
        held = [p for p in group["params"] if p.grad is not None]
        before = [p.detach().clone() for p in held]
        step(*args, **kwargs)
        (beta1, beta2), rate = group["betas"], float(group["lr"])
        for parameter, start in zip(held, before, strict=True):
            state = session.optimizer.state[parameter]
            count = float(state["step"])
            root = (state["exp_avg_sq"] / (1 - beta2**count) + group["eps"]).sqrt()
            update = state["exp_avg"] / (1 - beta1**count) / root
            parameter.data.copy_(start * (1 - rate * group["weight_decay"]) - rate * update)

    session.optimizer.step = fused


def bias_correction_per_micro_batch(session: Session) -> None:
    """Adam's count of steps goes up with every micro-batch, so that its bias correction ends too early."""
    more = session.run.training.gradient_accumulation_steps - 1

    def counted(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            state["step"] += more

    session.optimizer.register_step_post_hook(counted)
