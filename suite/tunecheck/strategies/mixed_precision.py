"""Mixed-precision adapters: fp32 weights whose products are computed in the dtype of their input."""

from collections.abc import Iterator
from typing import Any


def multiply_in_input_dtype(model: Any) -> None:
    """Make every adapter linear of this peft model multiply in its input's dtype; its weight stays the same parameter.

    peft casts the input up to the weight's dtype instead, and autograd keeps that fp32 copy for each adapted layer.
    DoRA's norms, which peft would then compute in the input's dtype too, are computed in fp32.
    """
    for layer in _adapted(model):
        layer.cast_input_dtype_enabled = False  # peft's own switch: the input is no longer cast
        for linears in (layer.lora_A, layer.lora_B):
            for linear in linears.values():
                linear.forward = _product(linear)
        for magnitude in layer.lora_magnitude_vector.values():
            magnitude.get_weight_norm = _norms


def measure_magnitudes(model: Any) -> tuple[str, ...]:
    """Set DoRA's magnitudes to the base's fp32 norms, from which peft 0.21's differ in 16 bit; return a note if so."""
    import torch
    from peft.utils.integrations import dequantize_module_weight

    changed = 0
    for layer in _adapted(model):
        for magnitude in layer.lora_magnitude_vector.values():
            weight = dequantize_module_weight(layer.get_base_layer()).detach()
            norms = _norms(weight, torch.zeros((), device=weight.device), 1.0)
            changed += not torch.equal(magnitude.weight.detach().float(), norms)
            with torch.no_grad():
                magnitude.weight.copy_(norms)
    return (f"peft 0.21: DoRA magnitudes of {changed} layers recomputed in fp32",) if changed else ()


def _adapted(model: Any) -> Iterator[Any]:
    from peft.tuners.lora import LoraLayer

    return (layer for layer in model.modules() if isinstance(layer, LoraLayer))


def _product(linear: Any) -> Any:
    from torch.nn.functional import linear as product

    return lambda x: product(x, linear.weight.to(x.dtype))


def _norms(weight: Any, lora_weight: Any, scaling: float, adapter_name: str | None = None) -> Any:
    """Return the norm of each row of the sum in fp32; replaces peft's DoraLinearLayer.get_weight_norm."""
    import torch

    return torch.linalg.norm(weight.float() + scaling * lora_weight.float(), dim=1)
