"""The report: what traces and findings amount to, and how every output shows it."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_rows import FAILED, MISSING, PASSED, other, report, row
from rich.console import Console

from benchmarks.scripts.corpus import traces
from tunecheck import __version__
from tunecheck import results as reports
from tunecheck.core.errors import SuiteError, TraceError
from tunecheck.core.evidence import AttemptEnd, AttemptStart, Evaluation, Phase, Record, RunHeader, Setup, Step, Weights
from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import facts, human_bytes, human_number, human_seconds, one_line, printable
from tunecheck.core.trace import Attempt, Trace
from tunecheck.report.files import SIZE_LIMIT_BYTES, junit_xml, summary_markdown
from tunecheck.report.terminal import BROKEN, LEVELS, print_changes, print_report, sparkline
from tunecheck.report.view import machine
from tunecheck.results import Report, RunReport, Tried, exit_code, summarize
from tunecheck.results.baseline import FigureComparison
from tunecheck.results.rejudge import judged_again
from tunecheck.results.stored import VERDICTS, json_text, plain, write_verdict

RANDOM = Finding(check="loss_falls", status=Status.UNJUDGED, detail="the weights are random", expected=True)
NOT_A_NUMBER = Finding(check="finite", status=Status.FAILED, measured=math.nan, limit=math.inf, detail="loss is NaN")
WORSE = FigureComparison(
    run="quick/tiny", figure="probe_loss", value=math.inf, status="worse", sessions=9, previous=-math.inf
)


def attempt(
    *records: Record, purpose: str = "train", device: str = "cpu", outcome: str | None = "finished", detail: str = ""
) -> Attempt:
    """An attempt that ended like this; an outcome of None was cut off."""
    start = AttemptStart(purpose=purpose, device=device, reason="requested", changes={})
    return Attempt(start, records, AttemptEnd(outcome=outcome, detail=detail, seconds=2.5) if outcome else None)


def trace(*attempts: Attempt) -> Trace:
    """A trace of these attempts."""
    run = {"id": "tiny-qlora", "tier": "quick", "model": {"name": "tiny"}}
    header = RunHeader(
        schema=1, tunecheck_version="0.1.0", started_at="", run=run, fingerprint="0123abcd", environment={}
    )
    return Trace(header, attempts)


def setup(device: str, name: str) -> Setup:
    """The set-up of a run on this device."""
    return Setup(
        device=device,
        device_name=name,
        precision="bf16",
        threads=2,
        attention="sdpa",
        optimizer="AdamW",
        declared_optimizer="AdamW",
        workarounds=(),
        numerics={},
        versions={},
    )


def step(number: int, loss: float, seconds: float = 0.5) -> Step:
    """An optimizer step over 100 tokens."""
    return Step(
        step=number,
        loss=loss,
        learning_rate=1e-4,
        gradient_norm=1.0,
        supervised_tokens=50,
        tokens=100,
        applied=True,
        seconds=seconds,
    )


def weights(**changes: Any) -> Weights:
    """Weights from the hub, unless changed."""
    hub = Weights(
        model="tiny", source="hub", identifier="some/tiny", revision="f00d", sha256="ab" * 32, pretrained=True
    )
    return replace(hub, **changes)


def probe(number: int, loss: float, split: str = "probe") -> Evaluation:
    """An evaluation after so many steps."""
    return Evaluation(step=number, split=split, loss=loss, tokens=40)


def shown(made: Report, width: int = 80) -> str:
    """What a person without colours sees."""
    out = io.StringIO()
    print_report(made, Console(width=width, no_color=True, force_terminal=False, file=out))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


# Summarising a trace.


@pytest.mark.parametrize(
    ("findings", "outcome", "reason"),
    [
        ([PASSED], "pass", ""),
        ([PASSED, RANDOM], "pass", ""),
        ([PASSED, FAILED, MISSING], "fail", ""),
        ([PASSED, MISSING], "inconclusive", "checks without the evidence they need: memory_returned"),
        ([RANDOM], "inconclusive", "not one check was judged"),
        ([], "inconclusive", "not one check was judged"),
    ],
)
def test_the_findings_of_a_finished_training_decide(findings: list[Finding], outcome: str, reason: str) -> None:
    """One failure fails, missing evidence or no judgement at all is inconclusive, expected gaps are allowed."""
    made = summarize(trace(attempt()), findings, trace_file="t.jsonl", seconds=1.0)
    assert (made.outcome, made.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("attempts", "reason"),
    [
        ((), "no training attempt was made"),
        ((attempt(outcome="hung", detail="no step in 600 s"),), "the training hung: no step in 600 s"),
        ((attempt(outcome="crashed"),), "the training crashed"),
        ((attempt(outcome=None),), "the training was cut off with its session"),
        ((attempt(purpose="repeat"),), "no training attempt was made"),
        ((attempt(outcome="melted"),), "the training melted"),
    ],
)
def test_an_unfinished_training_is_an_error(attempts: tuple[Attempt, ...], reason: str) -> None:
    """However many checks passed on what was seen: an error says what happened."""
    made = summarize(trace(*attempts), [PASSED], trace_file="t.jsonl", seconds=1.0)
    assert (made.outcome, made.reason) == ("error", reason)


def test_a_failure_before_a_crash_fails_and_names_the_crash() -> None:
    """What was judged bad stays bad, and the crash is not lost."""
    made = summarize(trace(attempt(outcome="crashed", detail="SIGSEGV")), [FAILED], trace_file="t", seconds=1.0)
    assert (made.outcome, made.reason) == ("fail", "the training crashed: SIGSEGV")


def test_failed_findings_alone_are_attributed() -> None:
    """Each failed finding of a row has its domain and what speaks for it."""
    failed = replace(FAILED, domain="", evidence="")
    made = summarize(trace(attempt(setup("cpu", "Some CPU"))), [PASSED, failed, MISSING], trace_file="t", seconds=1.0)
    assert [(f.domain, f.evidence) for f in made.findings] == [
        ("", ""),
        ("workload", "trained on the CPU: no GPU was involved"),
        ("", ""),
    ]


def test_a_row_holds_what_the_main_attempt_recorded() -> None:
    """Losses, probe batch, peak, speed and provenance come from the last training attempt, not from those around it."""
    records = (
        setup("cuda:0", "NVIDIA H200"),
        weights(),
        Phase(name="load", seconds=1.0, peak_allocated_bytes=900, process_bytes=5000),
        Phase(name="train", seconds=1.0, peak_allocated_bytes=700),
        probe(0, 4.0),
        probe(0, 9.0, split="heldout"),
        *(step(number, 4.0 - number, seconds) for number, seconds in enumerate((9.0, 9.0, 0.5, 0.25, 1.0))),
        probe(5, 1.5),
    )
    made = summarize(
        trace(attempt(step(0, 99.0), outcome="out_of_memory"), attempt(*records), attempt(purpose="resume")),
        [PASSED],
        trace_file="tiny-qlora.jsonl",
        seconds=30.0,
    )
    assert (made.run, made.tier, made.model, made.fingerprint) == ("tiny-qlora", "quick", "tiny", "0123abcd")
    assert made.device == "cuda:0 NVIDIA H200"
    assert made.weights == "hub some/tiny@f00d abababababab pretrained"
    assert made.losses == (4.0, 3.0, 2.0, 1.0, 0.0)
    assert (made.probe_loss_start, made.probe_loss_end) == (4.0, 1.5)
    assert (made.peak_bytes, made.peak_kind) == (900, "allocator")
    assert made.tokens_per_second == 200.0
    assert (made.seconds, made.trace_file) == (30.0, "tiny-qlora.jsonl")
    assert made.attempts[0] == Tried(
        purpose="train", device="cpu", outcome="out_of_memory", reason="requested", seconds=2.5
    )
    assert [made.attempts[place].purpose for place in (1, 2)] == ["train", "resume"]


def test_what_was_not_measured_stays_unknown() -> None:
    """No step, no phase and one evaluation give None, never a guess; the CPU's peak is the resident one."""
    records = (
        setup("cpu", "Some CPU @ 3 GHz"),
        Phase(name="load", seconds=1.0, process_bytes=50),
        probe(0, 4.0),
        step(0, 4.0),
    )
    made = summarize(trace(attempt(*records)), [], trace_file="", seconds=1.0)
    assert (made.device, made.peak_bytes, made.peak_kind) == ("cpu", 50, "resident")
    assert (made.probe_loss_start, made.probe_loss_end, made.tokens_per_second) == (4.0, None, None)
    capped = replace(setup("cuda:0", "NVIDIA H200"), vram_cap_bytes=8 * 2**30)
    small = summarize(trace(attempt(capped)), [], trace_file="", seconds=1.0)
    assert small.device == "cuda:0 NVIDIA H200 (capped at 8.0 GiB)"
    empty = summarize(trace(attempt(device="cuda:1", outcome="crashed")), [], trace_file="", seconds=1.0)
    assert (empty.device, empty.weights, empty.peak_bytes, empty.peak_kind) == ("cuda:1", "", None, "")


