"""The tools that benchmarks.peers tries: whole tables, and what counts as named. They are run by hand."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers import command, results
from benchmarks.peers.causes import BUG, CAUSES, GOOD, base_of
from benchmarks.peers.peers import PEERS
from benchmarks.peers.scenarios import Scenario, scenarios
from benchmarks.scripts.bugs import MISTAKES
from benchmarks.scripts.healthy import HEALTHY
from tunecheck.core.paths import project_folder

ADAPTERS = project_folder() / "benchmarks" / "peers" / "adapters"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A function that records what a peer said of scripts, and returns the peer's row."""
    monkeypatch.setattr(results, "RESULTS", tmp_path / "peers")

    def row(**said):
        for name, messages in said.items():
            answer = {"kind": BUG if name in MISTAKES else GOOD, "name": name, "said": messages, "problem": ""}
            results.record(PEERS["torcheck"], {**answer, "cpu_seconds": 1.0})
        (held,) = results.rows()
        return held

    return row


def test_every_peer_has_its_adapter():
    """And no adapter is without a line of the table; every release is exact."""
    assert {path.stem for path in ADAPTERS.glob("*.py")} - {"__init__"} == {peer.adapter for peer in PEERS.values()}
    assert all("==" in peer.packages[0] for peer in PEERS.values() if peer.packages)


def test_the_words_of_causes_are_those_of_mistakes():
    """And both kinds of healthy scripts that mistakes are made in exist."""
    assert CAUSES.keys() <= MISTAKES.keys()
    assert {base_of(name) for name in CAUSES} <= HEALTHY.keys()
    assert all(re.compile(words) for words in CAUSES.values())


def test_scripts_are_single_files_too():
    """That a static analyzer can read; every seventh, since each is parsed anew."""
    for scenario in scenarios()[::7]:
        compile(scenario.source(), scenario.name, "exec")


def test_the_file_has_what_the_change_needs():
    """Helpers, imports and the call."""
    source = Scenario(BUG, "same_batch").source()

    assert "class _Endless" in source
    assert "import itertools" in source
    assert "for change in (same_batch,):" in source
    assert "def labels_shifted" not in source
    assert "lora(lora_dropout=0.1)" in Scenario(GOOD, "lora dropout").source()


def test_what_is_said_of_the_healthy_script_too_does_not_count(measured):
    """But for its numbers: they differ from script to script."""
    row = measured(
        lora=["norm 0.5 is large"],
        same_batch=["norm 0.7 is large"],
        padding_learned=["norm 0.7 is large", "padding is supervised"],
        labels_shifted=["something is odd"],
    )

    assert (row.named, row.flagged, row.healthy_flagged) == (("padding_learned",), ("labels_shifted",), ("lora",))
    assert (row.bugs, row.healthy) == (3, 1)


def test_a_name_with_a_number_is_no_measurement():
    """layers.1 is another layer than layers.0."""
    assert results.plain("layers.1.q_proj should change") != results.plain("layers.0.q_proj should change")
    assert results.plain("loss 1.5e-3, 20%") == results.plain("loss 2, 31%")


def test_the_committed_results_are_of_known_peers_and_scripts():
    """So that the page can be written."""
    known = {f"{one.kind}: {one.name}" for one in scenarios()}

    assert {path.stem for path in results.RESULTS.glob("*")} <= {peer.adapter for peer in PEERS.values()}
    assert all(results.answers_of(peer).keys() <= known for peer in PEERS.values())


@pytest.mark.parametrize("option", ["--only", "--script"])
def test_an_unknown_name_is_a_usage_error_that_says_how_to_list_them(option, capsys):
    """As for every command."""
    assert command.main([option, "nothing-like-it"]) == 4
    told = capsys.readouterr().err
    assert "nothing-like-it" in told
    assert "list" in told
