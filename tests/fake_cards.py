"""A pytest plugin for sessions on fake cards: NVML answers from $FAKE_CARDS, "GPU" attempts are trained on the CPU.

$FAKE_CARDS_TOKEN is part of their UUIDs. Real workers, real leases, real children; each attempt's card and times go to
$FAKE_CARDS_LOG. In the first step of the run named in $FAKE_CARDS_KILL its worker is killed, as by the kernel.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import fake_nvml

from tunecheck import runner
from tunecheck.core.units import GIB


def pytest_addoption():
    """Called in the controller and in every worker before anything asks for the hardware."""
    given = enumerate(json.loads(os.environ["FAKE_CARDS"]))
    cards = [
        fake_nvml.card(
            nvmlDeviceGetUUID=f"GPU-{os.environ['FAKE_CARDS_TOKEN']}-{number}",
            nvmlDeviceGetMemoryInfo=SimpleNamespace(total=gib * GIB, free=gib * GIB, used=0),
        )
        for number, gib in given
    ]
    sys.modules["pynvml"] = fake_nvml.fake_pynvml(*cards)
    runner.run_child = on_the_cpu(runner.run_child)


def on_the_cpu(real):
    """run_child for a machine whose cards are fake."""

    def run_child(request, *, progress, **options):
        name = request.run.name
        note(run=name, card=",".join(request.cards), moment="start", cap=request.vram_cap_bytes)

        def killed(step):
            os.kill(os.getpid(), signal.SIGKILL)

        deadly = name == os.environ.get("FAKE_CARDS_KILL")
        plain = dataclasses.replace(request, device="cpu", cards=None)
        end = real(plain, progress=killed if deadly else progress, **{**options, "gpu": False})
        note(run=name, card=",".join(request.cards), moment="end")
        return end

    return run_child


def note(**facts):
    """A line that is written at once."""
    with open(os.environ["FAKE_CARDS_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.monotonic(), "worker": os.getpid(), **facts}) + "\n")
