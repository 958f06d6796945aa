"""The models' cache: whole files or none, whatever is cut, filled up, killed or run twice at a time."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import (
    PARAMETERS,
    WEIGHTS,
    as_python,
    cut,
    digest,
    empty,
    flip,
    halve,
    shelf_of,
    tiny,
)

from tunecheck.assets import build, cache, folder, resolve
from tunecheck.assets.cache import shelf
from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.paths import project_folder

# Damage.


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        *((file, harm) for file in (WEIGHTS, "config.json") for harm in (cut, empty, flip)),
        ("manifest.json", halve),
        ("manifest.json", empty),
        ("manifest.json", lambda path: path.write_text('{"files": []}')),
    ],
)
def test_a_damaged_cached_file_is_set_aside_and_made_again(builder, home, said, file, harm):
    """Said aloud, with the file's name, and the new one is whole."""
    first = resolve(tiny(), allow_random=True)
    harm(first.path / file)

    second = resolve(tiny(), allow_random=True)

    assert (second.path, second.weights.sha256) == (first.path, digest(first.path / WEIGHTS))
    assert shelf_of(home) == [f".damaged-{first.path.name}", first.path.name]
    assert any(f"{first.path / file} is damaged" in line and "Renamed to" in line for line in said)
    (repair,) = second.weights.repairs
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\d: .*{re.escape(str(first.path / file))} is damaged: .* fetched again\.", repair
    )
    assert len(builder.calls) == 2


def test_every_repair_of_a_copy_stays_with_it(builder):
    """A disk that damages the same file twice is worth knowing, in whatever session that was."""
    path = resolve(tiny(), allow_random=True).path
    for _ in range(2):
        flip(path / WEIGHTS)
        resolve(tiny(), allow_random=True)

    repairs = resolve(tiny(), allow_random=True).weights.repairs
    assert [f"{path / WEIGHTS} is damaged" in repair for repair in repairs] == [True, True]


def test_an_unchanged_file_is_not_hashed_again(builder, monkeypatch):
    """Size, times and inode say that it is the one that was verified."""
    first = resolve(tiny(), allow_random=True)
    monkeypatch.setattr(folder, "_sha256", lambda path: pytest.fail(f"{path} was hashed"))

    assert resolve(tiny(), allow_random=True) == first


def test_a_touched_file_is_hashed_once_more(builder, monkeypatch, said):
    """Intact, so that nothing is said, and the next time it is not hashed."""
    found = resolve(tiny(), allow_random=True)
    os.utime(found.path / WEIGHTS)
    hashed, real, before = [], folder._sha256, list(said)
    monkeypatch.setattr(folder, "_sha256", lambda path: hashed.append(path.name) or real(path))

    assert resolve(tiny(), allow_random=True) == found
    assert resolve(tiny(), allow_random=True) == found
    assert (hashed, said) == ([WEIGHTS], before)


def test_a_deleted_file_is_made_again(builder, home):
    """Gone is not damaged: there is nothing to look at, so nothing is set aside."""
    found = resolve(tiny(), allow_random=True)
    (found.path / WEIGHTS).unlink()

    assert resolve(tiny(), allow_random=True) == found
    assert shelf_of(home) == [found.path.name]


# Full disks, locks, leftovers.


def test_a_disk_that_fills_up_leaves_nothing(monkeypatch, home):
    """The bytes needed and free are named, the half-written file is gone."""

    def half(model, request):
        (Path(request["out"]) / WEIGHTS).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build, "in_child", half)

    with pytest.raises(WeightsUnavailable, match=rf"about {2 * PARAMETERS:,} bytes are needed, [\d,]+ are free"):
        resolve(tiny(), allow_random=True)
    assert shelf_of(home) == []


def test_a_disk_that_is_too_small_is_seen_before(monkeypatch, builder):
    """Nothing is fetched when it could not be kept."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())

    with pytest.raises(WeightsUnavailable, match=r"1,000 are free\. What to do: .* TUNECHECK_CACHE"):
        resolve(tiny(), allow_random=True)
    assert builder.calls == []


def test_a_full_disk_in_the_child_is_told_as_such(monkeypatch, tmp_path):
    """Also when only the child saw it."""
    as_python(monkeypatch, tmp_path, """echo '{"error": "SafetensorError: I/O error: (os error 28)"}'; exit 1""")

    with pytest.raises(WeightsUnavailable, match="no space left in"):
        resolve(tiny(), allow_random=True)


def test_an_unusable_cache_is_one_sentence(monkeypatch, tmp_path):
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "file"))

    with pytest.raises(WeightsUnavailable, match=r"cannot be used: Not a directory.* TUNECHECK_CACHE"):
        resolve(tiny(), allow_random=True)


def test_a_complete_cache_that_may_only_be_read_is_used(builder, monkeypatch):
    """Without a lock, which nobody needs there, and without the stamps of this verification."""
    first = resolve(tiny(), allow_random=True)
    (first.path / "stamps.json").unlink()

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tunecheck.assets.cache.OwnedLock.acquire", refuse)
    monkeypatch.setattr("tunecheck.core.files.os.replace", refuse)
    assert resolve(tiny(), allow_random=True) == first
    assert len(builder.calls) == 1


def test_leftovers_of_dead_processes_are_swept(builder, home):
    """Whoever has the lock knows that nobody builds any more."""
    (home / "models" / "tiny" / ".building-dead" / "model").mkdir(parents=True)
    found = resolve(tiny(), allow_random=True)

    assert shelf_of(home) == [found.path.name]


def test_waiting_for_a_lock_names_the_process(said):
    """And ends after its time limit, naming the lock's file."""
    with shelf("tiny"):
        expected = rf"process {os.getpid()} still holds .*\.lock after 0\.1 s"
        with pytest.raises(WeightsUnavailable, match=expected), shelf("tiny", lock_seconds=0.1):
            pytest.fail("two at a time")

    assert said[0].startswith(f"tiny: waiting for process {os.getpid()}")
    assert cache.LOCK_SECONDS > build.BUILD_SECONDS / 2


PARALLEL = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tiny_models import Builder, tiny
from tunecheck.assets import build, resolve
class Slow(Builder):
    def __call__(self, model, request):
        time.sleep(0.5)
        print("built", flush=True)
        super().__call__(model, request)
build.in_child = Slow()
print(resolve(tiny(), allow_random=True).weights.sha256)
"""


def test_parallel_processes_build_once():
    """The second waits and then uses what the first has built."""
    command = [sys.executable, "-c", PARALLEL, str(Path(__file__).parents[1])]
    both = [subprocess.Popen(command, cwd=project_folder(), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = sorted((process.communicate()[0].split() for process in both), key=len)

    assert len(outputs[0]) == 1
    assert outputs[1] == ["built", *outputs[0]]


def test_a_killed_process_leaves_no_lock(home):
    """The lock goes with the process: the next one builds at once."""
    slow = PARALLEL.replace('print("built", flush=True)', 'print("built", flush=True); time.sleep(60)')
    command = [sys.executable, "-c", slow, str(Path(__file__).parents[1])]
    with subprocess.Popen(command, cwd=project_folder(), stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)

    assert len(shelf_of(home)) == 1
    with shelf("tiny"):
        assert shelf_of(home) == []
