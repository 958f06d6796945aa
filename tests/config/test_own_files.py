"""Runs, models, data and card classes of one's own: files in a folder, and no other edit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from shipped import load_runs

from tunecheck.cli import main
from tunecheck.config import find_run, load_data, load_model, load_run, read_runs, run_sources
from tunecheck.config.cards import card_for, card_names
from tunecheck.core.errors import BadRow
from tunecheck.core.evidence import AttemptOutcome
from tunecheck.core.paths import project_folder
from tunecheck.core.units import GIB
from tunecheck.memory import prediction
from tunecheck.runner.outcome import outcome_of
from tunecheck.training.data import read_rows

MODEL = """\
parameters: 106816
architecture: {model_type: llama, vocab_size: 512, hidden_size: 64, num_hidden_layers: 2, intermediate_size: 128,
  num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
sources: [{kind: random}]
"""
RUN = """\
model: mine
data: mine
strategy: lora
lora: {target_modules: [q_proj, v_proj]}
training: {max_steps: 5, learning_rate: 1e-3}
device: cpu
allow_random_weights: true
checks:
  loss_falls: {min_fall: 0.01}
"""
FILES = {
    "models/mine.yaml": MODEL,
    "data/mine.yaml": "train: mine/train.jsonl\nheldout: mine/heldout.jsonl\n",
    "data/mine/train.jsonl": "".join(
        f'{{"instruction": "Say the number {number}.", "response": "It is {number}."}}\n' for number in range(8)
    ),
    "data/mine/heldout.jsonl": "".join(
        f'{{"instruction": "Say the number {number}.", "response": "It is {number}."}}\n' for number in range(8, 12)
    ),
    "quick/mine.yaml": RUN,
    "convergence/my-strategies.yaml": RUN.replace("strategy: lora\n", "compare: {lora: {}, full: {}}\n"),
    "cards/mine.yaml": "at_least: 40GiB\nrun: {strategy: full, lora: null, quantization: null, "
    "training: {micro_batch_size: 32}}\n",
}
MINE = "quick/mine"

REST = {"remainder_bytes": 0, "between_steps": {}, "at_peak": {}, "peak_operation": "aten.mm"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with files of one's own, which goes before the shipped one."""
    folder = tmp_path / "my-configs"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("TUNECHECK_CONFIGS", str(folder))
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path / "reports"))
    return folder


def test_own_files_are_loaded_beside_the_shipped_ones(folder):
    """The run's rows lie in the own folder; every shipped run is still there."""
    names = [source.name for source in run_sources()]

    assert {MINE, "convergence/my-strategies-lora", "convergence/my-strategies-full"} <= set(names)
    assert {"quick/smollm2-135m-qlora", "full/llama-7b-qlora"} <= set(names)
    run = load_run(find_run("mine"))
    assert (run.name, run.model, run.data) == (MINE, load_model("mine"), load_data("mine"))
    assert run.data.file("train") == folder / "data" / "mine" / "train.jsonl"
    assert run.fingerprint == load_run(find_run(str(folder / "quick" / "mine.yaml"))).fingerprint


def test_every_tier_still_loads():
    """With the own runs in it."""
    assert not any(read_runs(tier)[1] for tier in ("quick", "convergence", "memory", "extended", "full"))


def test_own_card_classes_are_ordered_by_their_memory():
    """Each goes before the smaller ones; a run trains as it says."""
    assert card_names() == ["mine", "16gb", "8gb", "small", "cpu"]
    assert (card_for(80 * GIB), card_for(24 * GIB), card_for(None)) == ("mine", "16gb", "cpu")
    assert {run.training.micro_batch_size for run in load_runs("quick", (), "mine")} == {32}


