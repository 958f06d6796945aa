"""Which of the processes that train together this one is. Standard library only."""

import os
import sys
from typing import Any


def rank_and_processes() -> tuple[int, int]:
    """Return this process's number and how many they are: torch.distributed's, where it has begun, else the launcher's.

    A script that spawns its processes itself tells them their numbers by arguments, and the environment nothing.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
