"""A Ray cluster of several nodes on this machine, asked by `tunecheck fleet`: what scripts/ray-here.sh runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BROKEN = Path(__file__).parent / "broken"
TINY = (
    "quick/smollm2-135m-qlora",
    *("--set", "model=tiny-llama", "--set", "data.max_length=512"),
    *("--set", "training.max_steps=5", "--set", "device=cpu"),
)
NODES = 4


def main() -> None:
    """Start the cluster, ask it healthy and broken, and take it down."""
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="ray-here."))
    os.environ |= {"TUNECHECK_REPORTS": str(folder / "reports"), "NO_COLOR": "1", "COLUMNS": "110"}
    cluster = Cluster()
    try:
        nodes = {f"r{n}": cluster.add_node(node_name=f"r{n}", **_node()) for n in range(1, NODES + 1)}
        _scenes(cluster, nodes)
    finally:
        cluster.shutdown()
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


def _scenes(cluster: Any, nodes: dict[str, Any]) -> None:
    address = cluster.address
    _title("a healthy cluster")
    _fleet("--address", address, "--nodes", "r1,r2,r3")
    _title("r5 computes one product wrongly")
    wrong = {"BROKEN": "bit", "PYTHONPATH": f"{BROKEN}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with _environment(wrong):
        nodes["r5"] = cluster.add_node(node_name="r5", **_node())
    _fleet("--address", address, "--nodes", "r1,r2,r5")
    _title("r4 is killed while its task runs")
    killer = _while_it_trains("r4", lambda: cluster.remove_node(nodes["r4"], allow_graceful=False))
    _fleet("--address", address, "--nodes", "r2,r3,r4", "--at-once", "3", "--wait", "5min")
    killer.join()
    _title("an interrupt (SIGTERM, as of a cancelled job) cancels what runs")
    _fleet("--address", address, "--nodes", "r1,r2", interrupted_on="r1")
    _title("what cannot be done is said")
    _fleet("--address", address, "--nodes", "r77")
    _fleet("--address", "127.0.0.1:1")


def _node() -> dict[str, Any]:
    """Return what a node of a small machine has: one core, no dashboard, little memory for objects."""
    return {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


def _while_it_trains(node: str, act: Callable[[], object]) -> threading.Thread:
    """Act as soon as a fleet that begins now trains on this node, unless it has answered by then."""
    reports = Path(os.environ["TUNECHECK_REPORTS"])
    before = set(reports.glob("fleet-*"))

    def now(pattern: str) -> bool:
        return any(any(fleet.glob(f"nodes/{node}/{pattern}")) for fleet in set(reports.glob("fleet-*")) - before)

    def watch() -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not now("*/*.jsonl"):  # its trace: it has begun to train
            time.sleep(0.2)
        if now("answer.json") or not now("*/*.jsonl"):
            print(f"{node} answered before it could be stopped, or never began", flush=True)
            return
        act()

    watcher = threading.Thread(target=watch)
    watcher.start()
    return watcher


def _fleet(*arguments: str, interrupted_on: str = "") -> None:
    command = ["fleet", "--engine", "ray", "--cpus", "1", "--at-once", "2", *arguments, *TINY]
    print(f"\n$ tunecheck {' '.join(command[: -len(TINY) + 1])}", flush=True)
    asked = subprocess.Popen([sys.executable, "-m", "tunecheck.cli", *command], start_new_session=True)
    watcher = _while_it_trains(interrupted_on, lambda: asked.send_signal(signal.SIGTERM)) if interrupted_on else None
    print(f"exit status {asked.wait()}", flush=True)
    if watcher is not None:
        watcher.join()


class _environment:
    """Variables that a process started in the block inherits."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables, self._kept = variables, dict(os.environ)

    def __enter__(self) -> None:
        os.environ.update(self._variables)

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._kept)


def _title(text: str) -> None:
    print(f"\n# {text}", flush=True)


if __name__ == "__main__":
    main()
