"""What the parent asks of the watched process, through one environment variable. Standard library only."""

import itertools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tunecheck.core.premises import Premise
from tunecheck.core.text import one_line

VARIABLE = "TUNECHECK_WATCH"
HEARD = ".heard"
"""File of a session's folder, made by every Python process that could be listened to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to listen."""

    folder: str
    """Where the traces go."""
    name: str
    """Name of the run: that of the script."""
    steps: int = 10
    stop: bool = False
    expect: dict[str, Any] = field(default_factory=dict)
    """What is expected beside what is declared, see expectations.py."""
    ignore: dict[str, str] = field(default_factory=dict)
    """Check to the user's reason why what it finds is meant."""
    strict: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    """Limits by check, other than the usual ones."""
    twice: bool = False
    """Whether the command is run again, see twice.py; the other fields of this are of its runs alone."""
    purpose: str = "train"
    """repeat or resume in the runs beforehand, which end with their steps."""
    checkpoint: str = ""
    """Folder from which a training is to resume."""
    repeat_steps: int = 0
    """Steps that were run beforehand."""
    resume_from: int | None = None
    """Steps after which one of the runs resumed."""
    not_twice: Mapping[Premise, str] = field(default_factory=dict)
    """Premises about the runs beforehand to why they are open."""
    command: str = ""

    def to_environment(self) -> dict[str, str]:
        """Return the variable that hands these options to the processes of a command."""
        # Linux takes 128 KiB for one variable, and no process starts with more
        told = json.dumps({**asdict(self), "command": one_line(self.command, 8000)})
        return {VARIABLE: told, "TUNECHECK_HEARD": os.path.join(self.folder, HEARD)}


def from_environment() -> Options | None:
    """Return the options that this process was started with; None where it is not watched."""
    held = os.environ.get(VARIABLE)
    try:
        return Options(**json.loads(held)) if held else None
    except (ValueError, TypeError):
        return None


def trace_file(options: Options, number: int, rank: int) -> Path:
    """Return the file of a process's training: its first, its second, ..., apart for each rank."""
    parts = [f"watch-{options.name}", f"rank{rank}" if rank else "", str(number) if number > 1 else ""]
    return Path(options.folder) / f"{'-'.join(filter(None, parts))}.jsonl"


def new_trace_file(options: Options, number: int, rank: int) -> Path:
    """Make and return the file of a training from this number on: processes that know of no rank may train at once."""
    for free in itertools.count(number):
        path = trace_file(options, free, rank)
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        except OSError:
            break  # what writes to it says why it cannot
        return path
    return trace_file(options, number, rank)


def rank_and_processes() -> tuple[int, int]:
    """Return this process's rank and the number of processes: torch.distributed's, else the launcher's."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
