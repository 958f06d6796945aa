"""The package of docs/extending.md, installed beside tunecheck: its check judges a training. CPU, fp32."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from tunecheck.core.paths import checkout_folder

PAGE = (checkout_folder() / "docs" / "extending.md").read_text(encoding="utf-8")
(MODULE,), (PROJECT,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "toml"))
LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
for rows in torch.randn(12, 16, 8):
    loss = nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def installed(folder, module: str) -> dict[str, str]:
    """Return the environment of a command that finds this module as an installed package of the page's entry points."""
    (folder / "house_rules.py").write_text(module, encoding="utf-8")
    about = folder / "house_rules-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\n", encoding="utf-8")
    groups = tomllib.loads(PROJECT)["project"]["entry-points"]
    sections = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in held.items()) for group, held in groups.items()]
    (about / "entry_points.txt").write_text("\n".join(sections), encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def watched(folder, module: str, rate: float) -> subprocess.CompletedProcess[str]:
    """Watch a loop with this rate where the package is installed."""
    (folder / "train.py").write_text(LOOP.replace("RATE", str(rate)), encoding="utf-8")
    command = [sys.executable, "-m", "tunecheck.cli", "watch", "--", sys.executable, "train.py"]
    return subprocess.run(
        command, cwd=folder, env=installed(folder, module), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("rate", "status"), [(1e-3, "passed"), (1.0, "failed")])
@pytest.mark.slow
def test_the_pages_check_judges_a_training(tmp_path, rate, status):
    """It stands in the verdict under its subject, and its failure is the session's."""
    done = watched(tmp_path, MODULE, rate)
    assert done.returncode == (status == "failed"), done.stdout + done.stderr
    (verdict,) = tmp_path.glob("reports/runs/*/verdict.json")
    (run,) = json.loads(verdict.read_text())["runs"]
    found = {finding["check"]: finding["status"] for finding in run["findings"]}
    assert found["weights_stay_near"] == status
    assert "house rules 1/1" in done.stdout or status == "failed"


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    """A check that is missing without a word would be a pass without evidence."""
    done = watched(tmp_path, "import nowhere_to_be_found", 1e-3)
    assert done.returncode == 4
    assert (
        "house-rules: its entry point house_rules:WeightsStayNear in tunecheck.checks cannot be loaded" in done.stderr
    )
    assert "Traceback" not in done.stderr
