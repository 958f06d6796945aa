"""NVML asked in a helper process: a driver that hangs then costs seconds, not the session."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

from suite.core.helper import HelperFailed, HelperHung, ask, command_for
from suite.hardware.facts import NvmlState
from suite.hardware.nvml import NvmlView, read_nvml

LIBRARY = "libnvidia-ml.so.1"
TIMEOUT_SECONDS = 20.0
"""A healthy driver answers within a second; one that has to wake sleeping cards may take several."""

_HUNG_REMEDY = "look for Xid in the kernel log and reboot; until then `nvidia-smi` will hang too"
_FAILED_REMEDY = "run `nvidia-smi` and look into the kernel log"


def nvml_view(timeout_seconds: float = TIMEOUT_SECONDS, *, command: Sequence[str] | None = None) -> NvmlView:
    """NVML's view of this machine, within the timeout whatever the driver does. Never raises for what it answers.

    Where there is no NVML library nothing can hang, so no process is started. A probe that hung has the state HUNG,
    one that died the state OTHER. `command` stands in for the helper, which is `nvml_child`.
    """
    if command is None and not library_loads():
        return read_nvml()
    from pydantic import TypeAdapter, ValidationError

    command = command or command_for("suite.hardware.nvml_child")
    try:
        return TypeAdapter(NvmlView).validate_python(ask(command, about="NVML", timeout_seconds=timeout_seconds))
    except HelperHung as error:
        return NvmlView(state=NvmlState.HUNG, problem=str(error), remedy=_HUNG_REMEDY)
    except (HelperFailed, ValidationError) as error:
        return NvmlView(state=NvmlState.OTHER, problem=str(error), remedy=_FAILED_REMEDY)


def library_loads() -> bool:
    """Whether there may be an NVML library: loading it asks the driver nothing. True where it has another name."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