def test_list_show_and_estimate_take_an_own_run(capsys, monkeypatch):
    """By name, and with an own card class."""
    figures = dict.fromkeys(("loaded_bytes", "first_step_bytes", "steady_bytes", "evaluation_bytes"), 10**9)
    monkeypatch.setattr(prediction, "_simulate", lambda run: {**figures, **REST})

    assert main(["list"]) == 0
    assert "  mine: lora, 5 steps" in capsys.readouterr().out
    assert main(["list", "--needs", "--tier", "quick"]) == 0
    assert f"{MINE}: " in capsys.readouterr().out
    assert main(["show", MINE, "--card", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["micro_batch_size"] == 32
    for options in (["estimate", "mine", "--fallback"], ["estimate", "--all"]):
        assert main(options) == 0
        assert MINE in capsys.readouterr().out


def test_an_unusable_file_hides_no_estimate(folder, capsys, monkeypatch):
    """The others are shown, its problem is named, and the status is that of a usage error."""
    figures = dict.fromkeys(("loaded_bytes", "first_step_bytes", "steady_bytes", "evaluation_bytes"), 10**9)
    monkeypatch.setattr(prediction, "_simulate", lambda run: {**figures, **REST})
    (folder / "quick" / "broken.yaml").write_text("model: [")

    assert main(["estimate", "--all"]) == 4
    printed = capsys.readouterr()
    assert MINE in printed.out
    assert "broken.yaml" in printed.err


@pytest.mark.parametrize("chosen", [["-m", "quick"], ["-m", "quick", "--card", "mine"], ["--run", MINE]], ids=" ".join)
def test_pytest_collects_the_checks_of_an_own_run(chosen):
    """Beside the shipped run's where the tier is selected."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *chosen, "tiers"]
    done = subprocess.run(command, cwd=project_folder(), env=os.environ, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[mine-trainable_set]" in done.stdout
    assert ("[smollm2-135m-qlora-trainable_set]" in done.stdout) == ("quick" in chosen)


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("models/mine.yaml", "parameters", "params", "models/mine.yaml:1:1: model.params: unknown key"),
        ("data/mine.yaml", "heldout.jsonl", "held.jsonl", "data/mine.yaml:2:1: data.heldout: there is no file"),
        ("quick/mine.yaml", "max_steps", "max_step", "quick/mine.yaml:5:12: training.max_step: unknown key"),
    ],
)
def test_a_mistake_in_an_own_file_is_named_with_its_place(folder, capsys, name, old, new, problem):
    """Relative to the folder's parent, as a person would type it."""
    path = folder / name
    path.write_text(path.read_text().replace(old, new))

    assert main(["show", MINE]) == 4
    assert f"my-configs/{problem}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"messages": [{"role": "user", "content": "a"}]}',
            'a row is {"instruction": ..., "response": ...} and nothing else (got "messages"); write a chat\'s last',
        ),
        ('{"text": "a"}', 'nothing else (got "text")'),
        ("5", "nothing else (got int)"),
        ('{"instruction": "a", "response": " "}', "must be text and not blank"),
    ],
)
def test_a_line_that_is_no_row_is_refused_before_anything_is_trained(folder, capsys, line, problem):
    """The user's own file: its line and the form that is expected, as a usage error, before torch is imported."""
    with (folder / "data/mine/train.jsonl").open("a") as file:
        file.write(line + "\n")

    assert main(["show", MINE]) == 4
    said = capsys.readouterr().err
    assert f"data.train: {folder}/data/mine/train.jsonl:9: " in said
    assert problem in said


def test_rows_are_read_as_far_as_that_costs_no_time(folder, monkeypatch):
    """A line far into a large file is left to the training, which refuses it likewise."""
    monkeypatch.setattr("tunecheck.core.records.BEFOREHAND_BYTES", 100)
    with (folder / "data/mine/train.jsonl").open("a") as file:
        file.write("[]\n")

    load_run(find_run(MINE))
    with pytest.raises(BadRow, match=r"train.jsonl:9: a row is") as caught:
        read_rows(folder / "data/mine/train.jsonl", "train")
    assert outcome_of(caught.value) is AttemptOutcome.MISCONFIGURED
