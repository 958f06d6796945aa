"""Bugs in libraries, which every process of a run shares, probes included."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import RANDOM_WEIGHTS, adapted_modules

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tunecheck.training.data import Tokens
    from tunecheck.training.session import Session


def _around(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Replace the owner's function of this name with `change(it)`, for every caller."""
    setattr(owner, name, change(getattr(owner, name)))


@bug("X109", "The 4-bit backward pass drops the offset", caught_by="kernel_agrees")
def four_bit_backward_without_the_offset(session: Session) -> None:
    """Drop the offset of nested statistics in bitsandbytes' dequantize_4bit; the forward pass has a kernel of its
    own."""
    import bitsandbytes
    import torch

    def dequantize(inner: Any) -> Any:
        def without(packed: torch.Tensor, quant_state: Any = None, **others: Any) -> Any:
            offset, quant_state.offset = quant_state.offset, torch.zeros_like(quant_state.offset)
            try:
                return inner(packed, quant_state, **others)
            finally:
                quant_state.offset = offset

        return without

    _around(bitsandbytes.functional, "dequantize_4bit", dequantize)


@bug("X110", "Statistics quantised about a wrong mean", caught_by="quantization_as_configured")
def quantized_with_a_wrong_mean(session: Session) -> None:
    """Subtract one mean from the statistics and keep another whenever bitsandbytes quantizes."""
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


@bug("X111", "Grouped heads mixed where rows are padded", caught_by="forward_matches_architecture")
def grouped_heads_mixed_under_a_mask(session: Session) -> None:
    """Tile grouped keys and values instead of repeating them where rows are padded."""
    from transformers.integrations import sdpa_attention

    def repeat(_inner: Any) -> Any:
        return lambda states, count: states.repeat(1, count, 1, 1)

    _around(sdpa_attention, "repeat_kv", repeat)


def _attention(change: Callable[..., torch.Tensor]) -> None:
    """Replace scaled_dot_product_attention with `change(it, query, key, value, **others)`."""
    import torch.nn.functional as F

    _around(F, "scaled_dot_product_attention", lambda inner: lambda *qkv, **others: change(inner, *qkv, **others))


@bug("X112", "Half of the keys' gradient", caught_by="forward_matches_architecture")
def half_of_the_keys_gradient(session: Session) -> None:
    """Halve the keys' gradient in the backward pass of fused attention."""
    _attention(lambda inner, q, k, v, **others: inner(q, 0.5 * k + 0.5 * k.detach(), v, **others))


@bug("X113", "A window in long rows", caught_by="forward_matches_architecture")
def uninvited_window(session: Session) -> None:
    """Limit attention to the last 150 tokens."""
    import torch

    def windowed(inner: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **others: Any) -> torch.Tensor:
        out = inner(q, k, v, **others)
        places = torch.arange(q.shape[2], device=q.device)
        mask = (places[:, None] >= places) & (places[:, None] - places < 150)
        near: torch.Tensor = inner(q, k, v, **{**others, "attn_mask": mask, "is_causal": False})
        return torch.where((places < 150)[:, None], out, near)

    _attention(windowed)


_LIBRARIES: list[Any] = []
"""An override lasts as long as its library is alive."""


def _kernel(name: str, kernel: Callable[..., Any]) -> None:
    """Replace this operator's CPU kernel, for every caller."""
    import torch

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    library.impl(name, kernel, "CPU", allow_override=True)


@bug("X114", "An activation that is wrong where large", caught_by="forward_matches_architecture")
def activation_wrong_where_large(session: Session) -> None:
    """Change the silu kernel by a thousandth above 1, which a random model never reaches."""
    import torch

    _kernel("silu", lambda x: (torch.where(x > 1, 1.001, 1.0) * x * torch.sigmoid(x)).to(x.dtype))


@bug("X115", "An activation's backward pass", caught_by="forward_matches_architecture")
def activation_backward_of_another(session: Session) -> None:
    """Leave out the gate's derivative in the backward kernel of silu."""
    import torch

    _kernel("silu_backward", lambda above, x: above * torch.sigmoid(x))


