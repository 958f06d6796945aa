"""What is foreign stays data: no code of a model's folder runs, no name leaves a folder, no token is printed."""

from __future__ import annotations

import json
import pickle
import shutil
import stat
import subprocess
import sys

import pytest
import tiny
import traces
from sessions import write_trace

from tunecheck.assets.folder import weight_files
from tunecheck.cli import main
from tunecheck.config import find_run, load_run
from tunecheck.core.errors import WeightsDamaged, WeightsUnavailable
from tunecheck.core.paths import shipped_folder
from tunecheck.history.baseline import baseline_file
from tunecheck.runner import Runner

MODEL = shipped_folder() / "configs" / "models" / "tiny-llama"


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


def test_no_code_of_a_models_folder_runs(tmp_path):
    """Neither modules that its configuration names, nor pickles that lie beside the weights."""
    folder, marker = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(MODEL, folder)
    for name in ("config.json", "tokenizer_config.json"):
        held = json.loads((folder / name).read_text())
        named = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.T", None]}
        (folder / name).write_text(json.dumps({**held, "auto_map": named}))
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nConfig = Model = T = object\n")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))
    settings = [*tiny.TRAINED, "training.max_steps=3", f"model.sources=[{{kind: local, path: {folder}}}]"]
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*settings, "probes.oracle_steps=[0]"])
    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run)

    assert trace.main.finished, trace.main.ending
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../../outside.safetensors", "/etc/passwd", "sub/model.safetensors", 5])
def test_an_index_names_no_file_of_another_folder(tmp_path, name):
    """Its shards lie beside it."""
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    with pytest.raises(WeightsDamaged, match="maps no tensors to files of this folder"):
        weight_files(tmp_path)


@pytest.mark.parametrize("run", ["../../escaped", "quick/../../../escaped", "/escaped"])
def test_a_runs_name_leaves_no_folder(tmp_path, run, capsys):
    """It becomes a file's name in a baseline, and a heading in a page."""
    assert baseline_file(tmp_path, run, "../../a card").parent == tmp_path
    tier, _, name = run.rpartition("/")
    folder = tmp_path / "inner" / "session"
    folder.mkdir(parents=True)
    write_trace(folder / "run.jsonl", traces.with_run(traces.healthy(), id=name, tier=tier))

    assert main(["page", str(folder)]) == 0
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["report.html", "run.jsonl"]


def test_a_safetensors_header_of_any_length_is_an_error(tmp_path):
    """It says how long it is itself: 2**63 bytes are not asked of the system."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    (folder / "model.safetensors").write_bytes((2**63 - 1).to_bytes(8, "little") + b"{")
    settings = [*tiny.TRAINED, f"model.sources=[{{kind: local, path: {folder}}}]"]
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)
    from tunecheck.assets import resolve

    with pytest.raises(WeightsUnavailable, match="are no whole safetensors file"):
        resolve(run.model, allow_random=False)


TOKEN = "hf_" + "aB3dE6gH9" * 4
USAGE = [
    ["run", "quick", "--set", f"model={TOKEN}"],
    ["run", "quick", "-n", TOKEN],
    ["run", "quick", "--vram-cap", TOKEN],
    ["run", "quick", f"--hub={TOKEN}"],
    ["prune", "--keep", TOKEN],
    [TOKEN],
]


@pytest.mark.parametrize("words", USAGE, ids=lambda words: "-".join(words[:2] + words[2:3]).replace(TOKEN, "X"))
def test_no_secret_of_a_wrong_command_is_printed(words, tmp_path):
    """Neither by argparse, nor by pytest."""
    done = subprocess.run(
        [sys.executable, "-m", "tunecheck.cli", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 4
    assert TOKEN not in done.stdout + done.stderr
    assert "REDACTED" in done.stdout + done.stderr


def test_no_secret_stands_in_a_log_that_is_kept(tmp_path, monkeypatch):
    """Here in what both runs of --twice print."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    assert main(["watch", "--twice", "--", sys.executable, "-c", f"print('a', '{TOKEN}'[:40])"]) == 6
    (log,) = tmp_path.glob("*/twice.log")

    assert log.read_text() == "a REDACTED\n"


@pytest.mark.parametrize("name", [TOKEN, "a/b"])
def test_a_node_is_not_called_by_a_secret(name, tmp_path, monkeypatch, capsys):
    """Its folder would be."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    monkeypatch.setenv("TUNECHECK_NODE", name)

    assert main(["fleet", "--engine", "local", "quick"]) == 4
    assert TOKEN not in capsys.readouterr().err


def test_no_secret_of_a_watched_command_stands_in_any_file(tmp_path, monkeypatch, capfd):
    """Nor in what is printed, nor in a file's name; nobody else may read the session's folder."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("MY_STORE_SECRET", "correct-horse")
    secrets = [TOKEN, "hunter2-long", "us3r:pa55", "plain-word", "correct-horse"]
    words = [f"--hub_token={secrets[0]}", "--password", secrets[1], f"https://{secrets[2]}@host", secrets[4]]
    status = main(["watch", "--", "env", f"MY_TOKEN={secrets[3]}", sys.executable, "-c", "raise SystemExit(3)", *words])
    printed = "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    (folder,) = (path for path in (tmp_path / "reports").iterdir() if path.is_dir())

    assert status == 6
    assert {"verdict.json", "report.html", "results.sarif", "junit.xml", "summary.md", "summary"} <= {
        file.name for file in files
    }
    for secret in secrets:
        assert secret not in printed
        assert not [file for file in files if secret in f"{file} {file.read_text(errors='replace')}"]
    assert "--hub_token=REDACTED" in (folder / "verdict.json").read_text()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
