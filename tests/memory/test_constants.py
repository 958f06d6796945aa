"""What a card takes for itself: measured where a file of it lies, else assumed, and never both at once."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from estimates import ANSWER, CARD, QUICK, quick
from tiny_models import as_python

from tunecheck.cli import main
from tunecheck.memory import MeasuredPeak, need_of, predict
from tunecheck.memory.constants import CUDA_CONTEXT, UNMEASURED, own_constants_file, share_of
from tunecheck.runner.fallback_chain import VARIANTS

NUMBERS = {"cublas_workspace_bytes": 7, "context_with_libraries_bytes": 11, "torch": "2.13.0"}
FOUND = {"card": CARD, "driver": "580", "default": NUMBERS, "deterministic": {**NUMBERS, "cublas_workspace_bytes": 3}}


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    """No card was measured, no prediction of this machine is seen, and a child simulates at once."""
    as_python(monkeypatch, tmp_path, f"cat > /dev/null; echo '{json.dumps(ANSWER)}'")
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setattr("tunecheck.memory.constants.evidence_folder", lambda: tmp_path / "reports" / "evidence")


def measured(text=None, path=None):
    """scripts/card-constants.py was here."""
    text = text or json.dumps(FOUND)
    path = path or own_constants_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_card_of_the_same_name_was_measured():
    """Another one's numbers are not taken, and a deterministic training has its own workspaces."""
    measured()

    share = share_of(CARD)
    assert (share.cublas_workspace.bytes, share.cuda_context.bytes) == (7, 11)
    assert share.cuda_context.provenance == "measured"
    assert share.cuda_context.source == f"{CARD}, driver 580, torch 2.13.0, cards/constants.json"
    assert share_of(CARD, deterministic=True).cublas_workspace.bytes == 3
    assert share_of("NVIDIA T4") == share_of(None) == UNMEASURED


@pytest.mark.parametrize(
    ("capability", "deterministic", "expected"),
    [
        ("9.0", False, 64 * 2**20),
        ("12.0", False, 64 * 2**20),
        ("8.9", False, 2 * 8_519_680),
        ("7.5", False, 2 * 8_519_680),
        ("8.9", True, 64 * 2**20),
        (None, False, 64 * 2**20),
    ],
)
def test_the_workspace_is_that_of_the_compute_capability(capability, deterministic, expected):
    """But in a deterministic training, whose configuration of cuBLAS is the same everywhere."""
    share = share_of("a GPU", deterministic=deterministic, capability=capability)
    assert share.cublas_workspace.bytes == expected

    predict(quick("training.deterministic=true") if deterministic else quick())
    run = quick("training.deterministic=true") if deterministic else quick()
    assert need_of(run, gpu_name="a GPU", capability=capability).bytes == 3 * 10**9 + expected + CUDA_CONTEXT.bytes


def test_evidence_counts_after_this_machines_own(tmp_path):
    """Which is nearer to the truth here."""
    evidence = tmp_path / "reports" / "evidence" / "nvidia-h200" / "constants.json"
    measured(json.dumps({**FOUND, "default": {**NUMBERS, "context_with_libraries_bytes": 5}}), evidence)
    assert share_of(CARD).cuda_context.bytes == 5

    measured()
    assert share_of(CARD).cuda_context.bytes == 11


@pytest.mark.parametrize(
    "text",
    ['{"card"', "[]", json.dumps({"card": CARD}), json.dumps({**FOUND, "default": {"cublas_workspace_bytes": "7"}})],
    ids=["cut off", "a list", "no numbers", "words"],
)
def test_a_file_that_proves_nothing_is_passed_over(text):
    """Predictions go on as before."""
    measured(text)
    assert share_of(CARD) == UNMEASURED


def test_needs_follow_the_measurement():
    """Of predictions and of measured peaks alike."""
    predict(quick())
    assumed = need_of(quick(), gpu_name=CARD)
    measured()

    assert need_of(quick(), gpu_name=CARD).bytes == predict(quick(), card=CARD).process_bytes == 3 * 10**9 + 7 + 11
    assert need_of(quick(), gpu_name=None) == assumed
    peak = MeasuredPeak(card=CARD, allocator_bytes=100, measured_at="2026-12-01")
    assert peak.process_bytes == 111
    other = MeasuredPeak(card="NVIDIA T4", allocator_bytes=100, measured_at="2026-12-01")
    assert other.process_bytes == 100 + CUDA_CONTEXT.bytes


def test_an_estimate_is_for_the_card_that_is_here(monkeypatch, capsys):
    """And says where its numbers are from."""
    measured()
    machine = SimpleNamespace(visible_gpus=(SimpleNamespace(name=CARD, compute_capability="9.0"),))
    monkeypatch.setattr("tunecheck.cli.runs.probe", lambda: machine)

    assert main(["estimate", QUICK, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["constants"]["cuda_context"]["provenance"] == "measured"
    assert main(["estimate", QUICK]) == 0
    assert f"CUDA context: 11 B, measured: {CARD}" in capsys.readouterr().out


def test_all_variants_that_a_run_compares_are_predicted(capsys):
    """Not the first of them alone."""
    assert main(["estimate", "memory/smollm2-135m-order", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["variants"]) == list(VARIANTS)

    assert main(["estimate", "memory/smollm2-135m-order"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("variant "))
    assert [line.split("  ")[0] for line in lines[head + 1 :][: len(VARIANTS)]] == list(VARIANTS)