def test_random_weights_say_so() -> None:
    """A row of random weights cannot be mistaken for a pretrained one."""
    random = weights(source="random", identifier="seed 0", revision="", sha256="", pretrained=False)
    made = summarize(trace(attempt(random)), [], trace_file="", seconds=1.0)
    assert made.weights == "random seed 0"


# Verdict and exit code.

PASS, FAIL = row(PASSED), row(FAILED, outcome="fail")
ERROR = other("error", "quick/tiny-lora", "the training crashed: SIGSEGV", seconds=3.0)
SKIP = other("skipped", "full/big", "needs 40 GiB of free GPU memory, this machine has no GPU")
WRONG = replace(
    ERROR,
    attempts=(Tried(purpose="train", device="cpu", outcome="misconfigured", reason="requested", seconds=0.0),),
)
OPEN = row(PASSED, MISSING, outcome="inconclusive", reason="checks without evidence")


@pytest.mark.parametrize(
    ("runs", "interrupted", "verdict", "code"),
    [
        ((PASS,), False, "pass", reports.Exit.PASS),
        ((PASS, SKIP), False, "pass", reports.Exit.PASS),
        ((PASS, FAIL), False, "fail", reports.Exit.FAIL),
        ((FAIL, ERROR, SKIP), True, "fail", reports.Exit.FAIL),
        ((PASS,), True, "inconclusive", reports.Exit.INTERRUPTED),
        ((), True, "inconclusive", reports.Exit.INTERRUPTED),
        ((SKIP,), True, "inconclusive", reports.Exit.INTERRUPTED),
        ((PASS, ERROR), False, "inconclusive", reports.Exit.UNJUDGED),
        ((PASS, OPEN), False, "inconclusive", reports.Exit.UNJUDGED),
        ((SKIP, ERROR), False, "inconclusive", reports.Exit.UNJUDGED),
        ((), False, "inconclusive", reports.Exit.UNJUDGED),
        ((WRONG, PASS, ERROR), False, "inconclusive", reports.Exit.MISCONFIGURED),
        ((WRONG, FAIL), False, "fail", reports.Exit.FAIL),
        ((SKIP, SKIP), False, "inconclusive", reports.Exit.TOO_SMALL),
    ],
)
def test_every_mix_of_outcomes_has_its_verdict_and_exit_code(
    runs: tuple[RunReport, ...], interrupted: bool, verdict: str, code: int
) -> None:
    """A session passes only when something was judged good and nothing is open."""
    made = report(*runs, interrupted=interrupted)
    assert (made.verdict, exit_code(made)) == (verdict, code)


