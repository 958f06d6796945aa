"""What a GPU's faults are done with: the machine's own card, or a driver that is not there.

The latter's NVML is compiled for a session, and changes its answers while that asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from tunecheck.hardware.torch_facts import torch_view

MIB, GIB = 2**20, 2**30
SOURCE = Path(__file__).with_name("libnvidia_ml.c")
UUID = "GPU-00000000-0000-0000-0000-000000000000"
TOTAL_BYTES, USED_BYTES = 24 * GIB, 600 * MIB
HEALTHY = (
    "nvmlInitWithFlags 0",
    "nvmlShutdown 0",
    "nvmlSystemGetDriverVersion 580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2 13000",
    "nvmlDeviceGetCount_v2 1",
    "nvmlDeviceGetHandleBy* 0",
    f"nvmlDeviceGetUUID {UUID}",
    "nvmlDeviceGetName Made-up Card",
    "nvmlDeviceGetCudaComputeCapability 8 0",
    "nvmlDeviceGetMigMode 0",
    "nvmlDeviceGetComputeMode 0",
    f"nvmlDeviceGetMemoryInfo {TOTAL_BYTES} {USED_BYTES}",
    "nvmlDeviceGetComputeRunningProcesses_v3 0",
    "nvmlDeviceGetTotalEccErrors 0 0",
    "nvmlDeviceGetRemappedRows 0 0 0",
    "nvmlDeviceGetRetiredPagesPendingStatus ! 3",
    "nvmlDeviceGetFieldValues 0",
    "nvmlDeviceGetTemperature 61",
    "nvmlDeviceGetClockInfo 1980",
    "nvmlDeviceGetCurrentClocksEventReasons 0",
    "nvmlDeviceGetSupportedEventTypes 0xfc08",
    "nvmlDeviceRegisterEvents 0",
    "nvmlEventSet* 0",
)
"""Answers of a healthy card, a line for each function: see libnvidia_ml.c."""


def lacking() -> str:
    """Return why no library can be compiled here; "" when one can."""
    return "" if shutil.which("cc") else "the fake NVML needs a C compiler (cc)"


HOLD = """import sys, time, torch
held = torch.empty(max(0, torch.cuda.mem_get_info()[0] - int(sys.argv[1])), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""
MARGIN_BYTES = 64 * MIB
"""Of a real card: its last bytes can be allocated by nobody."""


class Card:
    """The card of this machine, of which other processes can take memory."""

    def __init__(self) -> None:
        self.neighbours: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process find it."""
        return {}

    def start_neighbour(self, leaves: int, seconds: float = 3600) -> None:
        """Start a process that holds all of the free memory but so many bytes while it lives."""
        command = [sys.executable, "-c", HOLD, str(max(leaves, MARGIN_BYTES)), str(seconds)]
        neighbour = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.neighbours.append(neighbour)
        assert neighbour.stdout is not None
        neighbour.stdout.readline()

    def end_neighbours(self) -> None:
        """Kill the processes that were started."""
        for neighbour in self.neighbours:
            neighbour.kill()
            neighbour.wait()


@cache
def there_is_a_card() -> bool:
    """Return whether torch sees a GPU on this machine."""
    facts = torch_view()
    return isinstance(facts, dict) and bool(facts.get("devices"))


class Driver(Card):
    """A fake libnvidia-ml.so.1 in a folder, and what it answers."""

    def __init__(self, folder: Path) -> None:
        """Compile it there, with the answers of a healthy card."""
        super().__init__()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
        self.say()

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process find it: the loader reads it when the process starts."""
        inherited = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(self.folder), inherited))),
            "FAKE_NVML": str(self.folder),
        }

    def say(self, *lines: str) -> None:
        """Answer with these lines from now on, and else as a healthy card."""
        new = self.folder / "answers.new"
        new.write_text("".join(f"{line}\n" for line in (*lines, *HEALTHY)))
        new.replace(self.folder / "answers")

    def happen(self, kind: int, data: int = 0) -> None:
        """Let this event happen to the GPU: 8 is an Xid, and `data` its number."""
        with (self.folder / "events").open("a") as file:
            file.write(f"{kind} {data}\n")

    def start_neighbour(self, leaves: int, seconds: float = 3600) -> None:
        """Start a process that is listed with all of the card's memory but so many bytes while it lives."""
        neighbour = subprocess.Popen(["sleep", str(seconds)])
        self.neighbours.append(neighbour)
        threading.Thread(target=neighbour.wait, daemon=True).start()  # a zombie would count as living
        self.hold(neighbour.pid, TOTAL_BYTES - USED_BYTES - leaves)

    def hold(self, process_id: int, held_bytes: int) -> None:
        """List this process with so much of the GPU's memory."""
        path = self.folder / "processes"
        others = path.read_text().splitlines() if path.exists() else []
        lines = [line for line in others if line.split()[0] != str(process_id)]
        path.write_text("".join(f"{line}\n" for line in (*lines, f"{process_id} {held_bytes} python3")))

    def order(self, words: str) -> None:
        """Have the training on the fake card do this, see card/sitecustomize.py."""
        (self.folder / "training").write_text(words)
