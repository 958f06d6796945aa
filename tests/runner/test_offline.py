"""Nothing that a training process imports may reach the hub, however the process is made."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tunecheck.core.fork_server import hub_forbidden
from tunecheck.core.paths import project_folder
from tunecheck.runner import child, process

FAKE_KERNELS = """
import json, os
from huggingface_hub import constants, is_offline_mode

def get_kernel(name, **options):
    with open(os.environ["KERNEL_CALLS"], "a") as file:
        file.write(json.dumps([name, os.environ.get("HF_HUB_OFFLINE"), is_offline_mode()]) + "\\n")
    raise OSError("no kernel here")
"""
"""The package `kernels`, less the download."""
FAKE_PRELOAD = """
import kernels
try:
    kernels.get_kernel("at import")
except OSError:
    pass
"""
"""What bitsandbytes does at import on a CPU with AVX512-BF16, on whatever CPU."""


SCRIPT = """
import multiprocessing, os, sys
from tunecheck.core import fork_server

def train():
    import fake_preload  # a spawned child imports for itself; a forked one has it from its server

if __name__ == "__main__":
    fork_server.PRELOAD, gpu = "fake_preload", sys.argv[1] == "spawn"
    fork_server.warm_up(gpu)
    with fork_server.hub_forbidden():
        child = multiprocessing.get_context(fork_server.start_method(gpu)).Process(target=train)
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert "HF_HUB_OFFLINE" not in os.environ
    fork_server.cool_down()
"""
"""A session of its own: a fork server cannot be taken back."""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_hub_is_forbidden_before_the_first_import(tmp_path, method):
    """huggingface_hub reads its variable once, when it is imported: after the fork would be too late."""
    for name, text in (("kernels", FAKE_KERNELS), ("fake_preload", FAKE_PRELOAD), ("session", SCRIPT)):
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), str(project_folder())])
    environment = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    calls = tmp_path / "calls.jsonl"

    subprocess.run(
        [sys.executable, str(tmp_path / "session.py"), method],
        env={**environment, "PYTHONPATH": path, "KERNEL_CALLS": str(calls)},
        check=True,
        timeout=120,
    )

    assert [json.loads(line) for line in calls.read_text().splitlines()] == [["at import", "1", True]]


def test_a_process_that_has_imported_the_hub_already_forbids_it_for_a_while(monkeypatch):
    """The debugger's process trains after it has downloaded, and downloads again for the next run."""
    constants = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")

    with hub_forbidden():
        assert (os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE) == ("1", True)

    assert (os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE) == ("0", False)


def test_every_way_to_train_forbids_the_hub(monkeypatch, tmp_path):
    """A child's start, the fork server's and the debugger's."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    seen = []
    monkeypatch.setattr(child, "carry_out", lambda request, progress: seen.append(os.environ.get("HF_HUB_OFFLINE")))
    alone = SimpleNamespace(parallel=None, deadline=1)
    here = SimpleNamespace(device="cpu", cards=None, run=alone, written=(tmp_path / "checkpoint", tmp_path / "trace"))
    end = process.run_here(here, lambda step: None)
    assert (end.outcome, seen) == ("finished", ["1"])

    started = []

    class Child:
        pid, exitcode, sentinel = 0, 0, 0

        def start(self):
            started.append(os.environ.get("HF_HUB_OFFLINE"))
            raise KeyboardInterrupt

    fake = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=lambda **options: Child())
    monkeypatch.setattr(process, "warm_up", lambda gpu: None)
    monkeypatch.setattr(process.multiprocessing, "get_context", lambda method: fake)
    request = SimpleNamespace(device="cuda", cards=None, run=alone, trace=tmp_path / "trace.jsonl")
    with pytest.raises(KeyboardInterrupt):
        process.run_child(request, gpu=True, progress=lambda step: None)
    assert started == ["1"]
