"""What a report or a trace says of its machine, as far as it is read again."""

from collections.abc import Mapping
from typing import Any

from tunecheck.core.frozen import Frozen
from tunecheck.core.typed import build


class _Gpu(Frozen):
    name: str | None = None
    total_bytes: int | None = None
    driver_version: str | None = None


class _Cpu(Frozen):
    model: str | None = None
    usable_cores: int | float | None = None


class _Git(Frozen):
    commit: str | None = None
    dirty: bool | None = None


class _Machine(Frozen):
    gpus: tuple[_Gpu, ...] | None = None
    cpu: _Cpu | None = None
    git: _Git | None = None
    versions: dict[str, str | None] | None = None
    environment: dict[str, str | None] | None = None
    python: str | None = None
    platform: str | None = None
    ram_total_bytes: int | None = None
    processes: int | None = None


def require_machine(environment: Mapping[str, Any]) -> None:
    """Require that each part that is read again has its type, whatever else is there. Raises one of typed.MISFITS."""
    build(_Machine, environment, partial=True)