def test_the_exit_codes_are_those_of_the_documents() -> None:
    """Scripts of users rely on the numbers."""
    assert (reports.Exit.PASS, reports.Exit.FAIL, reports.Exit.INTERRUPTED) == (0, 1, 2)
    assert (reports.Exit.MISCONFIGURED, reports.Exit.UNJUDGED, reports.Exit.TOO_SMALL) == (4, 6, 7)


# verdict.json.


def test_a_verdict_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """Findings, attempts, numbers and text survive the file, and nothing but the file is left in the folder."""
    full = row(
        PASSED,
        FAILED,
        RANDOM,
        outcome="fail",
        attempts=(Tried(purpose="train", device="cpu", outcome="finished", reason="requested", seconds=2.5),),
        losses=(4.0, 1.0),
        probe_loss_start=4.0,
        peak_bytes=7,
        peak_kind="resident",
        seconds=1.5,
    )
    made = report(full, SKIP, ERROR, environment={"versions": {"torch": "2.13"}}, command="pytest -m 'quick' → ü")
    path = write_verdict(made, tmp_path / "new")
    assert VERDICTS.read(path) == made
    assert [file.name for file in path.parent.iterdir()] == ["verdict.json"]


def test_non_finite_numbers_are_spelled_and_read_back(tmp_path: Path) -> None:
    """JSON has no NaN: a strict reader must be able to read the file."""
    wild = row(NOT_A_NUMBER, outcome="fail", losses=(4.0, math.nan), probe_loss_end=-math.inf)
    path = write_verdict(report(wild, figure_comparisons=(WORSE,)), tmp_path)
    payload = json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)
    assert payload["runs"][0]["losses"] == [4.0, "nan"]
    (comparison,) = VERDICTS.read(path).figure_comparisons
    assert (comparison.value, comparison.previous) == (math.inf, -math.inf)
    again = VERDICTS.read(path).runs[0]
    assert math.isnan(again.losses[1])
    assert again.probe_loss_end == -math.inf
    assert isinstance(again.findings[0].measured, float)
    assert again.findings[0].limit == math.inf


def test_every_finding_is_written_with_its_margin() -> None:
    """A reader of the file finds all that a person needs to disagree."""
    findings = json.loads(json_text(plain(report(FAIL))))["runs"][0]["findings"]
    assert findings == [
        {
            "check": "base_untouched",
            "status": "failed",
            "measured": 3.0,
            "limit": 2.0,
            "detail": "3 frozen tensors changed",
            "rule": FAILED.rule,
            "meaning": "the optimizer holds base weights",
            "remedy": "pass it the trainable parameters only",
            "domain": "environment",
            "evidence": "others on the card",
            "meant": "",
            "places": [],
            "because": "",
            "expected": False,
            "margin": 0.5,
        }
    ]


@pytest.mark.parametrize(
    ("measured", "limit", "expected"),
    [
        (3.0, 2.0, 0.5),
        (1, 2, -0.5),
        (-3.0, -2.0, -0.5),
        (3.0, 0.0, None),
        ("cpu", "cuda:0", None),
        (3.0, None, None),
        (math.nan, 2.0, None),
        (3.0, math.inf, None),
    ],
)
def test_the_margin_is_relative_and_known_for_numbers_only(measured: Any, limit: Any, expected: float | None) -> None:
    """Above the limit is positive; without two finite numbers there is none."""
    assert replace(PASSED, measured=measured, limit=limit).margin == expected


