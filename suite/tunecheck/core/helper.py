"""Run functions of the suite in a fresh interpreter, for libraries and drivers that may crash or hang.

`python -m tunecheck.core.helper MODULE:FUNCTION` is the child: it reads its request from standard input as JSON, and
prints what the function returns as one JSON object. What else is printed goes to standard error.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from tunecheck.core.paths import python_path

KILL_SECONDS = 5


class HelperFailed(Exception):
    """The helper gave no answer; the message says why."""


class HelperHung(HelperFailed):
    """The helper did not answer in time."""


def command_for(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs this module of the suite from any folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def helper_environment() -> dict[str, str]:
    """Return this process's environment with the import path of the suite added, and output in UTF-8."""
    places = [*python_path(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **({"PYTHONPATH": os.pathsep.join(places)} if places else {}), "PYTHONIOENCODING": "utf-8"}


def ask(
    function: str, *request: Any, about: str, timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what this function ("MODULE:FUNCTION") makes of the request in a process. No such helper is left running.

    Raises HelperHung when it does not end in time, HelperFailed when it ends without an answer; `about` names what the
    helper works on, for the message. `environment` is added to this process's.
    """
    # Files, since a pipe that a grandchild keeps open would block the reader after the child's death.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(request).encode())
        given.seek(0)
        try:
            child = subprocess.Popen(
                command_for("tunecheck.core.helper", function),
                stdin=given,
                stdout=output,
                stderr=errors,
                env={**helper_environment(), **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise HelperFailed(f"the process for {about} could not be started: {error}") from error
        try:
            child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise HelperHung(f"{about} did not answer within {timeout_seconds:g} s and {kill(child)}") from None
        except BaseException:  # Ctrl-C does not reach the child, which has a session of its own
            kill(child)
            raise
        for file in (output, errors):
            file.seek(0)
        return _answer(child.returncode, about, *(file.read().decode(errors="replace") for file in (output, errors)))


def kill(child: subprocess.Popen[bytes]) -> str:
    """Kill a helper and all its children; return the outcome as the end of a sentence."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return "cannot be killed: it waits in the driver until the machine is rebooted"
    return "was killed"


def die_with_parent() -> None:
    """Have Linux send SIGKILL to this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGSEGV."""
    with contextlib.suppress(ValueError):  # real-time signals have no name
        return signal.Signals(number).name
    return f"signal {number}"


def _answer(status: int, about: str, output: str, errors: str) -> dict[str, Any]:
    for line in reversed(output.splitlines()):  # libraries may print round it
        with contextlib.suppress(ValueError):
            if isinstance(facts := json.loads(line), dict):
                return facts
    last = next((f": {line.strip()[:300]}" for line in reversed(errors.splitlines()) if line.strip()), "")
    if status < 0:
        memory = " (most likely out of memory)" if -status == signal.SIGKILL else ""
        raise HelperFailed(f"the process for {about} was killed by {signal_name(-status)}{memory}{last}")
    raise HelperFailed(f"the process for {about} ended with status {status} and without an answer{last}")


def main(function: str) -> None:
    """Be the child."""
    with contextlib.redirect_stdout(sys.stderr):
        answer = resolve_name(function)(*json.load(sys.stdin))
    print(json.dumps(answer, default=dataclasses.asdict), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
