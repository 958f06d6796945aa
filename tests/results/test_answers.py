"""What a user answers to findings: reasons on the command line and in files. No training, no precision."""

from __future__ import annotations

import re

import pytest
from traces import healthy, with_run

from tunecheck.core.errors import ConfigError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.paths import checkout_folder
from tunecheck.results import summarize
from tunecheck.results.answers import Answers, read_ignored, settings_for

FAILED = Finding(check="finite", status=Status.FAILED)
SUSPECTED = Finding(check="rows_whole", status=Status.SUSPECTED, meant="titles")
PASSED = Finding(check="loss_oracle", status=Status.PASSED)


def test_a_suspicion_fails_when_strict_and_nothing_else_changes():
    """A failure and a pass stay what they are."""
    strict = Answers(strict=True)
    assert [strict.applied(f).status for f in (FAILED, SUSPECTED, PASSED)] == [
        Status.FAILED,
        Status.FAILED,
        Status.PASSED,
    ]
    assert Answers().applied(SUSPECTED) is SUSPECTED


def test_an_ignored_finding_keeps_its_reason_and_never_passes():
    """It is counted apart, strict or not; an answer that hides nothing is told."""
    answers = Answers(
        ignore={"finite": "one bad row", "rows_whole": "titles only", "loss_oracle": "focal"}, strict=True
    )
    applied = [answers.applied(finding) for finding in (FAILED, SUSPECTED, PASSED)]
    assert [f.status for f in applied] == [Status.IGNORED, Status.IGNORED, Status.PASSED]
    assert [f.meant for f in applied[:2]] == ["one bad row", "titles only"]
    assert answers.needless([FAILED, SUSPECTED, PASSED]) == ("loss_oracle",)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rows_whol=titles", "did you mean 'rows_whole'"),
        ("nothing_like_it=x", "`tunecheck explain` lists all"),
        ("rows_whole", "lacks a reason"),
        ("rows_whole=  ", "lacks a reason"),
        ("=x", "no check is called"),
    ],
)
def test_an_answer_names_a_check_and_a_reason(words, told):
    """Else it is a usage error that says what is wrong."""
    assert read_ignored(["rows_whole=titles = short"]) == {"rows_whole": "titles = short"}
    with pytest.raises(ConfigError, match=told):
        read_ignored([words])


@pytest.mark.parametrize(
    ("finding", "answers", "outcome"),
    [
        (SUSPECTED, Answers(), "pass"),
        (SUSPECTED, Answers(strict=True), "fail"),
        (FAILED, Answers(ignore={"finite": "known"}), "pass"),
        (FAILED, Answers(ignore={"rows_whole": "titles"}, strict=True), "fail"),
    ],
)
def test_answers_make_the_outcome(finding, answers, outcome):
    """A suspicion fails when strict alone; an answer hides its own check alone."""
    row = summarize(healthy(), [PASSED, finding], trace_file="", seconds=0.0, answers=answers)
    assert row.outcome == outcome
    assert len(row.findings) == 2


def test_what_is_ignored_is_no_evidence_of_a_pass():
    """A training of which nothing else was judged is inconclusive."""
    answers = Answers(ignore={"finite": "known"})
    assert summarize(healthy(), [FAILED], trace_file="", seconds=0.0, answers=answers).outcome == "inconclusive"


def test_the_docs_example_is_read(tmp_path):
    """The settings that docs/watch.md shows, word for word."""
    (example,) = re.findall(r"```toml\n(.*?)```", (checkout_folder() / "docs" / "watch.md").read_text(), re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(example)
    shown = settings_for("a_weighted_run.py", tmp_path)
    assert (shown.steps, shown.strict, shown.expect) == (10, True, ("accumulation=4",))
    assert shown.ignore.keys() == {"rows_whole", "rows_come_once"}


@pytest.mark.parametrize("text", ["[tool", "[tool]\ntunecheck = 3"], ids=["no toml", "no table"])
def test_a_project_file_that_cannot_be_read_is_not_passed_over(tmp_path, text):
    """It may hold answers that would be lost without a word."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        settings_for("train.py", tmp_path)


def test_the_nearest_file_counts_and_a_scripts_section_comes_after(tmp_path):
    """pyproject.toml above the folder is found; tunecheck.toml goes before it; globs match the script."""
    below = tmp_path / "experiments"
    below.mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tunecheck]\nsteps = 5\nstrict = true\n[tool.tunecheck.ignore]\nrows_whole = "titles only"\n'
        '[tool.tunecheck.scripts."*toy*.py"]\nstrict = false\nexpect = {accumulation = 4}\n'
        'ignore = {rows_come_once = "by weight"}\n'
    )
    common = settings_for("train.py", below)
    assert (common.steps, common.strict, common.expect) == (5, True, ())
    assert common.ignore == {"rows_whole": "titles only"}
    toy = settings_for("src/a_toy_run.py", below)
    assert (toy.steps, toy.strict, toy.expect) == (5, False, ("accumulation=4",))
    assert toy.ignore == {"rows_whole": "titles only", "rows_come_once": "by weight"}
    (below / "pyproject.toml").write_text('[project]\nname = "other"\n')  # says nothing of tunecheck
    assert settings_for("train.py", below).steps == 5
    (below / "tunecheck.toml").write_text("steps = 7\n")
    assert settings_for("train.py", below).steps == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stepps = 3", "known keys: expect, ignore, strict, steps"),
        ("steps = true", "steps: should be a whole number"),
        ("strict = 1", "strict: should be true or false"),
        ('ignore = "x"', "ignore: should be a table"),
        ("ignore = {rows_whole = 3}", "lacks a reason"),
        ("scripts = 3", "should hold a section for each glob"),
        ('[scripts."*.py"]\nsteps = "5"', "steps: should be a whole number"),
        ("steps = ", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_a_usage_error(tmp_path, text, told):
    """With the file, the key and the rule."""
    (tmp_path / "tunecheck.toml").write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        settings_for("train.py", tmp_path)
    assert "tunecheck.toml" in str(caught.value)


def test_a_run_of_the_suites_ignores_what_its_file_says():
    """And counts it; another failure fails it still."""
    trace = with_run(healthy(), ignore={"loss_falls": "too short"})
    failed = [Finding(check=check, status=Status.FAILED) for check in ("loss_falls", "finite")]
    passed = Finding(check="base_untouched", status=Status.PASSED)
    rows = [summarize(trace, [*found, passed], trace_file="", seconds=1.0) for found in (failed[:1], failed)]
    assert [(row.outcome, len(row.ignored), len(row.failed)) for row in rows] == [("pass", 1, 0), ("fail", 1, 1)]


def test_a_file_that_is_no_toml_is_named_with_its_place_and_the_way_out(tmp_path):
    """An unquoted word, as it is often written."""
    (tmp_path / "tunecheck.toml").write_text("strict = yess\n")

    with pytest.raises(
        ConfigError, match=r"tunecheck.toml: not valid TOML: .*line 1, column 10.*texts stand in quotes"
    ):
        settings_for("train.py", tmp_path)
