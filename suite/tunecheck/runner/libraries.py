"""The libraries that train, imported in the process that trains."""

from __future__ import annotations

import traceback

from tunecheck.core.evidence import AttemptCause, AttemptOutcome
from tunecheck.core.text import one_line
from tunecheck.runner.outcome import Outcome


def imported(*, quiet: bool = False) -> Outcome | None:
    """Import the libraries that train; return how the attempt ends where one of them fails, else None."""
    try:
        # A spawned child and the debugger's process have yet to import everything. Before the session exists: a
        # library that logs an exception at import, as bitsandbytes does, hands its frames, and all that they hold, to
        # log handlers.
        import tunecheck.runner.preload  # noqa: F401

        if quiet:
            _quiet_libraries()
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {one_line(str(error), 300)}"
        return Outcome(
            AttemptOutcome.FAILED,
            f"the libraries that train cannot be imported: {why}. What to do: run `tunecheck doctor`",
            AttemptCause.LIBRARIES,
        )
    return None


def _quiet_libraries() -> None:
    """No progress bars in the log.

    A bar that is made all the same (peft's merge makes one to hide it) shares no lock with other processes: tqdm's own
    is a named semaphore, which `os._exit` would leave to the parent's resource tracker and its warning about a leak.
    """
    from threading import RLock

    from tqdm import tqdm  # type: ignore[import-untyped]
    from transformers.utils import logging

    tqdm.set_lock(RLock())
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
