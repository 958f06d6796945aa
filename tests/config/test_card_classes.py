"""The documents' four recommended configurations: each suits the quick run, and the doctor picks the right one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import CARD, machine
from shipped import load_runs

from tunecheck.cli import main
from tunecheck.config import find_run, load_run
from tunecheck.config.cards import card_for, card_names
from tunecheck.config.schema import Run
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import project_folder, shipped_folder
from tunecheck.core.units import GIB
from tunecheck.hardware.doctor import card_class
from tunecheck.session.admission import obstacle

QUICK = "quick/smollm2-135m-qlora"
ASKED = {
    "16gb": {
        "strategy": "full",
        "device": "auto",
        "fallback": ["lean", "offload", "cpu"],
        "training.micro_batch_size": 8,
        "training.precision": "auto",
    },
    "8gb": {
        "strategy": "adapter_layers",
        "device": "auto",
        "fallback": ["lean", "offload", "cpu"],
        "training.micro_batch_size": 4,
        "training.gradient_checkpointing": True,
    },
    "small": {"strategy": "adapter_layers", "device": "cpu", "evaluation.device": "cuda", "fallback": []},
    "cpu": {
        "strategy": "adapter_layers",
        "device": "cpu",
        "training.micro_batch_size": 16,
        "training.precision": "fp32",
        "evaluation.device": "training",
    },
}
"""What document 002 recommends, as keys of a run."""


def shipped_files(folder: str) -> list[Path]:
    """The shipped classes, without one's own."""
    return [shipped_folder() / "configs" / folder / f"{name}.yaml" for name in ASKED]


def run_for(card: str, *settings: str) -> Run:
    """The quick run as suits this card class."""
    return load_run(find_run(QUICK), settings, card)


def test_every_class_of_the_document_is_on_disk():
    """The largest first, the machine without a GPU last, whatever classes of one's own are between them."""
    names = card_names()

    assert [name for name in names if name in ASKED] == list(ASKED) == ["16gb", "8gb", "small", "cpu"]
    assert names[-1] == "cpu"


@pytest.mark.parametrize("card", ASKED)
def test_a_class_says_what_the_document_recommends(card):
    """On the quick run, with the rest of its keys as they were."""
    run, plain = run_for(card), load_run(find_run(QUICK))

    def value(path):
        section, _, key = path.rpartition(".")
        return getattr(getattr(run, section) if section else run, key)

    assert {path: value(path) for path in ASKED[card]} == ASKED[card]
    assert (run.lora, run.quantization, run.vram) == (None, None, None)
    assert (run.model, run.data, run.training.max_steps) == (plain.model, plain.data, plain.training.max_steps)
    assert run.fingerprint != plain.fingerprint


@pytest.mark.parametrize("tier", ["quick", "convergence"])
@pytest.mark.parametrize("card", ASKED)
def test_the_tiers_that_run_everywhere_take_every_class(card, tier):
    """No rule between keys is broken; a trainer of one's own may refuse what a class asks for."""
    plain = [run for run in load_runs(tier) if not run.comparison and run.trainer == "native"]
    runs = [load_run(find_run(f"{tier}/{run.id}"), (), card) for run in plain]
    assert {run.strategy for run in runs} == {ASKED[card]["strategy"]}


def test_a_comparison_stays_as_it_is():
    """Its rows are the strategies; a class says which one to take."""
    compared = {run.id: run for run in load_runs("convergence") if run.comparison}

    assert compared
    assert compared == {run.id: run for run in load_runs("convergence", (), "small") if run.comparison}


@pytest.mark.parametrize("name", ["memory/smollm2-135m-lean", "extended/tinyllama-1.1b-qlora", "full/llama-7b-qlora"])
def test_a_class_is_refused_where_the_limits_are_another_strategys(name):
    """256 MiB is the ceiling of QLoRA, not of what a 16 GB card may train."""
    with pytest.raises(ConfigError, match="--card 16gb: applies to quick and convergence only"):
        load_run(find_run(name), (), "16gb")


