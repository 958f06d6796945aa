"""Commands for this machine: doctor, fetch."""

import argparse
from dataclasses import asdict
from typing import Any

from tunecheck.cli.parser import as_json
from tunecheck.config import load_data, load_model
from tunecheck.config.source import known_names
from tunecheck.hardware import probe


def add_commands(commands: Any) -> None:
    """Add `doctor` and `fetch` to the command line."""
    doctor = commands.add_parser("doctor", help="diagnose this machine, with a remedy for each problem")
    doctor.executes(_doctor)

    fetch = commands.add_parser("fetch", help="download a model's weights or a data set's rows into the cache")
    fetch.add_argument(
        "name", nargs="?", default="smollm2-135m", help="name in configs/models or configs/data (default smollm2-135m)"
    )
    fetch.executes(_fetch, leaves_files=True)


def _doctor(options: argparse.Namespace) -> int:
    from tunecheck.assets import is_cached
    from tunecheck.hardware.doctor import DEFAULT_MODEL, examine
    from tunecheck.hardware.gpu_symptoms import format_diagnoses

    diagnoses = examine(cached=is_cached(DEFAULT_MODEL))
    facts = {"hardware": probe().to_json(), "diagnoses": [asdict(diagnosis) for diagnosis in diagnoses]}
    if not as_json(options, facts):
        print(format_diagnoses(diagnoses))
    return int(any(diagnosis.level == "error" for diagnosis in diagnoses))


def _fetch(options: argparse.Namespace) -> None:
    from tunecheck.assets import resolve, rows

    fetched = []
    if options.name in known_names("data"):
        record, data = rows.resolve(load_data(options.name), instead=False)
        folder = data.file("train").parent
        words = f"{record.source} {record.identifier}, {record.rows} + {record.heldout_rows} rows"
        print(f"{record.name}: {words}, sha256 {record.sha256}\n{folder}")
        fetched.append({**asdict(record), "folder": folder})
    if not fetched or options.name in known_names("model"):
        weights, path = resolve(load_model(options.name), allow_random=False)
        print(f"{weights.model}: {weights.source} {weights.identifier}, sha256 {weights.sha256}\n{path}")
        fetched.append({**asdict(weights), "folder": path})
    as_json(options, fetched)
