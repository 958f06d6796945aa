"""Mixed-precision adapters: fp32 weights whose products are taken in the dtype of what they are given."""

from __future__ import annotations

from typing import Any


def multiply_in_input_dtype(model: Any) -> None:
    """Every adapter linear of this peft model multiplies in its input's dtype; its weight stays the same parameter.

    peft casts the input up to the weight's dtype instead, and autograd keeps that fp32 copy for each adapted layer.
    """
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.cast_input_dtype_enabled = False  # peft's own switch: from now on the input comes as it is
            for linears in (layer.lora_A, layer.lora_B):
                for linear in linears.values():
                    linear.forward = _product(linear)


def _product(linear: Any) -> Any:
    from torch.nn.functional import linear as product

    return lambda x: product(x, linear.weight.to(x.dtype))
