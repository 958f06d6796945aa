"""Arithmetic in another precision than configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug("B103", "Products in TF32", caught_by="matmul_precision", source="pytorch/pytorch#67384, #53635, #61890")
def low_precision_products(session: Session) -> None:
    """Drop the 13 low mantissa bits of the inputs of matrix products, as TF32 does."""
    import torch

    product = torch.Tensor.__matmul__

    def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def cut(x: torch.Tensor) -> torch.Tensor:
            return (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x

        return product(cut(a.contiguous()), cut(b.contiguous()))

    tensor: Any = torch.Tensor
    tensor.__matmul__ = truncated


@bug(
    "X105",
    "No autocast though bf16 is asked for",
    caught_by="dtypes_as_configured",
    settings=("strategy=full", "lora=null", "quantization=null", "training.precision=bf16"),
)
def autocast_lost(session: Session) -> None:
    """Train a full-precision base in fp32 throughout although 16 bit is configured."""
    from tunecheck.training import native
    from tunecheck.training.restore import having

    loop: Any = native
    forward = loop.forward

    def uncast(session: Session, *given: Any) -> Any:
        with having([(session, "autocast", True)]):  # as where the model's own forward casts, and it does not
            return forward(session, *given)

    loop.forward = uncast


@bug(
    "X106",
    "Adapters multiply in another dtype than asked",
    caught_by="dtypes_as_configured",
    settings=("training.precision=bf16",),
)
def adapters_multiply_in_bf16(session: Session) -> None:
    """Multiply the adapters in the dtype of the hidden states although fp32 is configured."""
    from tunecheck.strategies.mixed_precision import multiply_in_input_dtype

    multiply_in_input_dtype(session.model)


@bug(
    "V62",
    "fp16 is trained without loss scaling",
    caught_by=("dtypes_as_configured", "accumulation_oracle"),
    source="engichang1467/Open-Rig3R#35",
    cohort="blind-second",
    settings=("strategy=lora", "quantization=null", "training.precision=fp16"),
    must_say="In fp16 the loss is not scaled, or the gradients have lost their small values.",
)
def fp16_without_scaling(session: Session) -> None:
    """Train in fp16 without loss scaling: small gradients underflow."""
    import torch

    session.scaler = torch.amp.GradScaler(session.device.type, enabled=False)
