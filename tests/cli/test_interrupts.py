"""Ctrl-C, SIGTERM and SIGHUP at any moment, and standard streams that are closed or full: a status, no traceback."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console
from rich.text import Text

from benchmarks.chaos.interrupts import at_imports
from tunecheck.cli.parser import _Unbroken
from tunecheck.core import interrupts
from tunecheck.core.paths import project_folder
from tunecheck.report.layout import NARROW_COLUMNS, PlainTable


def run(*words: str, **streams: int) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a process of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([sys.executable, *words], cwd=project_folder(), text=True, check=False, **streams)


def test_a_signal_at_any_import_is_an_interrupt():
    """From the first import of the command on: before its parser exists, and while it works."""
    sent, problems = at_imports(["list", "--tier", "quick"], every=8)

    assert problems == []
    assert sent >= 30


INTERRUPTED_EXEC = """
import os, signal, sys
from tunecheck.core import interrupts

interrupts.listen()
interrupts.work()
try:
    exec("os.kill(os.getpid(), signal.SIGHUP)\\nfor _ in range(10**7): pass")
except KeyboardInterrupt:
    sys.exit(interrupts.INTERRUPTED)
"""


def test_a_signal_in_the_middle_of_an_exec_leaves_the_commands_own_status(tmp_path):
    """As classes of data are made by one; of `python -m`, whose status CPython would replace."""
    (tmp_path / "interrupted_exec.py").write_text(INTERRUPTED_EXEC)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(project_folder())))}
    command = [sys.executable, "-m", "interrupted_exec"]

    assert subprocess.run(command, env=environment, cwd=tmp_path).returncode == interrupts.INTERRUPTED


def test_a_result_that_cannot_be_printed_is_no_success():
    """Of a command whose result is what it prints; what a session leaves in files has a status of its own."""
    with open("/dev/full", "w") as full:
        done = run("-m", "tunecheck.cli", "--version", stdout=full.fileno())
    assert (done.returncode, done.stderr) == (
        6,
        "tunecheck: standard output cannot be written: No space left on device\n",
    )

    closed = ["-c", f"exec {sys.executable} -m tunecheck.cli --version >&-"]
    done = subprocess.run(["sh", *closed], cwd=project_folder(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (6, "tunecheck: standard output cannot be written: it is closed\n")


def test_writing_to_a_stream_that_nobody_reads_goes_on():
    """The first error is kept, and nothing is raised where something is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = _Unbroken(writer, closed=False)

    assert stream.write(b"abc") == 3
    assert isinstance(stream.lost, BrokenPipeError)
    os.close(writer)


def test_handlers_are_put_back():
    """Where a test, or a notebook, calls a command, Ctrl-C is theirs again afterwards."""
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]

    assert interrupts.listen()
    assert not interrupts.listen()
    interrupts.work()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # what is being closed is closed
    interrupts.stop()

    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before


def test_a_schedulers_notice_ends_neither_a_session_nor_its_children():
    """SIGUSR1 and SIGUSR2 minutes before the end of a job; a child inherits that they are ignored."""
    child = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); print('alive')"
    program = f"""
import signal, subprocess, sys
from tunecheck.core import interrupts
interrupts.listen()
interrupts.work()
signal.raise_signal(signal.SIGUSR1), signal.raise_signal(signal.SIGUSR2)
sys.exit(subprocess.run([sys.executable, "-c", {child!r}]).returncode)
"""
    done = run("-c", program)

    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("width", [20, NARROW_COLUMNS - 1, 100])
def test_a_table_is_a_list_where_its_columns_would_be_letters(width):
    """Every value with its heading; nothing is lost, and nothing is wider than the terminal."""
    table = PlainTable("", "parameters", "percent", "what it trains")
    table.add_row(Text("freeze_lower\nlayers"), "81,413,568", "60.52 %", "")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    lines = console.export_text().splitlines()

    assert max(map(len, lines)) <= width
    if width < NARROW_COLUMNS:
        assert "freeze_lower layers parameters: 81,413,568 percent: 60.52 %" in " ".join(" ".join(lines).split())
    else:
        assert "parameters" in lines[0]
