"""NVML read in a helper process: a driver that hangs then costs seconds, not the session."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

from tunecheck.core.helper import HelperFailed, HelperHung, ask, command_for
from tunecheck.hardware.facts import NvmlState
from tunecheck.hardware.nvml import NvmlView, read_nvml

LIBRARY = "libnvidia-ml.so.1"
TIMEOUT_SECONDS = 20.0
"""Timeout: a healthy driver answers within a second; one that has to wake sleeping GPUs may take several."""

_HUNG_REMEDY = "search the kernel log for Xid and reboot; until then `nvidia-smi` will hang too"
_FAILED_REMEDY = "run `nvidia-smi` and read the kernel log"


def nvml_view(timeout_seconds: float = TIMEOUT_SECONDS, *, command: Sequence[str] | None = None) -> NvmlView:
    """Return NVML's view of this machine, within the timeout whatever the driver does. Never raises for its answers.

    Without an NVML library nothing can hang, so no process is started. A helper that hung gives the state HUNG, one
    that died the state OTHER. `command` replaces the helper, which is `nvml_child`.
    """
    if command is None and not library_loads():
        return read_nvml()
    from pydantic import TypeAdapter, ValidationError

    command = command or command_for("tunecheck.hardware.nvml_child")
    try:
        return TypeAdapter(NvmlView).validate_python(ask(command, about="NVML", timeout_seconds=timeout_seconds))
    except HelperHung as error:
        return NvmlView(state=NvmlState.HUNG, problem=str(error), remedy=_HUNG_REMEDY)
    except (HelperFailed, ValidationError) as error:
        return NvmlView(state=NvmlState.OTHER, problem=str(error), remedy=_FAILED_REMEDY)


def library_loads() -> bool:
    """Return whether an NVML library loads, which contacts no driver; True where it has another name."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
