"""Limits of the control group that a container or a job scheduler sets for this process (cgroup v1 and v2)."""

from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 2**60
"""Smallest number that means "unlimited": cgroup v1 writes the largest page-aligned one."""


def cpu_quota_cores(membership: Path = MEMBERSHIP, root: Path = ROOT) -> float | None:
    """Return the CPU seconds per second that this process may use, in cores; None without a quota."""
    quotas = [quota for folder in _folders("cpu", membership, root) if (quota := _cpu_quota(folder)) is not None]
    return min(quotas, default=None)


def memory_limits(membership: Path = MEMBERSHIP, root: Path = ROOT) -> tuple[int, int] | None:
    """Return the limit of this process's group and what is left of it, both in bytes; None without a limit."""
    limits = [limit for folder in _folders("memory", membership, root) if (limit := _memory(folder)) is not None]
    if not limits:
        return None
    return min(limit for limit, _ in limits), min(left for _, left in limits)


def _folders(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of all its parents: the tightest limit counts.

    Inside a container the group's path is often the host's and does not exist; the mount itself is then the own group.
    """
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base = root
        elif controller in controllers.split(","):
            base = next((root / name for name in (controllers, controller) if (root / name).is_dir()), root)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth])


def _cpu_quota(folder: Path) -> float | None:
    quota, period = [*_text(folder / "cpu.max").split(), "", ""][:2]
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _memory(folder: Path) -> tuple[int, int] | None:
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for limit_name, usage_name, reclaimable_name in names:
        limit, usage = _text(folder / limit_name), _text(folder / usage_name)
        if limit.isdigit() and usage.isdigit() and int(limit) < _NO_LIMIT_BYTES:
            # The kernel drops idle file cache before it kills, so that cache counts as free.
            reclaimable = _statistic(folder / "memory.stat", reclaimable_name)
            return int(limit), max(0, int(limit) - int(usage) + reclaimable)
    return None


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
