"""Arithmetic in another precision than asked for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from suite.strategies.mixed_precision import multiply_in_input_dtype

if TYPE_CHECKING:
    from suite.training.session import Session


def low_precision_products(session: Session) -> None:
    """Matrix products drop the 13 low bits of their inputs' mantissas, as TF32 does."""
    product = torch.Tensor.__matmul__

    def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def cut(x: torch.Tensor) -> torch.Tensor:
            return (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x

        return product(cut(a.contiguous()), cut(b.contiguous()))

    tensor: Any = torch.Tensor
    tensor.__matmul__ = truncated


def autocast_lost(session: Session) -> None:
    """A base that learns is trained in fp32 throughout, though the run asks for 16 bit."""
    from suite.training import native

    loop: Any = native
    loop.autocast = lambda _session: nullcontext()


def adapters_multiply_in_bf16(session: Session) -> None:
    """The adapters' products are taken in the dtype of the hidden states, though the run asks for fp32."""
    multiply_in_input_dtype(session.model)
