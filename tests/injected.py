"""How a training child may end badly: functions that are called with the session when it is built.

Each is imported by name in the child, so they live at the top level of a module. What breaks a training that ends well
is in benchmarks/detection/bugs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from suite.training.data import Batch
    from suite.training.session import Session


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


def two_warnings(session: Session) -> None:
    """Log bitsandbytes' warning about an optional kernel, as its import does on a CPU with AVX512-BF16, and another."""
    import logging

    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s. Please", "no kernels")
    logger.warning("Failed to load %s", "another kernel")


def disk_full(session: Session) -> None:
    """No space is left for a file."""
    import errno

    raise OSError(errno.ENOSPC, "No space left on device", "/full/adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class OutOfMemoryAt:
    """The allocator gives up in the middle of this step, when gradients of its first rows are there already."""

    step: int

    def __call__(self, session: Session) -> None:
        """Have the loss of the step's last micro-batch raise what torch raises."""
        loss, window, calls = session.loss, session.batches.window, [-1, 0]

        def counted(step: int) -> list[Batch]:
            batches = window(step)
            calls[:] = [step, len(batches)]
            return batches

        def failing(*arguments: Any) -> torch.Tensor:
            if torch.is_grad_enabled():  # evaluations before and between the steps are not meant
                calls[1] -= 1
                if calls[0] == self.step and calls[1] <= 0:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return loss(*arguments)

        session.batches.window = counted  # type: ignore[method-assign]
        session.loss = failing


def half_trained(session: Session) -> None:
    """A weight that an earlier attempt has moved."""
    trained = next(parameter for parameter in session.model.parameters() if parameter.requires_grad)
    with torch.no_grad():
        trained.view(-1)[0] += 1


def exit_for_lack_of_memory(session: Session) -> None:
    """End the process as bitsandbytes' native library does when a kernel's allocation fails."""
    import os
    import sys

    print("Error out of memory at line 410 in file /src/csrc/ops.cu", file=sys.stderr, flush=True)
    os._exit(1)


def exit_without_a_word(session: Session) -> None:
    """End the process with the same status and print nothing."""
    import os

    os._exit(1)
