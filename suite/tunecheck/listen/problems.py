"""Problems of listening, told on standard error and in the verdict. Standard library only, and loaded by file."""

import contextlib
import json
import os
import sys

PROBLEMS = "problems.txt"
"""File of a session's folder, a problem a line."""


def say(problem: str) -> None:
    """Tell it in one line, without secrets."""
    with contextlib.suppress(ImportError):
        from tunecheck.core.redaction import redacted

        problem = redacted(problem)
    print(f"tunecheck: {problem}", file=sys.stderr)
    with contextlib.suppress(OSError, ValueError, KeyError):
        folder = json.loads(os.environ["TUNECHECK_WATCH"])["folder"]
        with open(os.path.join(folder, PROBLEMS), "a", encoding="utf-8") as file:
            file.write(problem + "\n")
