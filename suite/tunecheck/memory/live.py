"""Accounting of every storage that torch operations allocate and free. Imports torch; child process only."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA_ROUNDING_BYTES = 512
"""Granularity of PyTorch's CUDA allocator (kMinBlockSize in CUDACachingAllocator)."""

ACTIVATIONS = "activations"
"""Kind of everything not assigned another: saved activations, the loss, temporaries."""
ELSEWHERE = "elsewhere"
"""Kind of storages in another memory, which count nothing."""


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes alive now and at the peak, by kind: of what is allocated inside `with`, and of tensors added by `hold`.

    Views share a storage, so tensors are counted by storage. Memory that a kernel allocates and frees inside itself is
    counted only where `scratch_bytes` knows of it.
    """

    def __init__(self, rounding_bytes: int = CUDA_ROUNDING_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding_bytes = rounding_bytes
        self.live_bytes = self.peak_bytes = 0
        self.peak_by_kind: dict[str, int] = {}
        self.peak_operation = ""
        self._by_kind: Counter[str] = Counter()
        self._storages: dict[int, tuple[int, str]] = {}
        self._deaths: dict[int, Any] = {}
        self._elsewhere = False

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Count what is allocated in this block as being in another memory."""
        before, self._elsewhere = self._elsewhere, True
        try:
            yield
        finally:
            self._elsewhere = before

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors' storages, views included, as being in another memory from now on."""
        for tensor in tensors:
            self._count(tensor)
            key = tensor.untyped_storage()._cdata
            size, kind = self._storages[key]
            self._by_kind[kind] -= size
            self.live_bytes -= size
            self._storages[key] = 0, ELSEWHERE

    def hold(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Assign these tensors' storages to this kind, counting those that were not counted yet."""
        for tensor in tensors:
            self._count(tensor)
            key = tensor.untyped_storage()._cdata
            size, former = self._storages[key]
            self._by_kind[former] -= size
            self._by_kind[kind] += size
            self._storages[key] = size, kind

    def start_phase(self) -> None:
        """Reset the peak to what is alive now."""
        self.peak_bytes, self.peak_by_kind, self.peak_operation = self.live_bytes, self.by_kind(), ""

    def by_kind(self) -> dict[str, int]:
        """Return the bytes alive now by kind."""
        return dict(+self._by_kind)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in [result] if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        alive = self.live_bytes + (0 if self._elsewhere else scratch_bytes(func, args))
        if alive > self.peak_bytes:
            self.peak_bytes, self.peak_operation = alive, str(func)
            self.peak_by_kind = dict(self._by_kind + Counter({ACTIVATIONS: alive - self.live_bytes}))
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = 0 if self._elsewhere else -(-storage.nbytes() // self.rounding_bytes) * self.rounding_bytes
        kind = ELSEWHERE if self._elsewhere else ACTIVATIONS
        self._storages[key] = size, kind
        self._by_kind[kind] += size
        self.live_bytes += size
        self._deaths[key] = weakref.ref(storage, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        size, kind = self._storages.pop(key)
        del self._deaths[key]
        self._by_kind[kind] -= size
        self.live_bytes -= size


def scratch_bytes(func: Any, args: Any) -> int:
    """Return what a CUDA kernel allocates besides its result, where that is large and known from its source.

    bitsandbytes::gemm_4bit(A, B, shape, absmax, ...) dequantises the weight into A's dtype and multiplies, except for
    small products (bitsandbytes 0.50, backends/cuda/ops.py: _dequant_linear_fallback).
    """
    if func.name() != "bitsandbytes::gemm_4bit":
        return 0
    activation, shape = args[0], args[2]
    return int(shape[0] * shape[1] * activation.element_size())
