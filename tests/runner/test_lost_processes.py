"""What became of a child when nobody can say: the fork server died with it, or the system gave no more memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from multiprocessing import forkserver

import pytest

from tunecheck.runner.process import UNKNOWN_STATUS, _served

STARVED = """
import resource
from tunecheck.core.out_of_memory import ran_out
before = ran_out(RuntimeError("could not create a primitive"))
with open("/proc/self/statm") as pages:
    held = int(pages.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held, held))
print([before, ran_out(RuntimeError("could not create a primitive")), ran_out(ValueError("wrong"))])
"""


@pytest.fixture
def server(monkeypatch):
    """A process in the fork server's place."""
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(forkserver._forkserver, "_forkserver_pid", process.pid)
    yield process
    process.kill()
    process.wait()


def test_a_server_that_is_about_to_die_is_waited_for(server):
    """Its pipes are closed before it counts as dead."""
    killer = threading.Timer(0.2, server.kill)
    killer.start()

    assert not _served(UNKNOWN_STATUS)
    killer.join()


def test_a_status_that_the_server_passed_on_is_not_questioned(server):
    """Only the unknown one is worth a wait."""
    since = time.monotonic()

    assert _served(-9)
    assert time.monotonic() - since < 1


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of Linux")
def test_an_error_of_a_process_without_memory_is_the_machines():
    """oneDNN says "could not create a primitive" for want of memory, and for no other reason that it would name."""
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['', 'host', '']"
