"""Environments of pinned releases, each above the libraries of the one that runs this, torch among them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tunecheck.core.errors import SuiteError

MADE = "made"
"""File in an environment that is whole."""


@contextmanager
def environment(folder: Path, packages: Sequence[str], *, keep: bool, without: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the interpreter of an environment with exactly these packages above this one's; delete it afterwards.

    `without` names files of the packages that are left out. With no packages at all it is this one's own interpreter.
    Raises SuiteError with the installer's own words where it cannot be made.
    """
    if not packages:
        yield Path(sys.executable)
        return
    try:
        if not (folder / MADE).exists():
            _make(folder, packages, without)
        yield folder / "bin" / "python"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def kept_or_temporary(keep: Path | None) -> Iterator[Path]:
    """Yield this folder, or a temporary one where it is None."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _make(folder: Path, packages: Sequence[str], without: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    library = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(folder / "bin" / "python"),
            "install",
            "-q",
            "--no-deps",
            "--no-compile",
            *packages,
        ]
    )
    # a folder of a .pth file comes after the environment's own, so that what was installed goes first
    here = Path(sysconfig.get_paths()["purelib"]).resolve()  # traincheck compares paths of files with it
    (library / "zz_base.pth").write_text(f"{here}\n", encoding="utf-8")
    for name in without:
        (library / name).unlink(missing_ok=True)
    (folder / MADE).write_text("\n".join(packages), encoding="utf-8")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SuiteError(f"{' '.join(command[:4])} ... failed: {done.stderr.strip()[-600:]}")