def test_an_override_goes_before_the_class():
    """What a person types last counts."""
    assert run_for("cpu", "training.micro_batch_size=3").training.micro_batch_size == 3


def test_a_class_that_is_not_there_is_refused_by_name():
    """With the nearest one that is."""
    known = r"configs/cards has no '8g' \(did you mean '8gb'\?\); known: (\S+, )*16gb, (\S+, )*8gb"
    with pytest.raises(ConfigError, match=known):
        run_for("8g")


def test_a_class_that_does_not_suit_a_run_is_told_with_its_place():
    """The file and line of the class, not of the run."""
    with pytest.raises(ConfigError, match=r"configs/cards/8gb.yaml:\d+:\d+: training.precision: should be 'auto'"):
        run_with_bad_card()


def run_with_bad_card() -> Run:
    """The class's place, under a --set that its own key does not survive."""
    import tunecheck.config.cards as cards

    real = cards._card
    with pytest.MonkeyPatch.context() as patch:

        def spoiled(name):
            card, document = real(name)
            card.run["training"]["precision"] = "fp8"
            return card, document

        patch.setattr(cards, "_card", spoiled)
        return run_for("8gb")


@pytest.mark.parametrize(
    ("total_gib", "card"),
    [(None, "cpu"), (0.5, "small"), (6, "small"), (7.75, "8gb"), (12, "8gb"), (15.6, "16gb"), (140, "16gb")],
)
def test_the_class_follows_from_the_cards_memory(monkeypatch, total_gib, card):
    """A card sold as 8 or 16 GB shows a little less."""
    monkeypatch.setattr("tunecheck.config.source.config_files", shipped_files)
    assert card_for(None if total_gib is None else round(total_gib * GIB)) == card


def test_the_doctor_names_the_class_of_this_machine(monkeypatch):
    """By its largest card; a card that keeps its memory to itself gets no advice."""
    small = dataclasses.replace(CARD, total_bytes=6 * GIB)
    silent = dataclasses.replace(CARD, total_bytes=None)
    monkeypatch.setattr("tunecheck.config.source.config_files", shipped_files)

    [both] = card_class(machine(small, dataclasses.replace(CARD, total_bytes=24 * GIB)))
    [none] = card_class(machine())
    assert both.found == "16gb: the largest GPU has 24 GiB; train with its settings: `tunecheck run quick --card 16gb`"
    assert none.found.startswith("cpu: no GPU")
    assert card_class(machine(silent)) == []


def test_a_run_that_evaluates_on_a_gpu_needs_one():
    """The class small trains on the CPU, but not without a card."""
    assert obstacle(run_for("small"), machine(CARD)) is None
    assert "needs a GPU" in str(obstacle(run_for("small"), machine()))
    assert obstacle(run_for("cpu"), machine()) is None


def test_the_flag_reaches_the_command_line(capsys):
    """`show` resolves the run as pytest does; a class that is not there is status 4."""
    assert main(["show", QUICK, "--card", "16gb"]) == 0
    assert "strategy: full" in capsys.readouterr().out
    assert main(["show", QUICK, "--card", "16"]) == 4
    assert "configs/cards has no '16'" in capsys.readouterr().err


def test_the_flag_reaches_the_tiers():
    """Collection asks the checks of the changed run; a wrong class is pytest's own status for a wrong request."""

    def collected(card):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "quick", "tiers", "--card", card]
        return subprocess.run(command, cwd=project_folder(), capture_output=True, text=True)

    good, bad = collected("cpu"), collected("9gb")

    assert good.returncode == 0
    assert "loss_oracle" in good.stdout
    assert "adapter_algebra" not in good.stdout
    assert bad.returncode == 4
    assert "configs/cards has no '9gb'" in bad.stdout + bad.stderr
