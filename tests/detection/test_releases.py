"""The tables of benchmarks.releases: pairs of releases and frameworks, tried only by hand since they install."""

from __future__ import annotations

import pytest

from benchmarks.releases import command, frameworks
from benchmarks.releases.framework_inputs import write_inputs
from benchmarks.releases.framework_list import FRAMEWORKS
from benchmarks.releases.framework_table import healthy, results, table
from benchmarks.releases.pairs import PAIRS
from benchmarks.releases.results import pairs_of_releases
from benchmarks.releases.watched import Cost, seen
from tunecheck.checks import CHECKS
from tunecheck.core.errors import SuiteError


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_pair_is_whole(pair):
    """Its training and its checks exist, and its releases are exact."""
    assert (command.TRAININGS / pair.training).is_file()
    assert pair.named_by, "nothing could name it"
    assert set(pair.named_by) <= set(CHECKS)
    assert pair.bad != pair.good
    assert all("==" in package for package in (*pair.bad, *pair.good)), "a release must be exact"


def test_the_results_are_of_known_pairs_in_their_order():
    """No row of a pair that is gone."""
    names = [row["name"] for row in pairs_of_releases()]
    assert names == [name for name in PAIRS if name in names]


@pytest.mark.parametrize("main", [command.main, frameworks.main], ids=["pairs", "frameworks"])
def test_an_unknown_name_is_a_usage_error_that_says_how_to_list_them(main, capsys):
    """As for every command."""
    assert main(["--only", "nothing-like-it"]) == 4
    told = capsys.readouterr().err
    assert "nothing-like-it" in told
    assert "--list" in told


def test_the_frameworks_results_are_of_known_trainings():
    """No row of a training that is gone."""
    assert all(row["variant"] in ("", *FRAMEWORKS[row["framework"]].trainings) for row in results())


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("lora, packed", ["lora, packed"]),
        ("lora", ["lora"]),
        ("dropout", ["lora, dropout"]),
        ("LORA", []),
        ("", list(FRAMEWORKS["TRL 0.24"].trainings)),
    ],
)
def test_one_training_can_be_tried_alone(wanted, found):
    """By its name; by a part of it where it is no name."""
    assert frameworks.variants_of(FRAMEWORKS["TRL 0.24"], wanted) == found


def test_an_unknown_training_is_a_usage_error(capsys):
    """Nothing is installed for it."""
    assert frameworks.main(["--only", "TRL 0.24", "--variant", "nothing-like-it"]) == 4
    assert "'nothing-like-it': --list lists them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"outcome": "pass", "failed": {}, "same": True}, True),
        ({"outcome": "pass", "failed": {}, "same": False, "repeats": True}, False),
        ({"outcome": "pass", "failed": {}, "same": False, "repeats": False}, True),
        ({"outcome": "fail", "failed": {"loss_oracle": "known"}, "same": True}, True),
        ({"outcome": "fail", "failed": {"loss_oracle": "known", "trainable_set": "new"}, "same": True}, False),
        ({"outcome": "inconclusive", "failed": {}, "same": True}, False),
        ({"outcome": "not tried", "failed": {}, "same": False}, False),
    ],
)
def test_a_row_is_healthy_where_a_known_bug_alone_is_named_and_nothing_changed(row, expected):
    """What differs without watch too was not changed by it."""
    assert healthy({"framework": "TRL 0.24", **row}) is expected


def test_processes_without_one_verdict_are_no_row():
    """Their checks would be added up."""
    run = {"findings": [], "reason": ""}
    apart = [run | {"trace_file": name} for name in ("watch-hf.jsonl", "watch-hf-rank1.jsonl")]
    with pytest.raises(SuiteError, match="each by itself"):
        seen({"verdict": "pass", "runs": apart}, Cost(cpu_seconds=1.0, peak_mib=1.0), "")


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_a_frameworks_commands_can_be_filled_in(framework):
    """No placeholder is unknown."""
    known = dict.fromkeys(("python", "bin", "trainings", "out", "model", "tiny", "folder"), "here")
    for command_words in framework.trainings.values():
        assert all(word.format(**known) for word in command_words)


def test_the_inputs_of_the_frameworks_are_whole(tmp_path):
    """Rows in each form, and every settings file with its placeholders filled in."""
    write_inputs(tmp_path, dict.fromkeys(("model", "tiny", "out", "folder"), "/a/folder"))

    assert {"facts.json", "dataset_info.json", "llamafactory.yaml"} <= {path.name for path in tmp_path.iterdir()}
    assert all("/a/folder" in path.read_text() for path in tmp_path.glob("*.yaml"))
    assert all((tmp_path / name / "train.jsonl").stat().st_size for name in ("completions", "conversations"))


def test_a_row_of_the_table_says_what_was_judged_and_what_could_not_be_tried():
    """Judged, passed, failed, unjudged with the reason, cost; and what was not tried."""
    tried = {
        "framework": "TRL 0.24",
        "variant": "lora",
        "versions": {"trl": "0.24.0"},
        "outcome": "fail",
        "reason": "",
        "judged": 30,
        "passed": 29,
        "failed": {"loss_oracle": "step 0"},
        "unjudged": {"dtypes_as_configured": "nothing declares them"},
        "same": False,
        "cpu_seconds_more": 2.3,
        "peak_mib_more": 31,
    }
    untried = {"framework": "axolotl", "variant": "", "outcome": "not tried", "reason": "no wheel"}
    text = table([tried, untried])
    assert (
        "| TRL 0.24 | lora | trl 0.24.0 | 30 | 29 | `loss_oracle`: known bug, huggingface/transformers#46204 | 1 |"
        in text
    )
    assert "- `dtypes_as_configured`: nothing declares them (1)" in text
    assert "- axolotl : no wheel" in text