@bug(
    "X116",
    "log_softmax without a class",
    caught_by="evaluation_oracle",
    settings=RANDOM_WEIGHTS,  # a trained model gives the last class, which no text has, a probability of 1e-5
)
def log_softmax_without_a_class(session: Session) -> None:
    """Leave the last class out of the sum in the log_softmax kernel, which every loss shares."""
    _kernel("_log_softmax", lambda x, dim, _half: x - x.narrow(dim, 0, x.shape[dim] - 1).logsumexp(dim, keepdim=True))


@bug("X117", "A rough 1/sqrt", caught_by="forward_matches_architecture")
def rough_root(session: Session) -> None:
    """Round rsqrt to 11 bits, as a fast approximation would."""
    import torch

    _around(torch, "rsqrt", lambda inner: lambda x: inner(x).to(torch.float16).to(x.dtype))


@bug("X118", "Norms of lists cut off", caught_by="updates_match_adamw")
def norms_of_lists_cut_off(session: Session) -> None:
    """Leave each tensor's last quarter out of the norms of tensor lists, in clipping and reports alike."""
    import torch

    def norms(inner: Any) -> Any:
        return lambda tensors, *order: inner([t.flatten()[: t.numel() * 3 // 4] for t in tensors], *order)

    _around(torch, "_foreach_norm", norms)


@bug("X119", "Moving averages too slow", caught_by="updates_match_adamw")
def averages_slowed(session: Session) -> None:
    """Halve the weight of lerp, alone and over lists."""
    import torch

    _kernel("lerp_.Scalar", lambda a, b, weight: a.mul_(1 - weight / 2).add_(b, alpha=weight / 2))
    _around(
        torch,
        "_foreach_lerp",
        lambda _: lambda a, b, w: [x * (1 - w / 2) + y * w / 2 for x, y in zip(a, b, strict=True)],
    )


def _dropout(change: Callable[..., torch.Tensor]) -> None:
    """Replace dropout with `change(it, x, p, training)`."""
    import torch.nn.functional as F

    _around(F, "dropout", lambda inner: lambda x, p=0.5, training=True, inplace=False: change(inner, x, p, training))


@bug("X120", "Dropout does not scale", caught_by="dropout_varies", settings=("lora.dropout=0.1",))
def dropout_not_scaled(session: Session) -> None:
    """Leave out the division of dropout's output by 1 - p."""
    _dropout(lambda inner, x, p, training: inner(x, p, training) * (1 - p if training else 1))


@bug("X121", "Dropout twice as often", caught_by="dropout_varies", settings=("lora.dropout=0.1",))
def dropout_twice_as_often(session: Session) -> None:
    """Drop twice the configured share."""
    _dropout(lambda inner, x, p, training: inner(x, 2 * p, training))


@bug("X122", "Dropout behind A", caught_by="dropout_varies", settings=("lora.dropout=0.1",))
def dropout_behind_the_first_factor(session: Session) -> None:
    """Apply the adapters' dropout to the output of A instead of its input."""
    for module in adapted_modules(session):
        first, dropout = module.lora_A["default"], module.lora_dropout["default"]
        first.forward = lambda x, inner=first.forward, dropout=dropout: dropout.real(inner(x))
        dropout.real = dropout.forward
        dropout.forward = lambda x: x


@bug("X123", "DoRA's norm in the gradient", caught_by="adapter_algebra", settings=("lora.use_dora=true",))
def dora_norm_in_the_gradient(session: Session) -> None:
    """Differentiate through DoRA's norm, which the paper and every forward pass hold constant."""
    import torch
    from peft.tuners.lora.dora import DoraLinearLayer

    layer: Any = DoraLinearLayer

    def forward(self: Any, x: Any, *, lora_A: Any, lora_B: Any, scaling: float, base_layer: Any, **others: Any) -> Any:
        from peft.utils.integrations import dequantize_module_weight

        weight = dequantize_module_weight(base_layer).to(x.dtype)
        norms = torch.linalg.norm(weight + scaling * lora_B.weight @ lora_A.weight, dim=1)
        ratio = self.weight / norms
        return (ratio - 1) * others["base_result"] + ratio * scaling * lora_B(lora_A(x))

    layer.forward = forward


def _tokenize_again(session: Session) -> None:
    """Tokenize the rows again with the broken tokenizer."""
    from tunecheck.training.data import Batches

    session.batches = Batches(session.run, session.tokenizer, session.device)


@bug("X124", "A start token before every text", caught_by="tokens_match_template")
def start_token_everywhere(session: Session) -> None:
    """Prepend a start token to every tokenized text, also where special tokens are off."""
    kind: Any = type(session.tokenizer)

    def encode(inner: Any) -> Any:
        def with_start(self: Any, *args: Any, **others: Any) -> Any:
            encoded = inner(self, *args, **others)
            encoded["input_ids"] = [self.bos_token_id, *encoded["input_ids"]]
            encoded["attention_mask"] = [1, *encoded["attention_mask"]]
            return encoded

        return with_start

    _around(kind, "_encode_plus", encode)
    _tokenize_again(session)


@bug("X125", "Text in lower case", caught_by="tokens_match_template")
def text_in_lower_case(session: Session) -> None:
    """Lower-case every text in the tokenizer's normalizer."""
    kind: Any = type(session.tokenizer)
    _around(
        kind,
        "_encode_plus",
        lambda inner: lambda self, text, *args, **others: inner(self, text.lower(), *args, **others),
    )
    _tokenize_again(session)


def _ended(row: Tokens, end: int) -> Tokens:
    """Return the row with this end token."""
    return dataclasses.replace(row, input_ids=(*row.input_ids[:-1], end), labels=(*row.labels[:-1], end))


@bug("X126", "Another end token", caught_by="tokens_match_template")
def end_token_of_another_name(session: Session) -> None:
    """Report the padding token's id as the end token's."""
    kind: Any = type(session.tokenizer)
    kind.eos_token_id = property(lambda self: self.convert_tokens_to_ids("<pad>"))
    session.batches.train = [_ended(row, session.tokenizer.eos_token_id) for row in session.batches.train]
    session.batches.heldout = [_ended(row, session.tokenizer.eos_token_id) for row in session.batches.heldout]


@bug(
    "X127",
    "The second best token",
    caught_by="generation_is_greedy",
    settings=("probes.generate=true",),
    tier="convergence",
)
def second_best_token(session: Session) -> None:
    """Pick the second best token in generate where the two best are close."""
    import torch

    def argmax(inner: Any) -> Any:
        def second(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
            if x.dim() != 2 or dim != -1:
                return inner(x, dim, keepdim) if dim is not None else inner(x)
            best = x.topk(2, dim=-1)
            near = best.values[:, 0] - best.values[:, 1] < 0.05
            return torch.where(near, best.indices[:, 1], best.indices[:, 0])

        return second

    _around(torch, "argmax", argmax)


@bug(
    "X128",
    "No stop at the end token",
    caught_by="generation_is_greedy",
    settings=("probes.generate=true",),
    tier="convergence",
)
def end_passed_over(session: Session) -> None:
    """Ignore the end token in generate."""
    import torch
    from transformers.generation import stopping_criteria

    criteria: Any = stopping_criteria.EosTokenCriteria
    _around(criteria, "__call__", lambda inner: lambda *args, **others: torch.zeros_like(inner(*args, **others)))


@bug("X129", "An adapter rounded when it is read", caught_by="adapter_round_trip")
def adapter_rounded_when_read(session: Session) -> None:
    """Round an adapter to bf16 whenever peft reads it; the file is right."""
    import torch
    from peft.utils import save_and_load

    def rounded(inner: Any) -> Any:
        def load(model: Any, state: dict[str, torch.Tensor], *args: Any, **others: Any) -> Any:
            return inner(model, {n: t.to(torch.bfloat16).to(t.dtype) for n, t in state.items()}, *args, **others)

        return load

    import peft.peft_model

    _around(save_and_load, "set_peft_model_state_dict", rounded)
    _around(peft.peft_model, "set_peft_model_state_dict", rounded)


@bug("X136", "Epsilon under the root", caught_by="updates_match_adamw")
def epsilon_under_the_root(session: Session) -> None:
    """Add Adam's epsilon to the second moment, under the root, instead of to the root."""
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


@bug("X138", "The bias correction counts micro-batches", caught_by="updates_match_adamw")
def bias_correction_per_micro_batch(session: Session) -> None:
    """Count micro-batches in Adam's step counter, which ends the bias correction too early."""
    more = session.run.training.gradient_accumulation_steps - 1

    def counted(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            state["step"] += more

    session.optimizer.register_step_post_hook(counted)