def test_broken_text_is_written_and_read_back(tmp_path: Path) -> None:
    """A lone surrogate from a child's broken output does not lose the report."""
    made = report(row(replace(FAILED, detail="broken \udc80 \x1b[31m text"), outcome="fail"))
    assert VERDICTS.read(write_verdict(made, tmp_path)) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "not a verdict of tunecheck; name the verdict.json of a session's folder"),
        ('{"schema": 6}', "damaged .*; judge the traces beside it again"),
        ('{"schema": 4, "verdict": "pass", "runs": []}', "schema 4; this tunecheck reads 6; judge the traces"),
        (
            '{"schema": 9, "verdict": "pass", "runs": [], "tunecheck_version": "9.0"}',
            "schema 9, written by tunecheck 9.0; this tunecheck reads 6",
        ),
        (
            '{"schema": 6, "verdict": "great", "runs": []}',
            "damaged .*'great' is none of pass, fail, inconclusive",
        ),
        ('{"schema": 6, "verdict": "pass", "runs": [], "colour": 1}', "damaged .*colour"),
        ('{"schema": 6, "verdict": "pass", "runs": [{}]}', "damaged .*outcome"),
        ('{"schema": 6, "verdict": "pass", "runs": 3}', "damaged "),
        ('{"schema": 6, "verdict": "pass", "runs": [], "seconds": null}', "damaged .*seconds: should be float"),
        ('{"schema": 6, "verdict": "pass", "runs": [], "environment": "x"}', "damaged .*environment"),
        (
            '{"schema": 6, "verdict": "pass", "runs": [{"device": [], "reason": -1}]}',
            "damaged .*device: should be",
        ),
    ],
)
def test_a_foreign_newer_or_damaged_verdict_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / "verdict.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        VERDICTS.read(path)
    assert str(path) in str(caught.value)


