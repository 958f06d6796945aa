"""How a training child may fail: functions that are called with the session when it is built.

Each is imported by name in the child, so they live at the top level of a module. Bugs in a training that ends well are
in benchmarks/detection/bugs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunecheck.training.data import Batch
    from tunecheck.training.session import Session


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


ATTEMPTS = itertools.count()
"""Numbers of the attempts in this process, each with noise of its own."""


def noisy_attention_gradients(session: Session) -> None:
    """Add one unit in the last place to attention's gradients, with signs of its own in every attempt."""
    generator = torch.Generator().manual_seed(next(ATTEMPTS))

    def noisy(gradient: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(-1, 2, gradient.shape, generator=generator)
        return gradient * (1 + signs * torch.finfo(gradient.dtype).eps)

    def watch(_module: Any, _args: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.register_hook(noisy)

    for name, module in session.model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(watch)


def rank_1_killed(session: Session) -> None:
    """Kill rank 1 in its second window, as the kernel's out-of-memory killer does."""
    import os
    import signal

    in_window(session, 1, lambda: os.kill(os.getpid(), signal.SIGKILL))


def rank_1_stopped(session: Session) -> None:
    """Stop rank 1 before it begins, as a debugger or a frozen container does."""
    import os
    import signal

    if session.ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def in_window(session: Session, rank: int, do: Callable[[], None]) -> None:
    """Do this on one rank when it takes up its second window."""
    window = session.batches.window

    def changed(step: int) -> list[Batch]:
        if step == 1 and session.ranks.rank == rank:
            do()
        return window(step)

    session.batches.window = changed  # type: ignore[method-assign]
