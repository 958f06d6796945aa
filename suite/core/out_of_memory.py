"""Recognise out-of-memory errors, and whose memory ran out: the GPU's, which a fallback may help, or the host's."""

from __future__ import annotations

from typing import Literal

GPU_WORDS = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "'out of memory'",  # NCCL: Cuda failure 2 'out of memory'
)
"""Messages of RuntimeErrors from the driver, or a library that allocates past torch's allocator, on a full GPU."""
HOST_WORDS = "DefaultCPUAllocator"


def ran_out(error: BaseException) -> Literal["gpu", "host", ""]:
    """Return whose memory ran out; empty for any other error. Does not import torch."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names or ("RuntimeError" in names and any(word in str(error) for word in GPU_WORDS)):
        return "gpu"
    return "host" if isinstance(error, MemoryError) or HOST_WORDS in str(error) else ""
