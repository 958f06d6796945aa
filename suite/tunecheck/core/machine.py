"""What a report or a trace says of its machine, as far as it is read again."""

from typing import Annotated, Any

from tunecheck.core.frozen import Frozen


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


Environment = Annotated[dict[str, Any], _Machine]
"""Hardware, versions and git commit; whatever else is there, each part that is read again has its type."""
