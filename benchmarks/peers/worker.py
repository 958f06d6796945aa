"""Give scripts to one peer, in the environment that has it: `python -m benchmarks.peers.worker ADAPTER`.

Reads pairs of kind and name as JSON from standard input and writes a JSON line for each to standard output. Each script
runs in a fork of this process, so that libraries are imported once and no script meets what another left.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks.peers.results import plain
from benchmarks.peers.scenarios import Scenario

LIMIT_SECONDS = 300
"""Wall time of one script, if its adapter has no other, after which it is ended: what it said until then is lost."""
MOST_SAID, LONGEST = 200, 240
"""Messages that are kept of one script, and characters of each."""


def main() -> int:
    """Run every script and return 0."""
    adapter = importlib.import_module(f"benchmarks.peers.adapters.{sys.argv[1]}")
    out = os.dup(1)
    os.dup2(2, 1)  # what peers print is no answer
    for kind, name in json.load(sys.stdin):
        before = _cpu_seconds()
        said, problem = _forked(adapter, Scenario(kind, name))
        row = {"kind": kind, "name": name, "said": said, "problem": problem}
        line = json.dumps({**row, "cpu_seconds": round(_cpu_seconds() - before, 2)})
        os.write(out, line.encode() + b"\n")
    return 0


def _forked(adapter: Any, scenario: Scenario) -> tuple[list[str], str]:
    """Return what the peer says of the script, and why it could not say anything."""
    with tempfile.TemporaryDirectory(prefix="tunecheck-peers-") as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(getattr(adapter, "LIMIT_SECONDS", LIMIT_SECONDS))
                warnings.simplefilter("ignore")
                answer.write_text(json.dumps(distinct(adapter.said(scenario, Path(folder)))))
                status = 0
            except Exception as error:
                answer.with_suffix(".txt").write_text(f"{type(error).__name__}: {error}"[:LONGEST])
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status == 0:
            said: list[str] = json.loads(answer.read_text())
            return said, ""
        told = answer.with_suffix(".txt")
        return [], told.read_text() if told.exists() else f"ended by signal {os.WTERMSIG(status)}"


def distinct(said: list[str]) -> list[str]:
    """Return the messages that differ in more than numbers, in their order, cut to a length."""
    return list({plain(message): message[:LONGEST] for message in reversed(said)}.values())[::-1][:MOST_SAID]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
