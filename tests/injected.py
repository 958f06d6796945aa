"""How a training child may end badly: functions that are called with the session when it is built.

Each is imported by name in the child, so they live at the top level of a module. What breaks a training that ends well
is in suite/faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from suite.trainer import Session


def hang(session: Session) -> None:
    """Never comes back."""
    import time

    while True:
        time.sleep(1)


def crash(session: Session) -> None:
    """Dies by a signal, as on an illegal memory access."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def out_of_memory(session: Session) -> None:
    """The allocator gives up."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def error(session: Session) -> None:
    """Something in the training is wrong."""
    raise ValueError("the shapes do not fit")


def disk_full(session: Session) -> None:
    """No space is left for a file."""
    import errno

    raise OSError(errno.ENOSPC, "No space left on device", "/full/adapter_model.safetensors")
