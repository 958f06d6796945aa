"""A pytest plugin (`-p shared_fork_server`): a session's training children come from this process's fork server.

A server of its own would import torch and the libraries anew, 5 s of a processor for each session that a test starts.
Not for a test of how a session ends: its children live on where the session is killed, since the server does.
"""

from __future__ import annotations

import os
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from tunecheck.core.fork_server import warm_up

ADDRESS = "SHARED_FORK_SERVER"
OPTIONS = ["-p", "shared_fork_server"]
server: Any = forkserver._forkserver


def address() -> dict[str, str]:
    """Return what a session with this plugin needs in its environment. Start the server at the first call."""
    warm_up(gpu=False)
    return {ADDRESS: server._forkserver_address}


def variables() -> dict[str, str]:
    """Return the environment by which a session has this plugin whatever starts it. Start the server likewise."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(Path(__file__).parent))))
    return {**address(), "PYTEST_ADDOPTS": " ".join(OPTIONS), "PYTHONPATH": path}


def pytest_load_initial_conftests() -> None:
    """Take the other process's server for one that this process has started, before conftest.py starts one."""
    server._forkserver_address = os.environ[ADDRESS]
    server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)  # sent along with each request, and not read
    forkserver.ensure_running = server.ensure_running = resource_tracker.ensure_running
