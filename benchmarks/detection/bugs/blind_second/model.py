"""The second blind set's faults of forward pass, quantisation and generation. Imports torch; child process only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks.detection.bugs.parts import change_attention, decoder
from suite.probes.reference.four_bit import is_packed

if TYPE_CHECKING:
    from suite.training.session import Session


def rotary_table_in_bf16(session: Session) -> None:
    """Sines and cosines of the rotary angles come from a table in bf16."""
    rotary = decoder(session).rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: tuple(part.bfloat16().to(part.dtype) for part in forward(x, position_ids))


def norms_in_sixteen_bit(session: Session) -> None:
    """Norms square, average and divide in the dtype of the hidden states, not in fp32."""
    for module in session.model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _in_own_dtype(module)


def _in_own_dtype(norm: Any) -> Any:
    """What this norm computes, without a cast."""

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        product: torch.Tensor = norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon))
        return product

    return forward


def causal_from_the_top_left(session: Session) -> None:
    """With a cache the causal mask is laid from the first key on: a new token sees the prompt's first token only."""

    def aligned(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        asked, known = query.shape[2], key.shape[2]
        if asked < known:
            mask = torch.ones(asked, known, dtype=torch.bool, device=query.device).tril()[None, None]
        return attend(module, query, key, value, mask, **options)

    change_attention(aligned)


def prompts_end_with_the_end_token(session: Session) -> None:
    """Whoever generates tokenises as for training rows: the end token stands after the prompt."""
    generate, end = session.model.generate, session.tokenizer.eos_token_id

    def ended(inputs: Any = None, **options: Any) -> Any:
        ids = options.pop("input_ids", inputs)
        longer = F.pad(ids, (0, 1), value=end)
        out = generate(**{**options, "input_ids": longer, "attention_mask": torch.ones_like(longer)})
        whole = getattr(out, "sequences", out)
        said = torch.cat([ids, whole[:, longer.shape[1] :]], dim=1)
        if whole is out:
            return said
        out.sequences = said
        return out

    session.model.generate = ended


def quantised_again(session: Session) -> None:
    """4-bit weights were unpacked to bf16 for a move between devices and quantised a second time."""
    functional: Any = importlib.import_module("bitsandbytes.functional")
    for parameter in session.model.parameters():
        if is_packed(parameter):
            state = parameter.quant_state
            whole = functional.dequantize_4bit(parameter.data, state).bfloat16()
            packed, again = functional.quantize_4bit(
                whole.to(state.dtype),
                blocksize=state.blocksize,
                compress_statistics=state.nested,
                quant_type=state.quant_type,
            )
            parameter.data.copy_(packed.view_as(parameter.data))
            parameter.quant_state = again


def unpacked_weights_saved(session: Session) -> None:
    """Each 4-bit product goes through a plain one, which saves the unpacked weight until the backward pass is done."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")
    for module in session.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.forward = _plain_product(module, bitsandbytes.functional)


def _plain_product(module: Any, functional: Any) -> Any:
    """The linear's product by autograd alone."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        return F.linear(x, weight.to(x.dtype))

    return forward