def test_a_verdict_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    with pytest.raises(TraceError, match="cannot be read"):
        VERDICTS.read(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error names the folder and the way out."""
    blocked = tmp_path / "file" / "runs"
    blocked.parent.write_text("in the way")
    with pytest.raises(SuiteError, match=r"cannot be written .*make room") as caught:
        write_verdict(report(PASS), blocked)
    assert str(blocked) in str(caught.value)


def test_a_full_disk_leaves_the_older_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before is still there, and no half a file beside it."""
    write_verdict(report(PASS), tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(SuiteError, match="No space left on device"):
        write_verdict(report(FAIL), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["verdict.json"]
    assert VERDICTS.read(tmp_path / "verdict.json").verdict == "pass"


# junit.xml.


def junit(made: Report) -> ElementTree.Element:
    """The root of the file."""
    return ElementTree.fromstring(junit_xml(made).encode())


def troubles(root: ElementTree.Element) -> dict[str, str]:
    """The element below each test case that has one."""
    return {case.attrib["name"]: case[0].tag for case in root.iter("testcase") if len(case)}


def test_junit_has_a_suite_a_run_and_a_case_a_finding(tmp_path: Path) -> None:
    """Failed, unjudged and expected gaps become failure, error and skipped; the run itself carries the time."""
    root = junit(report(row(PASSED, FAILED, MISSING, RANDOM, outcome="fail", seconds=12.5), SKIP))
    assert [suite.attrib["name"] for suite in root] == ["quick/tiny-qlora", "full/big"]
    assert troubles(root[0]) == {"base_untouched": "failure", "memory_returned": "error", "loss_falls": "skipped"}
    cases = {case.attrib["name"]: case.attrib for case in root[0].iter("testcase")}
    assert cases["run"]["time"] == "12.500"
    assert cases["loss_oracle"] == {"classname": "quick.tiny-qlora", "name": "loss_oracle", "time": "0.000"}
    assert troubles(root[1]) == {"run": "skipped"}
    counts = {name: root.attrib[name] for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "6", "failures": "1", "errors": "1", "skipped": "2", "time": "75.000"}
    assert {name: root[0].attrib[name] for name in ("tests", "failures", "time")} == {
        "tests": "5",
        "failures": "1",
        "time": "12.500",
    }


def test_junit_says_what_was_measured_and_what_to_do(tmp_path: Path) -> None:
    """The text of a failure is enough to act on."""
    failure = junit(report(FAIL)).find(".//failure")
    assert failure is not None
    assert failure.attrib["message"] == "measured 3, limit 2"
    assert failure.text is not None
    assert failure.text.splitlines() == [
        f"rule: {FAILED.rule}",
        "measured: 3, limit 2",
        "detail: 3 frozen tensors changed",
        "usually means: the optimizer holds base weights",
        "attribution: environment: others on the card",
        "what to do: pass it the trainable parameters only",
        'if it is meant: tunecheck run --ignore base_untouched="WHY"',
        "read more: tunecheck explain base_untouched",
    ]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (report(PASS), {}),
        (report(ERROR), {"run": "error"}),
        (report(OPEN), {"memory_returned": "error"}),
        (report(row(RANDOM, outcome="inconclusive", reason="not one")), {"run": "error", "loss_falls": "skipped"}),
        (report(row(outcome="fail", reason="no GPU, and one is required")), {"run": "failure"}),
        (report(row(FAILED, outcome="fail", reason="crashed")), {"run": "error", "base_untouched": "failure"}),
        (report(PASS, interrupted=True), {"session": "error"}),
        (report(), {"session": "error"}),
    ],
)
def test_junit_is_green_only_for_a_pass(tmp_path: Path, made: Report, expected: dict[str, str]) -> None:
    """A CI service that reads nothing else must not show green for what was not judged."""
    assert troubles(junit(made)) == expected


def test_junit_carries_provenance_as_properties(tmp_path: Path) -> None:
    """Device, weights, fingerprint, losses, peak and versions; what is unknown is left out."""
    run = row(
        PASSED,
        device="cpu",
        weights="hub some/tiny",
        fingerprint="0123",
        probe_loss_start=4.0,
        probe_loss_end=1.5,
        peak_bytes=7,
    )
    root = junit(report(run, environment={"versions": {"torch": "2.13"}, "gpus": []}))
    found = {entry.attrib["name"]: entry.attrib["value"] for entry in root.iter("property")}
    expected = {
        "device": "cpu",
        "weights": "hub some/tiny",
        "fingerprint": "0123",
        "loss_start": "4.0",
        "loss_end": "1.5",
        "peak_bytes": "7",
        "version.torch": "2.13",
        "tunecheck_version": __version__,
    }
    assert found.items() >= expected.items()
    assert "tokens_per_second" not in found


def test_junit_drops_what_xml_cannot_hold(tmp_path: Path) -> None:
    """Escape sequences, control characters and surrogates of a child's output do not break the file."""
    nasty = replace(FAILED, detail="\x1b[31mred\x1b[0m \x00\x08\udc80\ufffe <&> ]]> ü", check="a\x01b")
    root = junit(report(row(nasty, outcome="fail")))
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.text is not None
    assert "red <&> ]]> ü" in failure.text
    assert troubles(root) == {"ab": "failure"}


# summary.md.


def test_the_summary_shows_verdict_table_failures_and_gaps(tmp_path: Path) -> None:
    """Everything a reviewer needs, in the order of its weight."""
    attempts = (
        Tried(purpose="train", device="cuda:0", outcome="out_of_memory", reason="requested", seconds=1.0),
        Tried(purpose="train", device="cpu", outcome="finished", reason="out of memory", seconds=2.0),
    )
    run = row(
        PASSED,
        FAILED,
        MISSING,
        RANDOM,
        outcome="fail",
        device="cpu",
        precision="bf16",
        attempts=attempts,
        losses=(4.0, 1.5),
        probe_loss_start=4.2,
        probe_loss_end=1.03,
        repairs=("2026-11-20: the disk ate it. It was fetched again.",),
        peak_bytes=3 * 2**30,
        peak_kind="resident",
        tokens_per_second=123.456,
        seconds=12.0,
    )
    made = report(run, ERROR, SKIP, environment={"versions": {"torch": "2.13", "tunecheck": "0.1.0"}})
    lines = summary_markdown(made).splitlines()
    assert lines[0] == (
        "## tunecheck: FAIL — 1 check passed, 1 failed, 2 unjudged; 1 run with an error; 1 run skipped; "
        "1 run after a fallback"
    )
    assert "| training loss | probe loss |" in lines[2]
    assert lines[4] == (
        "| quick/tiny-qlora | fail | cpu | bf16 | 1 | 1 | 2 | 4.000 → 1.500 | 4.200 → 1.030 | 3 GiB resident "
        "| 123.5 | 12 s |"
    )
    assert lines[5] == "| quick/tiny-lora | error |  |  | 0 | 0 | 0 |  |  |  |  | 3.0 s |"
    assert lines[6] == "| full/big | skipped |  |  | 0 | 0 | 0 |  |  |  |  |  |"
    at = lines.index("### Failed")
    assert lines[at + 2 : at + 11] == [
        r"- **quick/tiny-qlora: base\_untouched**",
        f"  - rule: {FAILED.rule}",
        "  - measured: 3, limit 2",
        "  - detail: 3 frozen tensors changed",
        "  - usually means: the optimizer holds base weights",
        "  - attribution: environment: others on the card",
        "  - what to do: pass it the trainable parameters only",
        r'  - if it is meant: tunecheck run --ignore base\_untouched="WHY"',
        r"  - read more: tunecheck explain base\_untouched",
    ]
    at = lines.index("### Not judged")
    assert lines[at + 2 : at + 5] == [
        r"- quick/tiny-qlora: memory\_returned: the trace holds no Released record",
        r"- quick/tiny-qlora: loss\_falls: the weights are random (as expected)",
        "- quick/tiny-lora: the training crashed: SIGSEGV",
    ]
    assert "- quick/tiny-qlora: ran out of memory on cuda:0, repeated on cpu" in lines
    assert "- quick/tiny-qlora: repaired on 2026-11-20: the disk ate it. It was fetched again." in lines
    assert "- full/big: needs 40 GiB of free GPU memory, this machine has no GPU" in lines
    assert f"Environment: tunecheck {__version__}, torch 2.13" in lines
    assert "Started 2026-11-21T04:04:30Z, took 1 min 15 s." in lines


def test_the_summary_of_a_pass_has_no_empty_sections() -> None:
    """No heading without content; no table without runs."""
    assert "###" not in summary_markdown(report(PASS))
    assert "|" not in summary_markdown(report())


def test_an_inconclusive_run_without_gaps_gives_its_reason() -> None:
    """A reason that the findings tell already is not repeated; one that they do not tell is shown."""
    assert "not one check was judged" in summary_markdown(
        report(row(outcome="inconclusive", reason="not one check was judged"))
    )
    assert "checks without evidence" not in summary_markdown(report(OPEN))


def test_a_failure_without_findings_gives_its_reason() -> None:
    """A run that a caller declared failed says why."""
    assert "- quick/tiny-qlora: a GPU is required" in summary_markdown(
        report(row(outcome="fail", reason="a GPU is required"))
    )


def test_data_cannot_break_the_table_or_the_page() -> None:
    """Pipes, newlines, HTML, links and escape sequences are shown as they are."""
    text = summary_markdown(
        report(
            row(
                replace(FAILED, detail="a|b\n| c | <img src=x> [l](u) `x` $y$ \x1b[1mbold"),
                outcome="fail",
                device="c|d\ne",
            )
        )
    )
    assert r"a\|b \| c \| \<img src=x\> \[l\](u) \`x\` \$y\$ bold" in text
    assert r"| fail | c\|d e |" in text


def test_a_long_summary_is_cut_at_a_line_with_a_note() -> None:
    """Under 60 kB whatever happens, and the reader is told where the rest is."""
    finding = replace(FAILED, detail="ü" * 5000)
    text = summary_markdown(report(*(row(finding, outcome="fail") for _ in range(200))))
    assert len(text.encode()) <= SIZE_LIMIT_BYTES
    assert text.endswith("*Cut here to stay readable: everything is in verdict.json.*\n")
    assert "  - measured: 3, limit 2\n" in text


# The terminal.


@pytest.mark.parametrize(
    ("device", "share", "told"),
    [
        ("cpu", 0.02, "other processes used 2% of the CPU time while it trained"),
        ("cpu", 0.4, "other processes used 40% of the CPU time while it trained, so its times mean nothing"),
        ("cuda:0 NVIDIA H200", 0.4, "other processes used 40% of the CPU time while it trained"),
        ("cuda:0 NVIDIA H200", 0.6, "other processes used 60% of the CPU time while it trained, so its times"),
    ],
)
def test_a_report_says_that_company_was_looked_for(device: str, share: float, told: str, tmp_path: Path) -> None:
    """The summary always, the terminal only where it matters."""
    made = report(row(PASSED, device=device, others_busy_share=share))
    assert told in summary_markdown(made)
    assert ("mean nothing" in " ".join(shown(made).split())) is ("so its times" in told)
    assert "processors' time" not in summary_markdown(report(row(PASSED)))


def test_company_is_that_of_the_training_alone() -> None:
    """Weighted by time; what others did while the weights were loaded slowed no step."""
    phases = [
        Phase(name=name, seconds=seconds, others_busy_share=share)
        for name, seconds, share in (("load", 9.0, 1.0), ("first step", 1.0, 0.4), ("steady", 3.0, 0.0))
    ]
    made = summarize(trace(attempt(setup("cpu", ""), *phases)), [], trace_file="t", seconds=1.0)
    assert made.others_busy_share == pytest.approx(0.1)
    assert summarize(trace(attempt(setup("cpu", ""))), [], trace_file="t", seconds=1.0).others_busy_share is None


def test_a_repair_is_told_beside_the_table() -> None:
    """Whoever looks at the session must know that the disk or the line damaged what was trained on."""
    run = row(PASSED, repairs=("2026-11-20: model.safetensors is damaged. It was fetched again.",))
    said = " ".join(shown(report(run)).split())
    assert "quick/tiny-qlora: repaired on 2026-11-20: model.safetensors is damaged. It was fetched again." in said


def test_the_table_fits_eighty_columns() -> None:
    """Long names break at hyphens, numbers stay whole, and each row has the curve and the kind of memory."""
    run = row(
        *[PASSED] * 21,
        FAILED,
        MISSING,
        outcome="fail",
        run="smollm2-135m-qlora-checkpointing",
        tier="convergence",
        device="cuda:0 NVIDIA GeForce RTX 4090 Laptop GPU",
        losses=tuple(4.0 - place / 30 for place in range(100)),
        probe_loss_start=4.2,
        probe_loss_end=1.03,
        peak_bytes=1_431_655_765,
        peak_kind="allocator",
        seconds=7384.0,
    )
    lines = shown(report(run)).splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "run verdict checks loss device peak",
        "convergence/ fail 21 passed probe 4.200 → 1.030 cuda:0 1.33 GiB",
        "smollm2-135m- 2 h 03 min 1 failed steps ██▇▇▆▅▅▄▃▃▂▁▁ NVIDIA allocator",
    ]
    assert lines[3].startswith("qlora-")
    assert "1 unjudged" in lines[3]
    assert all(len(line.rstrip()) <= 80 for line in lines)


