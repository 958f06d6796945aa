"""The host beside its GPUs: processor, control groups, disk, versions, checkout, environment."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunecheck.hardware import Disk, Git, host, probe


def test_environment_keeps_what_changes_results_and_no_secret(monkeypatch) -> None:
    """A token is not kept, whatever its prefix, nor where results are written."""
    variables = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "TUNECHECK_MODELS": "/m",
        "TUNECHECK_REPORTS": "/r",
        "TUNECHECK_HUB_TOKEN": "hf_x",
        "HF_TOKEN": "hf_x",
        "PATH": "/bin",
    }
    monkeypatch.setattr("os.environ", variables)
    assert probe().environment == {"CUDA_LAUNCH_BLOCKING": "1", "TUNECHECK_MODELS": "/m"}


def test_missing_distribution_is_none() -> None:
    """A distribution that is not installed has no version."""
    assert host.distribution_version("no-such-distribution") is None


def test_cpu_flags(tmp_path: Path) -> None:
    """bf16 needs AVX512-BF16, AMX or the flag of ARM; without a readable file nothing is claimed."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast 9000\nflags\t\t: sse avx512f avx512_bf16\n")
    cpu = host.read_cpu(cpuinfo)
    assert (cpu.model, cpu.bf16) == ("Fast 9000", True)
    cpuinfo.write_text("model name\t: Old 1\nflags\t\t: sse avx512f\n")
    assert host.read_cpu(cpuinfo).bf16 is False
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    cpu = host.read_cpu(cpuinfo)
    assert (cpu.model, cpu.bf16) == (None, True)
    assert host.read_cpu(tmp_path / "absent").bf16 is None


def test_usable_cores_respect_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """The affinity mask and the quota both limit; at least one core is left."""
    affinity = len(os.sched_getaffinity(0))
    for quota, expected in ((None, affinity), (0.5, 1), (1.9, 1), (1000.0, affinity)):
        monkeypatch.setattr(host, "cpu_quota_cores", lambda quota=quota: quota)
        assert host.read_cpu().usable_cores == expected


def test_ram_respects_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tighter of machine and group counts, for the total and for what is left."""
    monkeypatch.setattr(host, "memory_limits", lambda: None)
    total, available = host.read_ram()
    assert total is not None
    assert available is not None
    assert 0 < available <= total
    monkeypatch.setattr(host, "memory_limits", lambda: (1000, 300))
    assert host.read_ram() == (1000, 300)


def write(folder: Path, **files: str) -> None:
    """Files of a control group; a double underscore in a name stands for the dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_cgroup_v2(tmp_path: Path) -> None:
    """The tightest limit of the group and its parents counts, and idle file cache counts as free."""
    membership, root = tmp_path / "membership", tmp_path / "root"
    membership.write_text("0::/pod/container\n")
    write(root)
    write(root / "pod", cpu__max="150000 100000", memory__max="5000", memory__current="4000")
    write(root / "pod/container", cpu__max="max 100000", memory__max="9000", memory__current="8000")
    write(root / "pod/container", memory__stat="anon 7000\ninactive_file 500")
    assert host.cpu_quota_cores(membership, root) == 1.5
    assert host.memory_limits(membership, root) == (5000, 1000)
    write(root / "pod/container", memory__current="8900")
    assert host.memory_limits(membership, root) == (5000, 600)


def test_cgroup_v1(tmp_path: Path) -> None:
    """In a container the path is the host's and the mount is the own group; "unlimited" is a huge number."""
    membership, root = tmp_path / "membership", tmp_path / "root"
    membership.write_text("4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n")
    write(root / "cpu,cpuacct", cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    write(root / "memory", memory__limit_in_bytes="4000", memory__usage_in_bytes="3000")
    write(root / "memory", memory__stat="inactive_file 1\ntotal_inactive_file 800")
    assert host.cpu_quota_cores(membership, root) == 2.0
    assert host.memory_limits(membership, root) == (4000, 1800)
    write(root / "cpu,cpuacct", cpu__cfs_quota_us="-1")
    write(root / "memory", memory__limit_in_bytes="9223372036854771712")
    assert host.cpu_quota_cores(membership, root) is None
    assert host.memory_limits(membership, root) is None


def test_no_control_group(tmp_path: Path) -> None:
    """Without the files there is no limit."""
    assert host.cpu_quota_cores(tmp_path / "absent", tmp_path) is None
    assert host.memory_limits(tmp_path / "absent", tmp_path) is None


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    """The nearest parent tells what will be left."""
    disk = host.read_disk(tmp_path / "not" / "yet")
    assert disk.free_bytes is not None
    assert disk.free_bytes > 0


def test_a_folder_that_cannot_be_written_is_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in a folder's place, a read-only disk; a full one can be written as soon as there is room."""
    (tmp_path / "file").touch()
    assert host.read_disk(tmp_path).writable
    assert not host.read_disk(tmp_path / "file").writable

    for number, writable in ((errno.EROFS, False), (errno.EACCES, False), (errno.ENOSPC, True)):

        def refuse(dir: Path, number: int = number) -> Any:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(host.tempfile, "TemporaryFile", refuse)
        assert host.read_disk(tmp_path).writable is writable
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_disk_without_a_number_of_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """btrfs counts none: that is unknown, not zero. A folder that must not be read is unknown altogether."""
    status = SimpleNamespace(f_bavail=10, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    assert host.read_disk(tmp_path) == Disk(free_bytes=40960, free_inodes=None)

    def refuse(path: Path) -> Any:
        raise PermissionError(path)

    monkeypatch.setattr(os, "statvfs", refuse)
    assert host.read_disk(tmp_path) == Disk(free_bytes=None, free_inodes=None)


def git(folder: Path, *arguments: str) -> None:
    """Run git as a person of no importance."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_git_commit_and_dirt(tmp_path: Path) -> None:
    """A commit counts only when it holds the code; a change or a new file makes it dirty."""
    (tmp_path / "__init__.py").write_text("")
    assert host.read_git(tmp_path) is None
    git(tmp_path, "init")
    assert host.read_git(tmp_path) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    found = host.read_git(tmp_path)
    assert found is not None
    assert len(found.commit) == 40
    assert found.dirty is False
    (tmp_path / "new.py").write_text("")
    assert host.read_git(tmp_path) == Git(commit=found.commit, dirty=True)


def test_installed_copy_in_a_foreign_checkout(tmp_path: Path) -> None:
    """An untracked copy inside somebody's repository has no commit of ours."""
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "theirs")
    (tmp_path / "__init__.py").write_text("")
    assert host.read_git(tmp_path) is None


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git has no commit to tell."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.read_git(tmp_path) is None
