"""Where things lie: the cache of models and data, and the project's own configs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for converted models and data: $TUNECHECK_CACHE, else ~/.cache/tunecheck. Not created by this call."""
    return Path(os.environ.get("TUNECHECK_CACHE") or "~/.cache/tunecheck").expanduser()


def project_folder() -> Path:
    """The checkout that holds configs/, tiers/ and reports/."""
    return Path(__file__).resolve().parent.parent


def configs_folder() -> Path:
    """The folder of the YAML files."""
    return project_folder() / "configs"


def reports_folder() -> Path:
    """The folder that holds a folder for each session: $TUNECHECK_REPORTS, else reports/runs in the checkout.

    No pytest option: before conftest.py is read, pytest takes the value of an unknown option for a path to collect.
    """
    return Path(os.environ.get("TUNECHECK_REPORTS") or project_folder() / "reports" / "runs")


def baselines_folder() -> Path:
    """The folder of accepted baselines, made for committing: $TUNECHECK_BASELINES, else baselines in the checkout."""
    return Path(os.environ.get("TUNECHECK_BASELINES") or project_folder() / "baselines")