def test_no_real_report_is_wider_than_eighty_columns() -> None:
    """Of scripts that were judged; the verdict's line alone may be longer."""
    wide = [
        line
        for kept, trace in islice(traces(), 0, None, 7)
        for line in shown(report(judged_again(trace, [], trace_file=kept.file))).splitlines()[:-1]
        if len(line) > 80
    ]
    assert wide == []


def test_a_failure_says_what_was_measured_what_it_means_and_what_to_do() -> None:
    """The block below the table is enough to act on."""
    text = shown(report(FAIL))
    lines = [line.rstrip() for line in text.splitlines()]
    at = lines.index("FAILED quick/tiny-qlora: base_untouched")
    assert lines[at + 1 : at + 9] == [
        f"  rule            {FAILED.rule}",
        "  measured        3, limit 2",
        "  detail          3 frozen tensors changed",
        "  usually means   the optimizer holds base weights",
        "  attribution     environment: others on the card",
        "  what to do      pass it the trainable parameters only",
        '  if it is meant  tunecheck run --ignore base_untouched="WHY"',
        "  read more       tunecheck explain base_untouched",
    ]


def test_a_failure_without_words_has_no_empty_labels() -> None:
    """Only what is known is labelled."""
    text = shown(report(row(NOT_A_NUMBER, outcome="fail", losses=(math.nan,))))
    assert "  measured        nan, limit inf\n  detail          loss is NaN" in text
    assert "usually means" not in text
    assert "nan → nan" in text


