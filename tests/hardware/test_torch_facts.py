"""torch's own view: the child that is asked, and the parent that survives whatever happens to it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tunecheck.core import helper
from tunecheck.core.units import GIB
from tunecheck.hardware import torch_facts
from tunecheck.hardware.torch_facts import torch_view


def child(code: str) -> list[str]:
    """A stand-in for the child process."""
    return [sys.executable, "-S", "-c", code]


def view_of(command: list[str], seconds: float = 60) -> dict[str, Any] | str:
    """What the parent makes of this child."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(helper, "command_for", lambda *words: command)
        patch.setattr(torch_facts, "TIMEOUT_SECONDS", seconds)
        return torch_view()


def test_child_that_answers_among_noise() -> None:
    """Libraries may print before and after the one line that counts."""
    code = """print('[1]'); print('{"torch": "2"}'); print('bye')"""
    assert view_of(child(code)) == {"torch": "2"}


def runs(pid: int) -> bool:
    """Whether this process still runs: a dead one may wait as a zombie for its new parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_child_that_hangs(tmp_path: Path) -> None:
    """It is killed, with everything that it started."""
    note = tmp_path / "pid"
    code = f"""
import pathlib, subprocess, time
pathlib.Path({str(note)!r}).write_text(str(subprocess.Popen(["sleep", "60"]).pid))
time.sleep(60)
"""
    assert view_of(child(code), 5) == ("torch did not answer within 5 s and was killed")
    deadline = time.monotonic() + 10  # a signal is on its way for a while where others compute
    while runs(int(note.read_text())):
        assert time.monotonic() < deadline, "what the child started still runs"
        time.sleep(0.01)


def test_child_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process stuck in the driver survives the kill; the parent goes on."""
    monkeypatch.setattr(helper, "KILL_SECONDS", 0.01)
    killed: list[int] = []
    monkeypatch.setattr(helper.os, "killpg", lambda group, number: killed.append(group))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a child that lives on is the point here
        answer = view_of(child("import time; time.sleep(3)"), 0.1)
        assert isinstance(answer, str)
        assert answer.endswith("cannot be killed: it waits in the driver until the machine is rebooted")
        monkeypatch.undo()
        os.killpg(killed[0], 9)
        os.waitpid(killed[0], 0)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "import os, signal, sys; sys.stderr.write('deep trouble\\n'); sys.stderr.flush(); os.kill(os.getpid(), 11)",
            "the process for torch was killed by SIGSEGV: deep trouble",
        ),
        ("import os; os.kill(os.getpid(), 40)", "the process for torch was killed by signal 40"),
        ("raise SystemExit(3)", "the process for torch ended with status 3 and without an answer"),
        ("print('nothing')", "the process for torch ended with status 0 and without an answer"),
    ],
)
def test_child_that_dies(code: str, sentence: str) -> None:
    """A signal, an exit status and silence are told apart, with the last words."""
    assert view_of(child(code)) == sentence


def test_child_that_cannot_start() -> None:
    """An interpreter that is gone is a sentence too."""
    answer = view_of(["/no/such/python"])
    assert isinstance(answer, str)
    assert answer.startswith("the process for torch could not be started: ")


def test_interrupt_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the parent kills the child, which has a session of its own."""
    killed: list[Any] = []

    def interrupted(self: Any, timeout: float | None = None) -> int:
        if not killed:
            killed.append(self)
            raise KeyboardInterrupt
        return original(self, timeout)

    original = helper.subprocess.Popen.wait
    monkeypatch.setattr(helper.subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view_of(child("import time; time.sleep(60)"))
    assert killed[0].returncode == -9


def test_real_child() -> None:
    """The real thing on this machine: torch's version and a bitsandbytes that loads."""
    facts = torch_view()
    assert isinstance(facts, dict), facts
    assert facts["torch"].partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert facts["error"] is None
    assert facts["bitsandbytes"]["native_library"].startswith("libbitsandbytes_")


def fake_torch(*properties: Any, cuda: str | None = "13.0", init_error: Exception | None = None) -> Any:
    """torch as far as the child looks at it."""

    def init() -> None:
        if init_error is not None:
            raise init_error

    module: Any = ModuleType("torch")
    module.__version__ = "2.11.0"
    module.version = SimpleNamespace(cuda=cuda)
    module.cuda = SimpleNamespace(
        is_available=lambda: bool(properties),
        device_count=lambda: len(properties),
        get_device_properties=lambda index: properties[index],
        init=init,
    )
    return module


