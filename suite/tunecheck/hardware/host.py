"""Facts about a machine besides its GPUs, and what its control groups (cgroup v1 and v2) allow of it."""

import importlib.metadata
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil

from tunecheck.core.files import is_disk_full
from tunecheck.hardware.facts import Cpu, Disk, Git

DISTRIBUTIONS = (
    *("torch", "transformers", "peft", "bitsandbytes", "accelerate"),
    *("huggingface-hub", "tokenizers", "safetensors", "nvidia-ml-py", "pytest", "tunecheck"),
)
ENVIRONMENT = (
    *("BNB_CUDA_VERSION", "CUBLAS_WORKSPACE_CONFIG"),
    *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES"),
    *("HF_HOME", "HF_HUB_OFFLINE", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE"),
    *("TUNECHECK_CONFIGS", "TUNECHECK_MODELS"),
)
"""Variables that change a result and never hold a secret."""

MEMBERSHIP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
_SUITE = Path(__file__).resolve().parent.parent


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Return the processor of this machine and the cores available to this process."""
    text = _text(cpuinfo)
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    flags = None if listed is None else frozenset(listed[1].split())
    # only Linux and the BSDs report the affinity mask
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if usable is not None and (quota := cpu_quota_cores()) is not None:
        usable = min(usable, max(1, int(quota)))
    return Cpu(
        model=model and model[1].strip(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(logical=True),
        usable_cores=usable,
        bf16=None if flags is None else not flags.isdisjoint(("avx512_bf16", "amx_bf16", "bf16")),  # the last is ARM's
        flags=None if flags is None else sha256(" ".join(sorted(flags)).encode()).hexdigest()[:12],
    )


def read_ram() -> tuple[int | None, int | None]:
    """Return total and available bytes, within the limit of the control group."""
    memory = psutil.virtual_memory()
    total, left = memory_limits() or (memory.total, memory.available)
    return min(memory.total, total), min(memory.available, left)


def read_disk(folder: Path) -> Disk:
    """Return the space left for this user at this folder, or at its nearest existing parent."""
    for place in (folder, *folder.absolute().parents):
        try:
            status = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            break
        free_bytes, free_inodes = status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None
        return Disk(free_bytes=free_bytes, free_inodes=free_inodes, writable=_writable(place))
    return Disk(free_bytes=None, free_inodes=None)


def _writable(folder: Path) -> bool:
    """Return whether a file can be created there, by creating one: permissions alone do not show a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        return is_disk_full(error)


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution; None when it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def read_git(folder: Path = _SUITE) -> Git | None:
    """Return the commit of this folder's code; None outside a checkout, without git or before the first commit."""
    # An installed copy may lie inside somebody else's checkout: only a tracked file proves that the commit is ours.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain")
    return None if commit is None or status is None else Git(commit=commit, dirty=bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # reading must not stand in the way of a commit
    command = ["git", "-C", str(folder), *arguments]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=5, env=env)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def cpu_quota_cores(membership: Path = MEMBERSHIP, root: Path = ROOT) -> float | None:
    """Return the CPU seconds per second that this process may use, in cores; None without a quota."""
    quotas = [quota for folder in _folders("cpu", membership, root) if (quota := _cpu_quota(folder)) is not None]
    return min(quotas, default=None)


def memory_limits(membership: Path = MEMBERSHIP, root: Path = ROOT) -> tuple[int, int] | None:
    """Return the limit of this process's group and what is left of it, both in bytes; None without a limit."""
    limits = [limit for folder in _folders("memory", membership, root) if (limit := _memory(folder)) is not None]
    return (min(limit for limit, _ in limits), min(left for _, left in limits)) if limits else None


def _folders(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of all its parents: the tightest limit counts."""
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base = root
        elif controller in controllers.split(","):
            base = next((root / name for name in (controllers, controller) if (root / name).is_dir()), root)
        else:
            continue
        # inside a container the path is often the host's and does not exist: the mount itself is then the own group
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _cpu_quota(folder: Path) -> float | None:
    quota, period = [*_text(folder / "cpu.max").split(), "", ""][:2]
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _memory(folder: Path) -> tuple[int, int] | None:
    for limit_name, usage_name, reclaimable_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _text(folder / limit_name), _text(folder / usage_name)
        if limit.isdigit() and usage.isdigit() and int(limit) < 2**60:  # cgroup v1 writes a larger one for no limit
            # The kernel drops idle file cache before it kills, so that cache counts as free.
            found = re.search(rf"^{reclaimable_name} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
            return int(limit), max(0, int(limit) - int(usage) + int(found[1] if found else 0))
    return None


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""