def test_unexpected_gaps_come_before_expected_ones() -> None:
    """What needs a person is told in full; the rest is one line."""
    made = report(row(PASSED, RANDOM, replace(RANDOM, check="canary"), MISSING, outcome="inconclusive", reason="gaps"))
    text = shown(made)
    unexpected = text.index("UNJUDGED quick/tiny-qlora: memory_returned\n  the trace holds no Released record")
    assert unexpected < text.index("not judged: 2 checks; report.html says why of each\nverdict: ")
    assert "gaps" not in text


def test_a_suspicion_is_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it may be meant, what to say then, and what it usually is if not; in yellow."""
    odd = replace(FAILED, status=Status.SUSPECTED, measured=None, limit=None, meant="some train the base", domain="")
    text = shown(report(row(PASSED, odd, tier="watch", losses=(2.0, 1.0))))
    assert text[text.index("  detail") : text.index("\njudged")] == (
        "  detail        3 frozen tensors changed\n"
        "  is it meant?  some train the base\n"
        '  if so         --ignore base_untouched="WHY"\n'
        "  if not        the optimizer holds base weights\n"
        "  what to do    pass it the trainable parameters only\n"
        "  read more     tunecheck explain base_untouched\n"
    )
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    print_report(report(row(odd)), Console(width=80, force_terminal=True, color_system="standard", file=out))
    assert "\x1b[1;33mSUSPECTED quick/tiny-qlora: base_untouched" in out.getvalue()


def test_skips_errors_and_repeats_are_sentences() -> None:
    """Nothing that did not run, or ran elsewhere than asked, is silent."""
    attempts = tuple(
        Tried(purpose=purpose, device=device, outcome=outcome, reason="", seconds=1.0)
        for purpose, device, outcome in (
            ("train", "cuda:0", "out_of_memory"),
            ("train", "cpu", "finished"),
            ("repeat", "cpu", "finished"),
        )
    )
    lines = [
        line.rstrip() for line in shown(report(row(PASSED, attempts=attempts), ERROR, SKIP), width=120).splitlines()
    ]
    assert "quick/tiny-qlora: ran out of memory on cuda:0, repeated on cpu" in lines
    assert "quick/tiny-lora: error: the training crashed: SIGSEGV" in lines
    assert "full/big: skipped: needs 40 GiB of free GPU memory, this machine has no GPU" in lines
    assert sum("repeated" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("made", "last"),
    [
        (report(PASS), "verdict: PASS — 1 check passed, 0 failed, 0 unjudged"),
        (report(FAIL), "verdict: FAIL — 0 checks passed, 1 failed, 0 unjudged"),
        (
            report(PASS, ERROR, SKIP, SKIP, interrupted=True),
            "verdict: INCONCLUSIVE — 1 check passed, 0 failed, 0 unjudged; 1 run with an error; "
            "2 runs skipped; interrupted",
        ),
        (
            report(row(outcome="fail", reason="a GPU is required")),
            "verdict: FAIL — 0 checks passed, 0 failed, 0 unjudged; 1 run failed without a check",
        ),
        (report(), "verdict: INCONCLUSIVE — 0 checks passed, 0 failed, 0 unjudged"),
    ],
)
def test_the_last_line_is_the_whole_verdict(made: Report, last: str) -> None:
    """One line however narrow the terminal, for people and for grep."""
    assert shown(made, width=40).splitlines()[-1] == last
    assert shown(made, width=1).splitlines()[-1] == last


def test_data_is_never_markup_and_never_moves_the_cursor() -> None:
    """A name like [red] or an escape sequence from a child reaches the reader as text or not at all."""
    nasty = replace(FAILED, detail="[red]x[/red] [/nope] :smile: \x1b[2J\x1b]0;title\x07 \r\x9b31m", check="[bold]c")
    run = row(nasty, outcome="fail", device="[link=x]d", reason="[/]")
    out = io.StringIO()
    print_report(report(run), Console(width=120, force_terminal=True, color_system=None, file=out))
    text = out.getvalue()
    for shown_as_it_is in ("[red]x[/red] [/nope] :smile:", "[bold]c", "[link=x]d", "fail: [/]"):
        assert shown_as_it_is in text
    assert not set("\r\x07\x9b") & set(text)
    assert "\x1b[2J" not in text
    assert "\x1b]" not in text


def test_colour_comes_from_the_console_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Green for a pass where colours are wanted, none with NO_COLOR."""

    def printed() -> str:
        out = io.StringIO()
        print_report(report(PASS), Console(width=80, force_terminal=True, color_system="standard", file=out))
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mverdict: PASS" in printed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in printed()


def test_an_ascii_terminal_gets_ascii() -> None:
    """No UnicodeEncodeError at the end of a long run, and no row of question marks for the curve."""
    raw = io.BytesIO()
    console = Console(width=80, file=io.TextIOWrapper(raw, encoding="ascii"))
    print_report(report(row(PASSED, losses=(4.0, 1.0), device="gerät")), console)
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "4.000 -> 1.000" in text
    assert "ger?t" in text
    assert text.splitlines()[-1] == "verdict: PASS - 1 check passed, 0 failed, 0 unjudged"


