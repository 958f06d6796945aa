"""What a report or a trace says of its machine, as far as it is read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunecheck.core.typed import build


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    name: str | None = None
    total_bytes: int | None = None
    driver_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cpu:
    model: str | None = None
    usable_cores: int | float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Git:
    commit: str | None = None
    dirty: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    gpus: tuple[_Gpu, ...] | None = None
    cpu: _Cpu | None = None
    git: _Git | None = None
    versions: dict[str, str | None] | None = None
    environment: dict[str, str | None] | None = None
    python: str | None = None
    platform: str | None = None
    ram_total_bytes: int | None = None
    processes: int | None = None


_PARTS = {"gpus": _Gpu, "cpu": _Cpu, "git": _Git}


def require_machine(environment: Mapping[str, Any]) -> None:
    """Require that each part that is read again has its type, whatever else is there. Raises one of typed.MISFITS."""
    build(_Machine, _read_parts(_Machine, environment))


def _read_parts(kind: type, value: Any) -> Any:
    """Return the value without what this kind of part does not have; one of another shape as it is."""
    if isinstance(value, list):
        return [_read_parts(kind, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    names = [field.name for field in dataclasses.fields(kind) if field.name in value]
    return {name: _read_parts(_PARTS[name], value[name]) if name in _PARTS else value[name] for name in names}
