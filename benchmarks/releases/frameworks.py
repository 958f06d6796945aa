"""`python -m benchmarks.releases.frameworks`: frameworks in environments of their own, unmodified and on the CPU, under
`tunecheck watch`, and each again without it: what is judged, what it costs, and whether anything changed."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.releases.environment import environment, kept_or_temporary
from benchmarks.releases.framework_inputs import TRAININGS, write_inputs
from benchmarks.releases.framework_list import FRAMEWORKS, Framework
from benchmarks.releases.framework_table import healthy, line_of, record, write_table
from benchmarks.releases.watched import run, watched
from tunecheck.cli.parser import Parser, run_command
from tunecheck.core.errors import ConfigError, SuiteError

NAMED = "transformers", "trl", "peft", "accelerate", "llamafactory", "ms-swift", "axolotl", "unsloth", "lightning"
"""Packages whose versions are told, where they are installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the frameworks and return 0 where nothing is flagged and nothing was changed by listening."""
    parser = Parser(prog="python -m benchmarks.releases.frameworks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this framework; may be repeated")
    parser.add_argument("--variant", metavar="TEXT", help="only the training of this name, or those that contain it")
    parser.add_argument("--list", action="store_true", help="list the frameworks and install nothing")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the environments in this folder, and use it")
    parser.add_argument(
        "--table", action="store_true", help="write the table of docs/frameworks.md again, and try nothing"
    )
    parser.set_defaults(command=_try_frameworks)
    return run_command(parser, arguments)


def _try_frameworks(options: Any) -> int:
    if options.list:
        for framework in FRAMEWORKS.values():
            print(f"{framework.name}: {'; '.join(framework.trainings)}")
        return 0
    names = options.only or list(FRAMEWORKS)
    if unknown := [name for name in names if name not in FRAMEWORKS]:
        raise ConfigError([f"no framework is called {name!r}: --list lists them" for name in unknown])
    tried = {name: variants_of(FRAMEWORKS[name], options.variant or "") for name in names}
    if not any(tried.values()):
        raise ConfigError([f"no training of {', '.join(names)} is called {options.variant!r}: --list lists them"])
    ok = True
    for name, variants in () if options.table else tried.items():
        ok = _try_framework(FRAMEWORKS[name], variants, options.keep) and ok
    write_table()
    return 0 if ok else 1


def variants_of(framework: Framework, wanted: str) -> list[str]:
    """Return the framework's training of this name, else those whose names contain it."""
    return [wanted] if wanted in framework.trainings else [name for name in framework.trainings if wanted in name]


def _try_framework(framework: Framework, variants: Sequence[str], keep: Path | None) -> bool:
    if not variants:
        return True
    ok = True
    with kept_or_temporary(keep) as folder:
        place = folder / re.sub(r"\W+", "-", framework.name)
        try:
            with environment(place, framework.packages, keep=keep is not None, without=framework.without) as python:
                for variant in variants:
                    row = try_training(framework, variant, python)
                    record(row)
                    print(line_of(row), flush=True)
                    ok = ok and healthy(row)
        except SuiteError as error:
            record(_row(framework, "", {}, reason=str(error)))
            print(f"{framework.name}: {error}", flush=True)
            ok = False
    return ok


def try_training(framework: Framework, variant: str, python: Path) -> dict[str, Any]:
    """Return the row of one training, which says why where it came to no verdict."""
    try:
        return _tried(framework, variant, python)
    except SuiteError as error:
        return _row(framework, variant, _versions(python), reason=str(error))


def _tried(framework: Framework, variant: str, python: Path) -> dict[str, Any]:
    """Return what was judged, and what was different without listening. Raises SuiteError without one verdict."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = {"python": str(python), "bin": str(python.parent), "trainings": str(TRAININGS), "folder": name}
        values |= {"out": str(folder / "out"), "model": str(folder / "model"), "tiny": str(folder / "tiny")}
        write_inputs(folder, values)
        command = [word.format(**values) for word in framework.trainings[variant]]
        alone, errors, status = run(command, framework.variables)
        if status:
            told = errors.strip().splitlines() or [f"status {status}"]
            return _row(framework, variant, _versions(python), reason=f"the training itself fails: {told[-1]}")
        before = _digests(folder / "out")
        shutil.rmtree(folder / "out", ignore_errors=True)  # LLaMA-Factory would resume from what it finds there
        seen = watched(python, command, steps=10, variables=framework.variables)
        after = _digests(folder / "out")
        repeats = True
        if after != before:  # does the training give other weights by itself?
            shutil.rmtree(folder / "out", ignore_errors=True)
            run(command, framework.variables)
            repeats = _digests(folder / "out") == before
    row = _row(framework, variant, _versions(python), reason=seen.reason)
    return row | {
        "outcome": seen.outcome,
        "judged": seen.passed + len(seen.failed),
        "passed": seen.passed,
        "failed": seen.failed,
        "unjudged": seen.unjudged,
        "same": bool(before) and before == after,
        "repeats": repeats,
        "compared": sorted({name for name, _ in before}),
        "cpu_seconds_alone": alone.cpu_seconds,
        "cpu_seconds_more": round(seen.cost.cpu_seconds - alone.cpu_seconds, 1),
        "peak_mib_more": seen.cost.peak_mib - alone.peak_mib,
    }


def _row(framework: Framework, variant: str, versions: dict[str, str], reason: str) -> dict[str, Any]:
    return {
        "framework": framework.name,
        "variant": variant,
        "versions": versions,
        "outcome": "not tried",
        "reason": reason,
        "failed": {},
        "same": False,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _digests(folder: Path) -> list[tuple[str, str]]:
    """Return name and digest of each file of weights, and of the ledger of the steps where the script writes one."""
    files = [*folder.rglob("*.safetensors"), *folder.glob("ledger.txt")]
    return sorted((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files)


def _versions(python: Path) -> dict[str, str]:
    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        f"for name in {NAMED!r}:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass\n"
    )
    told = subprocess.run([str(python), "-c", code], capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in told.splitlines())


if __name__ == "__main__":
    sys.exit(main())
