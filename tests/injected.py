"""How a training child may fail: functions that are called with the session when it is built.

Each is imported by name in the child, so they live at the top level of a module. Bugs in a training that ends well are
in benchmarks/detection/bugs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from suite.training.data import Batch
    from suite.training.session import Session


def hang(session: Session) -> None:
    """Hang forever."""
    import time

    while True:
        time.sleep(1)


def crash(session: Session) -> None:
    """Kill the process with a signal, as an illegal memory access does."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def out_of_memory(session: Session) -> None:
    """Raise the allocator's out-of-memory error."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def error(session: Session) -> None:
    """Raise an error of the training code."""
    raise ValueError("the shapes do not fit")


def two_warnings(session: Session) -> None:
    """Log bitsandbytes' warning about an optional kernel, as its import does on a CPU with AVX512-BF16, and another."""
    import logging

    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s. Please", "no kernels")
    logger.warning("Failed to load %s", "another kernel")


def disk_full(session: Session) -> None:
    """Raise the error of a full disk."""
    import errno

    raise OSError(errno.ENOSPC, "No space left on device", "/full/adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class OutOfMemoryAt:
    """Raises an out-of-memory error in the middle of this step, when gradients of its first rows exist already."""

    step: int

    def __call__(self, session: Session) -> None:
        """Let the loss of the step's last micro-batch raise what torch raises."""
        loss, window, calls = session.loss, session.batches.window, [-1, 0]

        def counted(step: int) -> list[Batch]:
            batches = window(step)
            calls[:] = [step, len(batches)]
            return batches

        def failing(*arguments: Any) -> torch.Tensor:
            if torch.is_grad_enabled():  # not in evaluations before and between the steps
                calls[1] -= 1
                if calls[0] == self.step and calls[1] <= 0:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return loss(*arguments)

        session.batches.window = counted  # type: ignore[method-assign]
        session.loss = failing


def half_trained(session: Session) -> None:
    """Change a weight, as if an earlier attempt had trained it."""
    trained = next(parameter for parameter in session.model.parameters() if parameter.requires_grad)
    with torch.no_grad():
        trained.view(-1)[0] += 1
