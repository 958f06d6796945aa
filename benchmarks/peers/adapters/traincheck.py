"""traincheck: invariants are inferred from a trace of the healthy script, and each script is held to them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.causes import GOOD, base_of
from benchmarks.peers.scenarios import Scenario
from tunecheck.core.paths import project_folder

LIMIT_SECONDS = 3600
"""Wall time of one script; the first one also learns."""
BIN = Path(sys.executable).parent
LEARNED = tempfile.TemporaryDirectory(prefix="tunecheck-traincheck-")
"""Invariants of each healthy script, which the scripts of one process share; removed as it ends."""


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return the invariants that the script violates."""
    base = Scenario(GOOD, base_of(scenario.name))
    invariants = Path(LEARNED.name) / f"{base.name}.json"
    if not invariants.exists():
        (reference := folder / "reference").mkdir()
        trace = _collected(base, reference)
        _run("infer", "-f", trace, "-o", unfinished := reference / "invariants.json", folder=reference)
        unfinished.rename(invariants)
    # with `--invariants` it traces less, and looks for a line that makes an optimizer, which a Trainer's script lacks
    trace = _collected(scenario, folder)
    _run("check", "-f", trace, "-i", invariants, "-o", folder / "results", "--no-html-report", folder=folder)
    (summary,) = folder.glob("results/*/violations_summary.json")
    violations = json.loads(summary.read_text(encoding="utf-8"))["violations"]
    return [f"{violation['relation_type']}: {violation['display_name']}" for violation in violations]


def _collected(scenario: Scenario, folder: Path) -> Path:
    """Run the script with calls and the model's tensors traced, and return the folder of the trace."""
    # what it inserts would come before a docstring, and it gives the script a PYTHONPATH of its own
    _, future, rest = scenario.source().partition("from __future__ import annotations\n")
    found = f"import sys\n\nsys.path.insert(0, {str(project_folder())!r})\n"
    (file := folder / "train.py").write_text(future + found + rest, encoding="utf-8")
    trace = folder / "trace"
    _run("collect", "--pyscript", file, "--models-to-track", "model", "--output-dir", trace, folder=folder)
    return trace


def _run(command: str, *options: str | Path, folder: Path) -> None:
    """Run one of its commands in this folder. Raises RuntimeError with its last line where it fails."""
    words = [BIN / f"traincheck-{command}", *options]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = done.stdout.strip().splitlines()[-1:]
        raise RuntimeError(f"traincheck-{command} ends with {done.returncode}: {''.join(last)}")
