"""GPU leases: one run at a time on each GPU, across the workers and sessions of this machine.

A lease is a lock on a file in the cache folder, named after the UUID of the GPU or MIG instance; it ends with its
process. Sessions that share no cache folder see no leases of each other's, but their memory on a GPU.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tunecheck.config.schema import Run
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.errors import MachineTooSmall, SuiteError
from tunecheck.core.frozen import Frozen
from tunecheck.core.log import log
from tunecheck.core.paths import cache_folder
from tunecheck.hardware import Gpu, Hardware
from tunecheck.hardware.locks import OwnedLock
from tunecheck.session.admission import obstacle, shortage

WAIT_SECONDS = 4 * 3600.0
"""Longer than the longest run (LLaMA-7B, 1000 steps) may take."""

POLL_SECONDS = 0.5


class Cards(Frozen):
    """This machine's GPUs, of which a run may lease one for each of its processes."""

    look: Callable[[], Hardware]
    wait_seconds: float = WAIT_SECONDS
    settle_seconds: float = 3.0
    """How long a GPU may take to free the memory of a process that was killed."""

    @contextmanager
    def lease(self, run: Run) -> Iterator[tuple[Gpu, ...]]:
        """Lease the GPUs that the run needs while the block is executed, the smallest ones; none for a run on the CPU.

        Raises MachineTooSmall when too few have enough memory, SuiteError after `wait_seconds` and without a cache.
        """
        with ExitStack() as leases:
            yield self._take(run, leases)

    def _take(self, run: Run, leases: ExitStack) -> tuple[Gpu, ...]:
        deadline, reported = time.monotonic() + self.wait_seconds, False
        while (candidates := self._candidates(run)) is not None:
            taken: list[Gpu] = []
            busy: list[Gpu] = []
            for place, card in enumerate(candidates):
                # with less than all of them the run cannot begin: two that each hold a part would wait for each other
                if len(taken) == run.gpus or len(taken) + len(candidates) - place < run.gpus:
                    break
                if (lock := _acquired(card)) is None:
                    busy.append(card)
                elif self._has_room(run, card):
                    leases.callback(lock.release)
                    taken.append(card)
                else:
                    lock.release()
            if len(taken) == run.gpus:
                log.debug(f"{run.name}: on {', '.join(card.uuid for card in taken)}")
                return tuple(taken)
            leases.close()
            if not busy:
                now = self.look()
                reason = obstacle(run, now)
                reason = reason or "found no GPU with enough free memory a moment ago; other processes come and go"
                if any(card.memory_by_process for card in now.visible_gpus):
                    raise SuiteError(f"{reason}. What to do: end that process, or wait for it")
                raise MachineTooSmall(reason)
            if time.monotonic() > deadline:
                remedy = "What to do: wait for that session or end it; the lease ends with its process"
                raise SuiteError(f"{run.name} waited {self.wait_seconds:g} s for {_whose(busy)}. {remedy}")
            if not reported:
                log.info(f"{run.name}: waits for {_whose(busy)}")
                reported = True
            time.sleep(POLL_SECONDS)
        return ()

    def _candidates(self, run: Run) -> list[Gpu] | None:
        """Return the GPUs that could hold the run, smallest first and in one order for all; None for the CPU."""
        lacks = TRAINERS[run.trainer].lacks
        if not run.uses_gpu and not lacks:
            return None
        hardware = self.look()
        fitting = [card for card in hardware.usable_gpus if not shortage(run, card, when_empty=True)]
        if lacks or len(fitting) < run.gpus:
            if reason := obstacle(run, hardware):
                raise MachineTooSmall(reason)
            return None  # there is no GPU, and the run needs none
        return sorted(fitting, key=lambda card: (card.total_bytes or 0, card.name or "", card.uuid))

    def _has_room(self, run: Run, leased: Gpu) -> bool:
        deadline = time.monotonic() + self.settle_seconds
        while True:
            now = next((card for card in self.look().visible_gpus if card.uuid == leased.uuid), None)
            if now is None or shortage(run, now) is None:
                return now is not None
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)


def _lock(card: Gpu) -> OwnedLock:
    return OwnedLock(cache_folder().absolute() / "cards" / f"{card.uuid}.lock")


def _acquired(card: Gpu) -> OwnedLock | None:
    lock = _lock(card)
    try:
        return lock if lock.acquire() else None
    except OSError as error:
        remedy = "What to do: give write access to it, or set TUNECHECK_CACHE to another folder"
        why = f"the GPU leases in {lock.path.parent} cannot be used: {error.strerror or error}"
        raise SuiteError(f"{why}. {remedy}") from error


def _whose(busy: list[Gpu]) -> str:
    return " or ".join(f"{card.name or 'GPU'} {card.uuid} (process {_lock(card).holder} runs on it)" for card in busy)
