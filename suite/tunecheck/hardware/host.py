"""Facts about a machine besides its GPUs: processor, memory, disk, versions, checkout, environment."""

import errno
import importlib.metadata
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import psutil

from tunecheck.hardware import cgroup
from tunecheck.hardware.facts import Cpu, Disk, Git

DISTRIBUTIONS = (
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "accelerate",
    "huggingface-hub",
    "tokenizers",
    "safetensors",
    "nvidia-ml-py",
    "pytest",
    "tunecheck",
)
"""Distributions that results depend on."""
ENVIRONMENT = (
    "BNB_CUDA_VERSION",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_OFFLINE",
)
"""Variables that change a result and never hold a secret; those of tunecheck are added by their prefix."""
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_GIT_SECONDS = 5
_SUITE = Path(__file__).resolve().parent.parent


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Return the processor of this machine and the cores available to this process."""
    model, flags = _cpuinfo(cpuinfo)
    return Cpu(
        model=model,
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(logical=True),
        usable_cores=_usable_cores(),
        avx512_bf16=None if flags is None else "avx512_bf16" in flags,
        amx_bf16=None if flags is None else "amx_bf16" in flags,
        arm_bf16=None if flags is None else "bf16" in flags,
        flags=None if flags is None else sha256(" ".join(sorted(flags)).encode()).hexdigest()[:12],
    )


def _cpuinfo(path: Path) -> tuple[str | None, frozenset[str] | None]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None, None
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return model and model[1].strip(), None if flags is None else frozenset(flags[1].split())


def _usable_cores() -> int | None:
    # Only Linux and the BSDs report the affinity mask.
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup.cpu_quota_cores()
    if affinity is None or quota is None:
        return affinity
    return min(affinity, max(1, int(quota)))


def read_ram() -> tuple[int | None, int | None]:
    """Return total and available bytes, within the limit of the control group."""
    memory = psutil.virtual_memory()
    limits = cgroup.memory_limits()
    if limits is None:
        return memory.total, memory.available
    return min(memory.total, limits[0]), min(memory.available, limits[1])


def read_disk(folder: Path) -> Disk:
    """Return the space left for this user at this folder, or at its nearest existing parent."""
    for place in (folder, *folder.absolute().parents):
        try:
            status = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            break
        return Disk(
            free_bytes=status.f_bavail * status.f_frsize,
            free_inodes=status.f_favail if status.f_files else None,
            writable=_writable(place),
        )
    return Disk(free_bytes=None, free_inodes=None)


def _writable(folder: Path) -> bool:
    """Return whether a file can be created there, by creating one: permissions alone do not show a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution; None when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_versions() -> dict[str, str | None]:
    """Return the versions of all distributions that results depend on."""
    return {name: distribution_version(name) for name in DISTRIBUTIONS}


def read_git(folder: Path = _SUITE) -> Git | None:
    """Return the commit of this folder's code; None outside a checkout, without git or before the first commit."""
    # An installed copy may lie inside somebody else's checkout: only a tracked file proves that the commit is ours.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain")
    return None if commit is None or status is None else Git(commit=commit, dirty=bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # reading must not stand in the way of a commit
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_GIT_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def read_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of `variables` that can change a result, by name; never one that could hold a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in ENVIRONMENT or (name.startswith("TUNECHECK_") and not _SECRET.search(name))
    }
