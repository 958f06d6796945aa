"""GitHub Actions: the step's summary and annotations, written only where GitHub reads them."""

from __future__ import annotations

import pytest
from report_rows import FAILED, MISSING, PASSED, other, report, row

from tunecheck.core.errors import SuiteError
from tunecheck.report.files import MOST_ANNOTATIONS, append_summary, summary_markdown, workflow_commands
from tunecheck.session import written

ACTIONS = {"GITHUB_ACTIONS": "true"}


def test_nothing_is_said_outside_of_github(tmp_path):
    """A terminal shows no workflow commands, and no file is made."""
    made = report(row(FAILED, outcome="fail"))
    append_summary(made, {})

    assert workflow_commands(made, {}) == []
    assert workflow_commands(made, {"GITHUB_ACTIONS": "false"}) == []
    assert list(tmp_path.iterdir()) == []


def test_the_summary_is_added_to_what_the_step_has(tmp_path):
    """Each tier of a night adds its own."""
    file = tmp_path / "step.md"
    file.write_text("before\n")
    made = report(row(FAILED, outcome="fail"))
    append_summary(made, {"GITHUB_STEP_SUMMARY": str(file)})
    append_summary(made, {"GITHUB_STEP_SUMMARY": str(file)})

    assert file.read_text(encoding="utf-8") == "before\n" + 2 * f"{summary_markdown(made)}\n"


def test_a_summary_that_cannot_be_written_is_named(tmp_path):
    """And where the text is."""
    with pytest.raises(SuiteError, match=r"GITHUB_STEP_SUMMARY.*cannot be written.*summary\.md"):
        append_summary(report(), {"GITHUB_STEP_SUMMARY": str(tmp_path)})


def test_a_session_appends_its_summary_and_survives_a_refusal(tmp_path, monkeypatch, caplog):
    """The verdict is on disk before."""
    folder, step = tmp_path / "session", tmp_path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    written(report(row(PASSED)), folder)
    assert step.read_text(encoding="utf-8").startswith("## tunecheck: PASS")

    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    written(report(row(PASSED)), folder)
    assert "$GITHUB_STEP_SUMMARY" in caplog.text
    assert (folder / "verdict.json").exists()


def test_a_failure_is_one_line_that_unfolds():
    """Measured, limit, meaning and remedy, each in its line."""
    (line,) = workflow_commands(report(row(FAILED, PASSED, outcome="fail")), ACTIONS)

    assert line == (
        f"::error title=quick/tiny-qlora%3A base_untouched::rule: {FAILED.rule}%0Ameasured: 3, limit 2%0A"
        "detail: 3 frozen tensors changed%0Ausually means: the optimizer holds base weights%0A"
        "attribution: environment: others on the card%0Awhat to do: pass it the trainable parameters only%0A"
        'if it is meant: tunecheck run --ignore base_untouched="WHY"%0A'
        "read more: tunecheck explain base_untouched"
    )


def test_foreign_text_cannot_end_a_command_or_begin_another():
    """Line breaks, percent signs, and the separators of properties are escaped."""
    bad = row(FAILED, outcome="fail", run="x,file=/etc::\n::warning::%0A")
    (line,) = workflow_commands(report(bad), ACTIONS)

    assert line.startswith("::error title=quick/x%2Cfile=/etc%3A%3A %3A%3Awarning%3A%3A%250A%3A base_untouched::rule: ")
    assert "\n" not in line


def test_runs_without_a_judgement_are_errors_too():
    """A crash, missing evidence, a refusal under --require-gpu; a run that is skipped is none."""
    made = report(
        other("error", "quick/crashed", "the training crashed: SIGSEGV"),
        row(MISSING, outcome="inconclusive", run="vague"),
        row(outcome="fail", run="refused", reason="is to run on a GPU"),
        other("skipped", "full/big", "needs 24 GiB"),
        row(PASSED, run="good"),
    )

    assert [line.split("::")[1] for line in workflow_commands(made, ACTIONS)] == [
        "error title=quick/crashed%3A error",
        "error title=quick/vague%3A inconclusive",
        "error title=quick/refused%3A fail",
    ]


def test_what_github_would_drop_is_counted():
    """It shows ten errors of a step."""
    lines = workflow_commands(report(*[row(FAILED, outcome="fail", run=f"run-{n}") for n in range(14)]), ACTIONS)

    assert len(lines) == MOST_ANNOTATIONS
    assert lines[-1] == "::error title=tunecheck::5 more: see the summary of this step"
