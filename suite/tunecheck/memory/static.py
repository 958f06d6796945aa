"""GPU memory that a run keeps from its first step to its last: exact bytes, from its configuration alone.

Standard library only. The bytes are those of the tensors; an allocator rounds each of them up.
"""

from math import prod
from typing import TYPE_CHECKING

from tunecheck.core.frozen import Frozen
from tunecheck.models.shapes import is_layer_linear, packed_bytes, tensor_shapes
from tunecheck.strategies import trained_shapes

if TYPE_CHECKING:
    from tunecheck.config.schema import Run

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class StaticBytes(Frozen):
    """Bytes by kind between two steps, gradients included as they are at the end of a backward pass."""

    quantised_weights: int
    """Packed 4-bit weights with both levels of statistics and their tables."""
    other_weights: int
    """Every other weight in its real dtype: fp32 for all where base weights are trained."""
    adapters: int
    gradients: int
    """One per trained tensor, in its dtype."""
    optimizer: int
    """AdamW: two moments per trained tensor in its dtype, and a 4-byte step count."""
    on_host: int = 0
    """All of the above where `training.offload: parameters` keeps it on the CPU; then none of it is on the GPU."""

    @property
    def weights(self) -> int:
        """Return the bytes after loading, before adapters."""
        return self.quantised_weights + self.other_weights

    @property
    def total(self) -> int:
        """Return the bytes of all kinds on the GPU."""
        return self.weights + self.adapters + self.gradients + self.optimizer


def assumed_precision(run: "Run") -> str:
    """Return bf16, fp16 or fp32. auto counts as bf16, which it is from compute capability 8.0 on; fp16 is as large."""
    return "bf16" if run.training.precision == "auto" else run.training.precision


def static_bytes(run: "Run") -> StaticBytes:
    """Return the run's bytes by kind. Raises Unsupported for an unknown architecture or target module."""
    shapes = tensor_shapes(run.model.architecture)
    element_bytes = 4 if run.trains_base else ELEMENT_BYTES[assumed_precision(run)]
    packed = {name for name, shape in shapes.items() if run.quantization and is_layer_linear(name, shape)}
    double_quant = bool(run.quantization and run.quantization.double_quant)
    trained = trained_shapes(run, shapes)
    # Trained tensors are fp32, except adapters in the model's own dtype.
    trained_bytes = sum(map(prod, trained)) * (element_bytes if run.lora and run.lora.adapter_dtype == "model" else 4)
    there = StaticBytes(
        quantised_weights=sum(packed_bytes(prod(shapes[name]), double_quant) for name in packed),
        other_weights=element_bytes * sum(prod(shape) for name, shape in shapes.items() if name not in packed),
        adapters=trained_bytes if run.lora else 0,
        gradients=trained_bytes,
        optimizer=2 * trained_bytes + 4 * len(trained),
    )
    if run.training.offload != "parameters":
        return there
    return StaticBytes(quantised_weights=0, other_weights=0, adapters=0, gradients=0, optimizer=0, on_host=there.total)
