"""The disk is full at each write of a session: `python -m benchmarks.chaos.full_disk [--every N] [--once] [WRITE ...]`.

A session of the tiny model writes its reports, checkpoints and history below one folder, and is run once for each of
its writes: the disk is full from that write on, or for that one alone. Whatever it is, a pass has its verdict, and
what has none could not be judged. The sessions are forks of this process, which has imported what they need.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from benchmarks.chaos.session import RUN
from benchmarks.chaos.sweeps import FULL_DISK, keep, known
from benchmarks.detection.trial import TINY

SETTINGS = (*TINY, "training.max_steps=4", "probes.oracle_steps=[0]", "probes.resume_from=2", "device=cpu")
BAD_WORDS = ("Traceback (most recent call last)", "INTERNALERROR", "Exception ignored")
PAGE_BYTES = 4096
LONGS = struct.Struct("lll")
"""Writes so far, and the first and the last one that is refused."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a session."""

    write: int
    """The number of the first write that was refused; 0 for none."""
    file: str
    """What was to be written, below the session's folder."""
    status: int
    verdict: str
    """Of verdict.json; empty where there is none."""
    problems: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when every session had the right word."""
    parser = argparse.ArgumentParser(prog="benchmarks.chaos.full_disk", description=__doc__)
    parser.add_argument("writes", nargs="*", type=int, metavar="WRITE", help="only these, by their numbers")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth write")
    parser.add_argument("--once", action="store_true", help="the disk has room again after that write")
    options = parser.parse_args(arguments)
    if "FULL_DISK_PAGE" not in os.environ:
        return _preloaded(sys.argv[1:] if arguments is None else arguments)
    import pytest  # noqa: F401

    import tunecheck.report.page
    import tunecheck.runner.preload
    import tunecheck.session  # noqa: F401

    folder = Path(os.environ["FULL_DISK_FOLDER"])
    with Path(os.environ["FULL_DISK_PAGE"]).open("r+b") as file, mmap.mmap(file.fileno(), PAGE_BYTES) as page:
        whole = _session(folder, page, 0, 0)
        writes = LONGS.unpack_from(page)[0]
        print(f"{writes} writes; with room for all: {whole}", flush=True)
        outcomes = []
        for write in options.writes or range(1, writes + 1, options.every):
            outcomes.append(_session(folder, page, write, write if options.once else sys.maxsize))
            if outcomes[-1].problems:
                print(f"WRONG: {outcomes[-1]}", flush=True)
    _report(writes, options.once, outcomes)
    return int(any(outcome.problems for outcome in (whole, *outcomes)))


def _preloaded(arguments: Sequence[str]) -> int:
    """Run this module again in a process whose writes are counted."""
    with tempfile.TemporaryDirectory(prefix="full-disk-") as name:
        folder = Path(name)
        library, page = folder / "full_disk.so", folder / "page"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        page.write_bytes(bytes(PAGE_BYTES))
        (folder / "disk").mkdir()
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FULL_DISK_PAGE": str(page),
            "FULL_DISK_FOLDER": str(folder / "disk"),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.chaos.full_disk", *arguments], env=environment
        ).returncode


def _session(folder: Path, page: mmap.mmap, first: int, last: int) -> Outcome:
    """Run a session in a fork of this process while these of its writes are refused."""
    LONGS.pack_into(page, 0, 0, 0, 0)
    page[LONGS.size :] = bytes(PAGE_BYTES - LONGS.size)
    with tempfile.TemporaryDirectory(dir=folder) as name, tempfile.NamedTemporaryFile() as output:
        own = Path(name)
        for part in ("reports", "temporary"):
            (own / part).mkdir()
        LONGS.pack_into(page, 0, 0, first, last)
        child = os.fork()
        if child == 0:
            _run(own, output.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seen = LONGS.unpack_from(page)[0]
        LONGS.pack_into(page, 0, seen, 0, 0)
        text = Path(output.name).read_text(errors="replace")
        verdict = "; ".join(_verdicts(own / "reports"))
        refused = page[LONGS.size :].rstrip(b"\0").decode(errors="replace").partition(f"{own.name}/")[2]
        return Outcome(first, refused, status, verdict, tuple(_problems(status, verdict, text, full=bool(first))))


def _run(own: Path, output: int) -> NoReturn:
    status = 99
    try:
        for number in (1, 2):
            os.dup2(output, number)
        os.environ |= {"TUNECHECK_REPORTS": str(own / "reports"), "TUNECHECK_HISTORY": str(own / "history.sqlite")}
        os.environ["TMPDIR"] = tempfile.tempdir = str(own / "temporary")
        # of a library that was imported before pytest, here alone
        os.environ["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestAssertRewriteWarning"
        from tunecheck.cli import main as tunecheck
        from tunecheck.runner import outcome

        # a training in a process of its own has a log for it
        vars(outcome)["traceback"] = SimpleNamespace(print_exc=lambda: None, extract_tb=traceback.extract_tb)
        status = tunecheck(["run", RUN, "--in-process", *(part for setting in SETTINGS for part in ("--set", setting))])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _verdicts(reports: Path) -> Iterator[str]:
    for path in reports.glob("*/verdict.json"):
        try:
            yield str(json.loads(path.read_text())["verdict"])
        except (ValueError, KeyError):
            yield "damaged"


def _problems(status: int, verdict: str, output: str, *, full: bool) -> Iterator[str]:
    """Yield what is wrong with how a session ended: a healthy run passes, or could not be judged."""
    if status not in ((0, 4, 6) if full else (0,)):
        yield f"status {status}: {output[-800:]}"
    if status == 0 and verdict != "pass":
        yield f"status 0 with the verdict {verdict or 'none'}"
    if status == 6 and verdict not in ("", "inconclusive"):
        yield f"status 6 with the verdict {verdict}"
    yield from (f"it prints {words!r}: {output[-800:]}" for words in BAD_WORDS if words in output)


def _report(writes: int, once: bool, outcomes: Sequence[Outcome]) -> None:
    """Print how many sessions ended how, and keep each."""
    kind = "one write refused" if once else "full from a write on"
    for (status, verdict), count in sorted(Counter((o.status, o.verdict) for o in outcomes).items()):
        print(f"{kind}: {count} of {len(outcomes)}: status {status}, verdict {verdict or 'none'}")
    sessions = {one["write"]: one for one in known(FULL_DISK).get(kind, {}).get("sessions", ())}
    sessions |= {outcome.write: asdict(outcome) for outcome in outcomes}
    keep(FULL_DISK, kind, {"writes": writes, "sessions": [sessions[write] for write in sorted(sessions)]})


if __name__ == "__main__":
    sys.exit(main())