# Small parts.


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        ([], ""),
        ([3.0], "▄"),
        ([3.0, 3.0, 3.0], "▄▄▄"),
        ([0.0, 0.0], "▄▄"),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], LEVELS),
        ([8.0, 1.0], "█▁"),
        ([math.nan, 1.0, 2.0], BROKEN + "▁█"),
        ([math.nan, math.inf], BROKEN * 2),
        ([1e308, -1e308, 1e308], "█▁█"),
        ([5e-324, 0.0], "█▁"),
    ],
)
def test_a_sparkline_shows_the_shape(values: list[float], curve: str) -> None:
    """Lowest lowest, highest highest, flat in the middle, broken values visible."""
    assert sparkline(values) == curve


@pytest.mark.parametrize("length", [1, 19, 20, 21, 39, 100, 1001])
def test_a_sparkline_is_short_and_keeps_the_direction(length: int) -> None:
    """At most 20 cells; a falling curve never rises; one NaN anywhere is seen."""
    values = [float(length - place) for place in range(length)]
    curve = sparkline(values)
    assert len(curve) == min(length, 20)
    assert list(curve) == sorted(curve, reverse=True)
    for place in (0, length // 2, length - 1):
        assert sparkline([*values[:place], math.nan, *values[place + 1 :]]).count(BROKEN) == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (270 * 2**20, "270 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (2**30 - 1, "1 GiB"),
        (1_431_655_765, "1.33 GiB"),
        (139 * 2**30, "139 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_sizes_have_binary_units(count: int, text: str) -> None:
    """Never a rounded 1024 of the smaller unit."""
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7384, "2 h 03 min"),
        (math.nan, "nan s"),
    ],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    """Never 60 seconds or 60 minutes."""
    assert human_seconds(seconds) == text


def test_numbers_and_text_are_shown_as_measured() -> None:
    """Six digits, whole integers, text as it is, a dash for nothing."""
    assert [human_number(value) for value in (1 / 3, 12345678, "cuda:0", None)] == [
        "0.333333",
        "12345678",
        "cuda:0",
        "-",
    ]


def test_foreign_text_is_cleaned_and_cut() -> None:
    """Newlines survive where they may, escape sequences nowhere, and a cut is visible."""
    assert printable("a\n\tb\x1b[1;31mc\x07\u202ed") == "a\n\tbcd"
    assert one_line("  a\n\n b ") == "a b"
    assert one_line("x" * 50, limit=10) == "x" * 9 + "…"


def test_facts_are_the_leaves_of_the_environment() -> None:
    """Nested mappings and lists become dotted names; what is unknown is left out."""
    nested = {"gpus": [{"name": "H200", "uuid": None}], "versions": {"torch": "2.13"}, "commit": "", "cores": 0}
    assert list(facts(nested)) == [("gpus.0.name", "H200"), ("versions.torch", "2.13"), ("cores", "0")]


def test_the_machine_is_one_line_of_what_is_known() -> None:
    """GPU first, versions that are installed, the commit and whether it was changed; nothing is guessed."""
    environment = {
        "gpus": [{"name": "NVIDIA H200", "total_bytes": 141 * 2**30}, {"name": "NVIDIA L4", "total_bytes": None}],
        "cpu": {"model": "Some CPU", "usable_cores": 2},
        "ram_total_bytes": 24 * 2**30,
        "platform": "Linux x86_64",
        "python": "3.11.7",
        "versions": {"torch": "2.13.0", "accelerate": None},
        "git": {"commit": "0123456789abcdef", "dirty": True},
    }
    assert machine(environment) == (
        "NVIDIA H200 141 GiB, NVIDIA L4, Some CPU, 2 cores, 24 GiB, Linux x86_64, "
        "python 3.11.7, torch 2.13.0, commit 0123456789ab with local changes"
    )
    assert machine({"gpus": [], "cpu": {"model": None, "usable_cores": None}, "git": None}) == ""


def test_reports_need_neither_torch_nor_pytest() -> None:
    """`tunecheck judge` must be fast and work where torch is not installed."""
    names = ("results", "results.stored", "report.files", "report.terminal")
    modules = ", ".join(f"tunecheck.{name}" for name in names)
    program = f"import sys, {modules}; print(sorted({{'torch', 'pytest', 'pydantic'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_last_report_of_a_session_says_what_the_first_did_not():
    """A later failure in full, a check that passes after all by its name, and the verdict."""
    early = replace(report(row(FAILED, MISSING)), verdict="fail")
    later = Finding(check="saved_as_trained", status=Status.FAILED, detail="two tensors differ", measured=2, limit=0)
    passed = replace(MISSING, status=Status.PASSED, detail="")
    console = Console(file=io.StringIO(), width=80)
    print_changes(report(row(FAILED, passed, later)), early, console)
    told = console.file.getvalue()

    assert "two tensors differ" in told
    assert f"passed after all: {MISSING.check}" not in told, "it had not failed"
    assert FAILED.detail not in told
    assert told.splitlines()[-1].startswith("verdict: ")
    console = Console(file=io.StringIO(), width=80)
    print_changes(report(row(replace(FAILED, status=Status.PASSED))), early, console)
    assert f"passed after all: {FAILED.check}" in console.file.getvalue()
    console = Console(file=io.StringIO(), width=80)
    print_changes(early, early, console)
    assert len(console.file.getvalue().splitlines()) == 1
