"""Run `tunecheck.assets.build` in a child process, which keeps torch out of this one."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from typing import Any

from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.helper import command_for, helper_environment

BUILD_SECONDS = 3600.0
"""Timeout: LLaMA-7B with random weights takes minutes, SmolLM2 from GGUF about 20 s."""


def build(model: str, request: dict[str, Any]) -> None:
    """Carry out the request in a child process.

    Raises WeightsUnavailable with the child's error in one sentence, OSError (ENOSPC) when the disk was full.
    """
    try:
        done = subprocess.run(
            command_for("tunecheck.assets.build"),
            input=json.dumps(request),
            env={**helper_environment(), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _failed(model, request, f"not finished after {BUILD_SECONDS:g} s") from None
    if done.returncode == 0:
        return
    answer = _answer(done)
    if answer["disk_full"]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise _failed(model, request, answer["error"])


def _failed(model: str, request: dict[str, Any], reason: str) -> WeightsUnavailable:
    return WeightsUnavailable(
        f"{model}: the weights could not be built ({request['task']}): {reason}. "
        "What to do: `tunecheck doctor` shows the libraries, the memory and the disk that it needs."
    )


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the child's last line, or how it died when it could not write one."""
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        hint = " (most likely out of memory)" if name == "SIGKILL" else ""
        return {"error": f"the process was killed by {name}{hint}", "disk_full": False}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"exit status {done.returncode}, {last}", "disk_full": False}
