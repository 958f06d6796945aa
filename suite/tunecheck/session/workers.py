"""Several pytest workers in one session: how many there are, which of them executes which run."""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from tunecheck.core.paths import shipped_folder
from tunecheck.hardware import probe

_ITEM = re.compile(r"test_(?P<tier>[a-z]+)\.py::[^\[]*\[(?P<run>.*)-[^-]*\]$")


def worker_count() -> int:
    """Return the number of GPUs that this process may compute on; 1 without any."""
    return max(1, len(probe().usable_gpus))


def asks_for_tiers(arguments: Iterable[str]) -> bool:
    """Return whether any of these paths (or node ids) is the folder of the tiers, lies in it or contains it."""
    tiers = shipped_folder() / "tiers"
    paths = [Path(argument.partition("::")[0]).resolve() for argument in arguments]
    return any(path.is_relative_to(tiers) or tiers.is_relative_to(path) for path in paths)


def run_of(node_id: str) -> str:
    """Return the run of a check's node id, such as "quick/smollm2-135m-qlora"; any other node id unchanged."""
    match = _ITEM.search(node_id)
    return f"{match['tier']}/{match['run']}" if match else node_id


def one_worker_a_run(config: Any, log: Any = None) -> Any:
    """Return a scheduler of xdist that gives every run to one worker; what a dead one had begun another will refuse."""
    from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

    config.option.loadscopereorder = False  # runs are trained in the order of their tiers
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = run_of
    return scheduling


def end_workers() -> None:
    """Terminate the workers, the only children, as by Ctrl-C; xdist would let them go on for 5 s."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