def fake_bitsandbytes(folder: Path, loaded: str | None, *shipped: str, problem: str | None = None) -> tuple[Any, Any]:
    """bitsandbytes and its loader, with these binaries in its folder."""
    for name in shipped:
        (folder / name).touch()
    package, loader = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.cextension")
    package.__file__ = str(folder / "__init__.py")
    package.__version__ = "0.50.2"  # type: ignore[attr-defined]
    library = SimpleNamespace(error_msg=problem)
    if loaded is not None:
        library = SimpleNamespace(_lib=SimpleNamespace(_name=str(folder / loaded)))
    loader.lib = library  # type: ignore[attr-defined]
    return package, loader


def ask_child(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], torch: Any, bnb: Any) -> Any:
    """What the child prints when it imports these."""
    package, loader = bnb
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.cextension", loader)
    with warnings.catch_warnings():
        return json.loads(json.dumps(torch_facts.gathered()))


H200 = SimpleNamespace(name="NVIDIA H200", uuid="1111-22", total_memory=141 * GIB, major=9, minor=0)


def test_child_tells_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """UUIDs in NVML's form, None where this torch has none, and the compute capability."""
    old = SimpleNamespace(name="Tesla T4", total_memory=15 * GIB, major=7, minor=5)
    bnb = fake_bitsandbytes(tmp_path, "libbitsandbytes_cuda130.so")
    facts = ask_child(monkeypatch, capsys, fake_torch(H200, old), bnb)
    assert facts["devices"] == [
        {"name": "NVIDIA H200", "uuid": "GPU-1111-22", "compute_capability": "9.0"},
        {"name": "Tesla T4", "uuid": None, "compute_capability": "7.5"},
    ]
    assert facts["bitsandbytes"] == {
        "version": "0.50.2",
        "native_library": "libbitsandbytes_cuda130.so",
        "cuda_binary_fits": True,
        "error": None,
    }


def test_child_tells_why_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The first line of torch's own error; a build without CUDA has none to tell."""
    bnb = fake_bitsandbytes(tmp_path, "libbitsandbytes_cpu.so")
    broken = fake_torch(init_error=RuntimeError("The NVIDIA driver is too old\nPlease update"))
    facts = ask_child(monkeypatch, capsys, broken, bnb)
    assert facts["devices"] == []
    assert facts["cuda_error"] == "RuntimeError: The NVIDIA driver is too old"
    assert ask_child(monkeypatch, capsys, fake_torch(cuda=None), bnb)["cuda_error"] is None


@pytest.mark.parametrize(
    ("cuda", "devices", "loaded", "shipped", "fits"),
    [
        ("13.0", (H200,), "libbitsandbytes_cuda132.so", (), True),
        ("13.0", (H200,), "libbitsandbytes_cuda128.so", ("libbitsandbytes_cuda130.so",), False),
        ("13.0", (H200,), None, (), False),
        ("13.0", (), "libbitsandbytes_cpu.so", ("libbitsandbytes_cuda128.so", "libbitsandbytes_cuda130.so"), True),
        ("13.0", (), "libbitsandbytes_cpu.so", ("libbitsandbytes_cuda128.so",), False),
        (None, (), "libbitsandbytes_cpu.so", ("libbitsandbytes_cuda130.so",), None),
    ],
)
def test_child_compares_cuda_versions(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    cuda: str | None,
    devices: tuple[Any, ...],
    loaded: str | None,
    shipped: tuple[str, ...],
    fits: bool | None,
) -> None:
    """On a GPU the loaded binary counts, without one those in the package; the major version has to match."""
    bnb = fake_bitsandbytes(tmp_path, loaded, *shipped, problem="cannot open")
    facts = ask_child(monkeypatch, capsys, fake_torch(*devices, cuda=cuda), bnb)["bitsandbytes"]
    assert (facts["native_library"], facts["cuda_binary_fits"]) == (loaded, fits)
    assert facts["error"] == ("cannot open" if loaded is None else None)


def test_child_without_the_libraries(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing package is a text field, never a traceback."""
    facts = ask_child(monkeypatch, capsys, fake_torch(cuda=None), (None, None))["bitsandbytes"]
    assert facts["version"] is None
    assert facts["error"].startswith("ModuleNotFoundError: import of bitsandbytes halted")
    facts = ask_child(monkeypatch, capsys, None, (None, None))
    assert (facts["torch"], facts["error"].partition(":")[0]) == (None, "ModuleNotFoundError")
