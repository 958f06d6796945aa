"""Accounting of every storage that torch operations allocate and free. Imports torch; child process only."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tunecheck.training.restore import having

CUDA_ROUNDING_BYTES = 512
"""Granularity of PyTorch's CUDA allocator (kMinBlockSize in CUDACachingAllocator)."""
MIN_LARGE_BYTES, LARGE_ROUNDING_BYTES, UNSPLIT_BYTES = 10 * 2**20, 2 * 2**20, 2**20
"""Of the same allocator (kMinLargeAlloc, kRoundLarge, kSmallSize): a tensor from the first size on gets a segment of
whole seconds, and what is left of it is not split off where it has at most the third."""

ACTIVATIONS = "activations"
"""Kind of everything not assigned another: saved activations, the loss, temporaries."""
ELSEWHERE = "elsewhere"
"""Kind of storages in another memory, which count nothing."""


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes alive now and at the peak, by kind, of what is allocated inside `with` and of tensors added by `hold`."""

    def __init__(self, rounding_bytes: int = CUDA_ROUNDING_BYTES, *, deterministic: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding_bytes, self._deterministic = rounding_bytes, deterministic
        self.live_bytes = self.peak_bytes = self.remainder_bytes = self.peak_remainder_bytes = 0
        self.peak_by_kind: dict[str, int] = {}
        self.peak_operation = ""
        self._by_kind: Counter[str] = Counter()
        self._storages: dict[int, tuple[int, str]] = {}
        self._deaths: dict[int, Any] = {}
        self._elsewhere = False

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Count what is allocated in this block, or in a function that is decorated so, as being in another memory."""
        with having([(self, "_elsewhere", True)]):
            yield

    def hold(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Assign these tensors' storages, views included, to this kind, counting those that were not counted yet."""
        for tensor in tensors:
            self._count(tensor)
            key = tensor.untyped_storage()._cdata
            size, former = self._storages[key]
            self._add(-1, size, former)
            self._storages[key] = held = 0 if kind == ELSEWHERE else size, kind
            self._add(1, *held)

    def start_phase(self) -> None:
        """Reset the peak to what is alive now."""
        self.peak_bytes, self.peak_by_kind, self.peak_operation = self.live_bytes, self.by_kind(), ""
        self.peak_remainder_bytes = self.remainder_bytes

    def by_kind(self) -> dict[str, int]:
        return dict(+self._by_kind)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs := kwargs or {}))
        for leaf in [result] if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        scratch = 0 if self._elsewhere else scratch_bytes(func, args, kwargs, deterministic=self._deterministic)
        if (alive := self.live_bytes + scratch) > self.peak_bytes:
            self.peak_bytes, self.peak_operation, self.peak_remainder_bytes = alive, str(func), self.remainder_bytes
            self.peak_by_kind = dict(self._by_kind + Counter({ACTIVATIONS: alive - self.live_bytes}))
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage._cdata) in self._storages:
            return
        size = 0 if self._elsewhere else -(-storage.nbytes() // self.rounding_bytes) * self.rounding_bytes
        kind = ELSEWHERE if self._elsewhere else ACTIVATIONS
        self._storages[key] = size, kind
        self._add(1, size, kind)
        self._deaths[key] = weakref.ref(storage, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        del self._deaths[key]
        self._add(-1, *self._storages.pop(key))

    def _add(self, sign: int, size: int, kind: str) -> None:
        self._by_kind[kind] += sign * size
        self.live_bytes += sign * size
        self.remainder_bytes += sign * block_remainder(size)


def block_remainder(size: int) -> int:
    """Return the bytes that a large tensor's block holds beyond it: max_memory_allocated counts whole blocks."""
    left = -size % LARGE_ROUNDING_BYTES
    return left if size >= MIN_LARGE_BYTES and left <= UNSPLIT_BYTES else 0


def scratch_bytes(func: Any, args: Any, kwargs: Any, *, deterministic: bool = False) -> int:
    """Return what a CUDA kernel allocates besides its result, where that is large and known from its source.

    bitsandbytes::gemm_4bit(A, B, shape, absmax, ...) dequantises the weight into A's dtype and multiplies, except for
    small products. Doubly quantised scales become fp32 first, twice: without and with their offset (bitsandbytes 0.50,
    backends/cuda/ops.py: _dequant_linear_fallback).

    The backward pass of flash attention sums the queries' gradients in fp32, of rows and widths rounded up to 128 and
    32, and where it is deterministic in a copy for each split (torch 2.13, transformers/cuda/flash_attn/flash_api.cpp:
    dq_accum of mha_bwd). Attention with a mask, or in fp32, takes another kernel.
    """
    if func.name() == "bitsandbytes::gemm_4bit":
        activation, shape, scales = args[0], args[2], kwargs.get("absmax_8bit")
        absmax_bytes = 0 if scales is None else 2 * 4 * scales.numel()
        return int(shape[0] * shape[1] * activation.element_size()) + absmax_bytes
    # what stands for it in the simulation, whose tensors claim the CPU
    flash_backward = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    if func.name() == flash_backward and kwargs.get("attn_mask") is None and args[1].element_size() == 2:
        rows, heads, tokens, width = args[1].shape
        splits = -(-132 // (rows * heads)) if deterministic else 1  # by the multiprocessors of an H100 or H200
        return int(4 * splits * rows * heads * (tokens + -tokens % 128) * (width + -width % 32))
    return 0
