"""Commands for this machine: doctor, fetch."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from tunecheck.config import load_data, load_model


def add_commands(commands: Any) -> None:
    """Add `doctor` and `fetch` to the command line."""
    doctor = commands.add_parser("doctor", help="diagnose this machine, with a remedy for each problem")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(command=_doctor)

    fetch = commands.add_parser("fetch", help="download a model's weights or a data set's rows into the cache")
    fetch.add_argument(
        "name", nargs="?", default="smollm2-135m", help="name in configs/models or configs/data (default smollm2-135m)"
    )
    fetch.set_defaults(command=_fetch, leaves_files=True)


def _doctor(options: argparse.Namespace) -> int:
    from tunecheck.assets import cached
    from tunecheck.hardware import probe
    from tunecheck.hardware.doctor import examine, format_diagnoses

    diagnoses = examine(cached_models=cached(["smollm2-135m"]))
    if options.json:
        facts = [{name: getattr(d, name) for name in ("level", "topic", "found", "remedy")} for d in diagnoses]
        print(json.dumps({"hardware": probe().to_json(), "diagnoses": facts}, indent=2))
    else:
        print(format_diagnoses(diagnoses))
    return int(any(diagnosis.level == "error" for diagnosis in diagnoses))


def _fetch(options: argparse.Namespace) -> int:
    from tunecheck.assets import resolve
    from tunecheck.config.references import known_names

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    if options.name in known_names("data"):
        _fetch_data(options.name, say)
        if options.name not in known_names("model"):
            return 0
    weights, path = resolve(load_model(options.name), allow_random=False, say=say)
    print(f"{weights.model}: {weights.source} {weights.identifier}, sha256 {weights.sha256}\n{path}")
    return 0


def _fetch_data(name: str, say: Callable[[str], None]) -> None:
    from tunecheck.assets.rows import fetch

    record, data = fetch(load_data(name), say)
    print(f"{name}: {record.source} {record.identifier}, {record.rows} + {record.heldout_rows} rows", end=", ")
    print(f"sha256 {record.sha256}\n{data.file('train').parent}")
