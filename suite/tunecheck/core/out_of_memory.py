"""Recognise out-of-memory errors, and whose memory ran out: the GPU's, which a fallback may help, or the host's."""

import mmap
from typing import Literal

GPU_WORDS = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",  # of the driver's own calls: expandable segments, NVRTC, Triton's launches
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cublasCreate on a full card: its context and workspace do not fit any more
    "CUDNN_STATUS_ALLOC_FAILED",
    "'out of memory'",  # NCCL: Cuda failure 2 'out of memory'
)
"""Messages of RuntimeErrors from the driver, or a library that allocates past torch's allocator, on a full GPU."""
HOST_WORDS = "DefaultCPUAllocator"
ROOM_BYTES = 16 << 20
"""A process that is refused this much has no memory left: oneDNN and MKL say neither that nor how much they wanted."""
EXIT_WORDS = "Error out of memory at line"
"""Printed by bitsandbytes' native library, which then ends the whole process with status 1: no exception is raised."""


def ran_out(error: BaseException) -> Literal["gpu", "host", ""]:
    """Return whose memory ran out; empty for any other error. Does not import torch."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names or ("RuntimeError" in names and any(word in str(error) for word in GPU_WORDS)):
        return "gpu"
    if isinstance(error, MemoryError) or HOST_WORDS in str(error) or ("RuntimeError" in names and not _has_room()):
        return "host"
    return ""


def _has_room() -> bool:
    """Return whether the system would give this process more memory, which a limit of its own forbids (RLIMIT_AS)."""
    try:
        mmap.mmap(-1, ROOM_BYTES).close()
    except OSError:
        return False
    return True


def exit_message(output: str) -> str:
    """Return the line by which a native library reported that the GPU's memory ran out; empty where there is none."""
    return next((line.strip() for line in output.splitlines() if EXIT_WORDS in line), "")
