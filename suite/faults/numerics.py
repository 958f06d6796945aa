"""Arithmetic that is less exact than asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from suite.trainer import Session


def low_precision_products(session: Session) -> None:
    """Matrix products drop the 13 low bits of their inputs' mantissas, as TF32 does."""
    product = torch.Tensor.__matmul__

    def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def cut(x: torch.Tensor) -> torch.Tensor:
            return (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x

        return product(cut(a.contiguous()), cut(b.contiguous()))

    tensor: Any = torch.Tensor
    tensor.__matmul__ = truncated
