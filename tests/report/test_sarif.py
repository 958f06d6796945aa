"""results.sarif: what SARIF 2.1.0 requires is there, and a failure points to the user's line. Made-up traces."""

from __future__ import annotations

import json

from report_rows import other
from traces import adding, healthy, with_record, with_run

from tunecheck.core import evidence as e
from tunecheck.report.files import sarif
from tunecheck.results import Report, verdict_of
from tunecheck.results.rejudge import judged_again
from tunecheck.results.stored import VERDICTS, write_verdict


def report_of(*runs, interrupted=False):
    """A session of these runs."""
    return Report(
        started_at="2026-11-22T12:00:00+00:00",
        seconds=1.0,
        verdict=verdict_of(runs, interrupted),
        command="tunecheck watch -- python train.py",
        runs=runs,
    )


def watched(folder):
    """A run of a script whose callback and compute_loss are at fault."""
    codes = [
        e.UserCode(role="script", name="main", file=str(folder / "train.py"), line=40),
        e.UserCode(role="compute_loss", name="Mine.compute_loss", file=str(folder / "losses.py"), line=7),
        e.UserCode(role="callback", name="Stepping", file="/elsewhere/callbacks.py", line=3),
    ]
    trace = with_record(healthy(), e.Step, loss=lambda loss: 2 * loss)
    trace = with_record(trace, e.CallOrder, calls=("forward", "backward", "step", "step", "clear"))
    return judged_again(with_run(adding(trace, *codes), tier="watch"), [], trace_file="watch-train.jsonl")


def log_of(report, folder):
    """The log as it is written, each of its parts what the specification requires."""
    log = json.loads(sarif(report))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["name"] == "tunecheck"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        assert all(note["message"]["text"] for note in invocation["toolExecutionNotifications"])
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["message"]["text"]
        # a result that is no failure has no level, by the specification
        assert result["level"] == ("error" if "kind" not in result else "none")
        for location in (*result["locations"], *result["relatedLocations"]):
            place = location["physicalLocation"]
            assert place["region"]["startLine"] >= 1
            assert place["artifactLocation"]["uri"]
    return run


def test_a_failure_points_to_the_line_of_the_script(tmp_path, monkeypatch):
    """The override that the check is about, else where the script trains; relative to the repository."""
    monkeypatch.chdir(tmp_path)
    results = {result["ruleId"]: result for result in log_of(report_of(watched(tmp_path)), tmp_path)["results"]}
    uris = {rule: result["locations"][0]["physicalLocation"] for rule, result in results.items()}

    assert uris["loss_oracle"] == {
        "artifactLocation": {"uri": "losses.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7},
    }
    assert uris["calls_in_order"]["artifactLocation"] == {"uri": "file:///elsewhere/callbacks.py"}
    assert "where: compute_loss at losses.py:7" in results["loss_oracle"]["message"]["text"]


def test_a_places_uri_is_percent_encoded(tmp_path, monkeypatch):
    """A name may hold a space, '#', '%' or a letter that no URI has."""
    folder = tmp_path / "my script #1 50% é"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    results = {result["ruleId"]: result for result in log_of(report_of(watched(folder)), folder)["results"]}
    place = results["loss_oracle"]["locations"][0]["physicalLocation"]["artifactLocation"]

    assert place["uri"] == "my%20script%20%231%2050%25%20%C3%A9/losses.py"


def test_places_are_read_back_with_the_verdict(tmp_path):
    """As they were."""
    report = report_of(watched(tmp_path))
    path = write_verdict(report, tmp_path)

    assert VERDICTS.read(path).runs[0].findings == report.runs[0].findings
    assert any(finding.places for finding in report.runs[0].findings)


def test_a_run_that_could_not_be_judged_is_a_notification(tmp_path):
    """Not a result, and the session was not successful."""
    run = log_of(report_of(other("error", "watch/train", "the command trained nothing")), tmp_path)

    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is False
    assert "trained nothing" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_pass_has_no_results(tmp_path):
    """And a run of the suite's own points to its configuration where it fails."""
    passed = judged_again(healthy(), [], trace_file="x.jsonl")
    configured = with_run(with_record(healthy(), e.Gradients, left_over=("a",)), tier="quick", id="smollm2-135m-qlora")
    failed = log_of(report_of(judged_again(configured, [], trace_file="y.jsonl")), tmp_path)["results"]

    assert log_of(report_of(passed), tmp_path)["results"] == []
    uri = failed[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri.endswith("configs/quick/smollm2-135m-qlora.yaml")
