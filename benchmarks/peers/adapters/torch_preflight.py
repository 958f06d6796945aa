"""torch-preflight: a static analyzer, which is given the script as one file."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from torch_preflight.cli import main

from benchmarks.peers.scenarios import Scenario


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return its findings in the script."""
    file = folder / "train.py"
    file.write_text(scenario.source(), encoding="utf-8")
    with contextlib.redirect_stdout(out := io.StringIO()):
        main(["check", "--format", "json", str(file)])
    answer = json.loads(out.getvalue())
    return [f"{found['code']} {found['message']}" for found in (*answer["diagnostics"], *answer["failures"])]
