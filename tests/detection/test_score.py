"""The score: what counts as detected, studies that continue, and a document that says what the results say."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import traces

from benchmarks.detection import matrix, study, variants
from benchmarks.detection import trial as trials
from benchmarks.detection.bugs import BUGS, COHORTS, of_cohort
from benchmarks.detection.command import main
from benchmarks.detection.document import (
    COHORT_FILES,
    NEAR_LIMITS,
    UNDETECTED,
    detection_text,
    read_all,
    rows_of,
    score_line,
    scores_text,
    tables_text,
)
from benchmarks.detection.ledger import code_state, open_ledger, read_results
from benchmarks.detection.statistics import clopper_pearson, margins, robust_spread
from benchmarks.detection.trial import QUICK, Setup, Trial, smoke_test_failed
from tunecheck.checks import CHECKS
from tunecheck.config import find_run, load_run
from tunecheck.core import evidence as e
from tunecheck.core.errors import ConfigError, SuiteError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.paths import project_folder
from tunecheck.core.trace import spelled
from tunecheck.hardware import probe
from tunecheck.runner import Runner

RESULTS = project_folder() / "reports" / "detection"


TINY = Setup()


def trial(*failed: str, outcome: str = "finished", **numbers: tuple[float, float]) -> Trial:
    """Return a trial that ended so, with a failed finding for each check."""
    findings = [Finding(check=check, status=Status.FAILED) for check in failed]
    findings += [
        Finding(check=check, status=Status.PASSED, measured=measured, limit=limit)
        for check, (measured, limit) in numbers.items()
    ]
    return Trial(outcome=outcome, findings=tuple(findings), smoke_test_failed=outcome != "finished", seconds=1.0)


# What counts.


def test_a_bug_is_detected_by_a_check_that_names_it_alone():
    """Another check's failure may be a consequence, and a crash names nothing."""
    bug = BUGS["B18"]

    assert matrix.named_by(bug, trial("finite", "loss_oracle")) == ("loss_oracle",)
    assert matrix.named_by(bug, trial("finite", "trainable_moved")) == ()
    assert matrix.named_by(bug, trial(outcome="crashed")) == ()


def test_a_bug_is_looked_for_in_the_cheapest_tier_first(monkeypatch):
    """Until it is named; its own settings come last."""
    asked = []

    def tried(name, setup, settings, bug):
        asked.append((name.partition("/")[0], "probes.resume_from=2" in settings))
        return trial("resume_equals") if len(asked) == 3 else trial("finite")

    monkeypatch.setattr(matrix, "try_run", tried)
    row = matrix.score(BUGS["B79"], TINY)

    assert asked == [("quick", False), ("convergence", False), ("quick", True)]
    assert (row["caught_in"], row["named_by"], row["seconds"]) == ("its own settings", ["resume_equals"], 3.0)
    on_real_weights = [stage.name for stage in matrix.stages(BUGS["B79"], real=True)]
    assert on_real_weights == ["quick", "its own settings", "convergence"]  # a minute each, then four


def test_real_weights_keep_their_shape():
    """A setting of the tiny model's shape is left out with them; the bug's others stay."""
    own = {stage.name: stage.settings for stage in matrix.stages(BUGS["X92"], real=True)}[matrix.OWN]
    assert "strategy=adapter_layers" in own
    assert not any(setting.startswith("model.") for setting in own)
    assert any(setting.startswith("model.") for setting in BUGS["X92"].settings_on(real=False))


def test_an_undetected_bug_is_recorded_with_everything_that_was_tried(monkeypatch):
    """Nothing named it, but something crashed: a smoke test would have failed."""
    monkeypatch.setattr(matrix, "try_run", lambda name, setup, settings, bug: trial(outcome="crashed"))
    row = matrix.score(BUGS["B12"], Setup(real=True))

    assert (row["caught_in"], row["smoke_test_failed"], row["crashed"]) == (None, True, True)
    assert [stage["stage"] for stage in row["stages"]] == ["quick", "convergence"]


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (lambda trace: trace, False),
        (lambda trace: traces.with_record(trace, e.Evaluation, 2, loss=4.2), True),
        (lambda trace: traces.with_record(trace, e.Step, 3, loss=math.nan), True),
        (lambda trace: traces.with_record(trace, e.AttemptEnd, outcome="crashed"), True),
        (lambda trace: traces.without(trace, e.Evaluation), True),
    ],
    ids=["healthy", "the loss rose", "not finite", "crashed", "never evaluated"],
)
def test_the_smoke_test_is_the_usual_one(change, fails):
    """It ran to the end, every loss is finite, and the loss fell."""
    assert smoke_test_failed(change(traces.healthy())) is fails


# Setups.


@pytest.mark.parametrize(
    ("setup", "name"),
    [
        (Setup(), "tiny"),
        (Setup(real=True), "real"),
        (Setup(precision="bf16"), "tiny-bf16"),
        (Setup(real=True, precision="fp16", device="cuda"), "real-fp16-cuda"),
    ],
)
def test_a_setup_has_result_files_of_its_own(setup, name):
    """fp32 on the CPU goes unnamed, as in the results that were committed first."""
    assert setup.name == name


def test_a_bugs_own_precision_wins_over_the_studys():
    """Its code may not be reached in another; the user's overrides win over both."""
    settings = Setup(precision="fp16").settings(*BUGS["B55"].settings)

    assert load_run(find_run(QUICK), settings).training.precision == "bf16"
    overridden = Setup(overrides=("training.precision=fp32",)).settings(*BUGS["B55"].settings)
    assert load_run(find_run(QUICK), overridden).training.precision == "fp32"


def test_cuda_without_a_gpu_is_a_usage_error(monkeypatch, capsys, tmp_path):
    """Nothing is trained on the CPU in its place, and no result is written."""
    import tunecheck.hardware

    hardware = tunecheck.hardware.probe()
    monkeypatch.setattr(tunecheck.hardware, "probe", lambda: dataclasses.replace(hardware, visible=()))

    assert main(["matrix", "B12", "--device", "cuda", "--output", str(tmp_path)]) == 4
    assert "--device cuda needs a GPU that CUDA shows to this process" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_study_on_a_gpu_trains_on_the_first_that_cuda_shows(monkeypatch, tmp_path):
    """With its uuid, by which its health is watched, and its facts in the trace."""
    hardware = probe()
    gpus = tuple(SimpleNamespace(uuid=uuid) for uuid in ("GPU-a", "GPU-b"))
    monkeypatch.setattr(type(hardware), "visible_gpus", gpus)
    monkeypatch.setattr("tunecheck.hardware.probe", lambda: hardware)

    on_gpu, on_cpu = (Runner(folder=tmp_path, **trials._hardware(device)) for device in ("cuda", "cpu"))
    assert (on_gpu.environment, on_gpu.gpu, on_gpu.cards) == (spelled(hardware), True, ("GPU-a",))
    assert (on_cpu.environment, on_cpu.gpu, on_cpu.cards) == ({}, False, ())


# Statistics.


@pytest.mark.parametrize(
    ("flagged", "runs", "low", "high"),
    [(0, 240, 0.0, 0.01240), (0, 24, 0.0, 0.11735), (1, 100, 0.000253, 0.05446), (5, 5, 0.54928, 1.0)],
)
def test_the_interval_of_a_rate(flagged, runs, low, high):
    """Clopper and Pearson's, as in their tables; one-sided at the ends."""
    assert clopper_pearson(flagged, runs) == pytest.approx((low, high), rel=1e-3)


def test_no_runs_are_no_rate():
    """An error, not 0 %."""
    with pytest.raises(ValueError, match="0 of 0 runs is not a rate"):
        clopper_pearson(0, 0)


def test_a_spread_is_robust():
    """One outlier changes little; where most are equal the others count all the same; constants have none."""
    assert robust_spread([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx(1.4826)
    assert robust_spread([0.0, 0.0, 0.0, 4.0]) == pytest.approx(1.2533)
    assert robust_spread([0.5, 0.5]) == 0


def test_a_margin_is_counted_in_spreads():
    """From the median, and from the healthy run that is nearest to the limit; on either side of it."""
    found = {m.check: m for m in margins([("a", x, 10.0) for x in (1, 2, 3, 4, 9)] + [("b", 0.0, 1.0)] * 3)}

    assert found["a"].spreads == pytest.approx(7 / 1.4826)
    assert found["a"].nearest_spreads == pytest.approx(1 / 1.4826)
    assert found["a"].near
    beyond = margins([("a", x, 10.0) for x in (1, 2, 3, 4, 9, 30)])[0]
    assert beyond.nearest == 30.0
    assert beyond.nearest_spreads < 0
    assert beyond.near
    assert found["b"].exact
    assert not found["b"].near
    assert margins([("count", 14.0, 14.0), ("anything at all", 0.3, 0.0)]) == []


# Variants.


def test_variants_are_the_same_every_time_and_validate():
    """24 on real weights, no two alike."""
    known = variants.variants(real=True)

    assert known == variants.variants(real=True)
    assert len({variant.settings for variant in known.values()}) == len(known) == variants.REAL_RUNS >= 20
    assert next(iter(known.values())).settings == ()


def test_a_healthy_run_that_is_flagged_is_reported(monkeypatch):
    """With the checks that flag it; numbers are kept for the margins."""
    monkeypatch.setattr(study, "try_run", lambda name, setup, settings: trial("finite", kernel_agrees=(1 / 3, 1e-4)))
    known = {"T001": variants.Variant(id="T001", title="as it is", settings=())}
    ledger, said = Memory(), []
    study.fill(ledger, known, ["T001"], TINY, say=said.append)

    assert said == ["T001 as it is: finished, flagged: finite (1 s)"]
    assert study.false_positives(list(ledger.rows.values())) == [ledger.rows["T001"]]
    assert ledger.rows["T001"]["numbers"] == {"kernel_agrees": [0.3333, 0.0001]}
    assert [m.check for m in study.study_margins(ledger.rows.values())] == ["kernel_agrees"]


def test_what_a_precision_does_not_admit_is_left_out(monkeypatch):
    """A bug of another trainer, which refuses fp16; where nothing is left, that is an error, and no empty success."""

    def refusing(name, setup, settings, bug):
        if "trainer=transformers" in settings:
            raise ConfigError(["training.precision: should be bf16 or fp32"])
        return trial("finite")

    monkeypatch.setattr(matrix, "try_run", refusing)
    other = next(bug for bug in BUGS.values() if "trainer=transformers" in bug.settings)
    known = {bug.id: bug for bug in (BUGS["B01"], other)}
    ledger, said = Memory(), []
    matrix.fill(ledger, known, list(known), TINY, say=said.append)

    assert list(ledger.rows) == ["B01"]
    assert "left out: training.precision: should be bf16 or fp32" in said[1]
    with pytest.raises(ConfigError):
        matrix.fill(ledger, known, [other.id], TINY, say=said.append)


class Memory:
    """A ledger without a disk."""

    def __init__(self) -> None:
        self.rows = {}

    def put(self, row) -> None:
        """Keep it."""
        self.rows[row["id"]] = row

    def save(self, order) -> None:
        """Nothing to do."""


# Ledgers.


def test_an_interrupted_matrix_continues(tmp_path):
    """What is in the file is not measured again, unless it is from another state of the code."""
    ledger = open_ledger(tmp_path / "matrix-tiny.json", "matrix tiny")
    ledger.put({"id": "B02", "value": math.inf})
    ledger.put({"id": "B01"})
    ledger.rows["B01"]["code"] = "older"
    ledger.save(["B01", "B02", "B03"])
    again = open_ledger(tmp_path / "matrix-tiny.json", "matrix tiny")

    assert list(again.rows) == ["B01", "B02"]
    assert again.rows["B02"]["value"] == "inf"
    assert again.missing(["B01", "B02", "B03"], keep_older=False) == ["B01", "B03"]
    assert again.missing(["B01", "B02", "B03"], keep_older=True) == ["B03"]
    assert again.rows["B02"]["code"] == code_state()
    assert again.machine["cpu"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"schema": 1, "kind": "healthy tiny", "machine": {}, "rows": []}', "holds 'healthy tiny', not 'matrix tiny'"),
        ('{"schema": 9, "rows": []}', "schema 9, this tunecheck reads 1 and 2"),
        ("[]", "not a result of `python -m benchmarks.detection`: TypeError"),
        ("{", "JSONDecodeError"),
    ],
)
def test_a_file_that_holds_something_else_is_not_overwritten(tmp_path, text, problem):
    """It is named with what it is."""
    path = tmp_path / "results.json"
    path.write_text(text)

    with pytest.raises(SuiteError, match=problem.replace("[", r"\[")):
        open_ledger(path, "matrix tiny")
    assert path.read_text() == text


# The command.


def test_a_bug_is_scored_by_one_command(tmp_path, capsys):
    """In a real child process; the row is written as JSON and as Markdown."""
    assert main(["matrix", "B12", "--output", str(tmp_path)]) == 0
    row = read_results(tmp_path / "matrix-tiny.json")["rows"][0]

    assert (row["id"], row["subject"], row["caught_in"]) == ("B12", "adapters", "quick")
    assert row["smoke_test_failed"] is False
    assert "1 of 200 bugs tried, 0 undetected: none" in capsys.readouterr().out
    assert "| B12 | adapters | LoRA scales by alpha, not alpha/r | quick | `adapter_algebra` |" in (
        tmp_path / "matrix-tiny.md"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["matrix", "B999"], "no bug is called 'B999'"),
        (
            ["matrix", "--of", "unseen", "B12"],
            "no bug is called 'B12': `python -m benchmarks.detection list --of unseen`",
        ),
        (["run", "U999"], "no bug is called 'U999'"),
        (["healthy", "--real", "T001"], "no healthy variant is called 'T001'"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(capsys, arguments, message):
    """The message says how to list those that do."""
    assert main([*arguments]) == 4
    assert message in capsys.readouterr().err


def test_none_at_all_is_no_number_to_stop_after(capsys):
    """Nor is a negative one."""
    for number in ("0", "-1"):
        with pytest.raises(SystemExit, match="4"):
            main(["healthy", f"--most={number}"])
        assert f"'{number}' should be a whole number of 1 or more" in capsys.readouterr().err


def test_healthy_variants_can_be_listed(capsys):
    """With the settings that make each of them."""
    assert main(["healthy", "--list", "--real"]) == 0
    assert "R002 seed 1: training.seed=1" in capsys.readouterr().out


# The committed results.


def test_the_document_is_what_the_results_say():
    """Nobody writes a number into it by hand."""
    held = read_all(RESULTS)

    assert (project_folder() / "docs" / "detection.md").read_text(encoding="utf-8") == detection_text(held)
    assert (RESULTS / "scores.md").read_text(encoding="utf-8") == scores_text(held)
    for name, result in held.items():
        assert (RESULTS / f"{name}.md").read_text(encoding="utf-8") == tables_text(result.rows)


def test_the_page_is_three_screens():
    """Our own bugs, releases that shipped some, other tools; the matrix is data beside it."""
    assert len(detection_text(read_all(RESULTS)).splitlines()) <= 150


def test_the_committed_results_are_complete_and_meet_the_targets():
    """Every bug was tried, four fifths are named in quick in the precision of a GPU; 200 healthy runs, none flagged.

    In fp32 four bugs of 16-bit dtypes are none, and show in settings of their own.
    """
    held = {name: result.rows for name, result in read_all(RESULTS).items()}
    tiny = score_line(held["matrix-tiny-bf16"])

    for cohort, file in COHORT_FILES.items():
        first = f"{file}-first" + ("-bf16" if cohort in ("unseen-second", "unseen-fourth") else "")
        today = f"{file}-tiny" + ("-bf16" if cohort == "unseen-fourth" else "")
        for name in (today, *([first] if cohort not in ("catalogue", "parallel") else [])):
            assert [row["id"] for row in held[name]] == list(of_cohort(cohort))
    assert tiny["quick"] >= 0.8 * tiny["bugs"]
    assert len(held["healthy-tiny"]) >= 200
    assert study.false_positives(held["healthy-tiny"]) == []
    assert {check for row in held["matrix-tiny"] for check in row["named_by"]} <= CHECKS.keys()


def test_results_of_the_first_schema_are_read():
    """Their keys become today's, in stages too; the file itself stays as it is."""
    old = json.loads((RESULTS / "unseen-first.json").read_text())
    rows = read_results(RESULTS / "unseen-first.json")["rows"]
    healthy = read_results(RESULTS / "healthy-tiny.json")["rows"]

    assert old["schema"] == 1
    assert [row["smoke_test_failed"] for row in rows] == [row["naive"] for row in old["rows"]]
    assert [row["subject"] for row in rows] == [row["class"] for row in old["rows"]]
    assert not {"class", "naive", "accused", "naive_alarm"} & {key for row in (*rows, *healthy) for key in row}
    assert rows[0]["stages"][0] == {
        "stage": "quick",
        "outcome": "finished",
        "failed": [],
        "unjudged": [],
        "smoke_test_failed": False,
        "seconds": 6.5,
    }
    assert [row["flagged"] for row in healthy] == [False] * len(healthy)


def test_a_study_of_the_first_schema_continues(tmp_path):
    """It is written with today's keys; nothing is lost on the way."""
    path = tmp_path / "unseen-tiny.json"
    path.write_bytes((RESULTS / "unseen-tiny.json").read_bytes())
    before = read_results(path)["rows"]
    open_ledger(path, "unseen tiny").save(of_cohort("unseen"))

    assert json.loads(path.read_text())["schema"] == 2
    assert read_results(path)["rows"] == before


def test_every_undetected_bug_is_explained():
    """By what it would take, and nothing that is detected is still explained."""
    undetected = {
        (name, row["id"])
        for name, result in read_all(RESULTS).items()
        if not result.healthy and result.model != "first"
        for row in result.rows
        if row["caught_in"] is None
    }

    assert undetected == {(name, id) for name, explained in UNDETECTED.items() for id in explained}


def test_a_result_of_a_card_is_a_line_of_its_own(tmp_path):
    """With a column for its precision; both pages show it beside the others, whatever files there are."""
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    rows = json.loads((RESULTS / "matrix-tiny.json").read_text())
    (tmp_path / "matrix-tiny-bf16-cuda.json").write_text(json.dumps({**rows, "rows": rows["rows"][:3]}))
    held = read_all(tmp_path)

    assert "| catalogue, on cuda |  |  | [3 of 3](./matrix-tiny-bf16-cuda.md) |" in scores_text(held)
    assert "Nothing here was measured on a GPU" not in detection_text(held)
    assert "| catalogue, on cuda |  | 3 of 3 |  |" in detection_text(held)


def test_the_page_sums_the_sets_that_were_unseen():
    """Each of them once, though one has first scores in two precisions."""
    unseen = [cohort for cohort in COHORTS if cohort.startswith(("unseen", "blind"))]
    lines = detection_text(read_all(RESULTS)).splitlines()
    [cells] = [line.split(" | ") for line in lines if line.startswith("| bugs once new to the checks")]

    assert cells[1].endswith(f" of {sum(len(of_cohort(cohort)) for cohort in unseen)}")


def test_every_limit_that_is_near_was_dealt_with():
    """Widened with a reason, or replaced by an invariant."""
    held = read_all(RESULTS)
    studied = [result.rows for result in held.values() if result.healthy]

    assert {m.check for rows in studied for m in study.study_margins(rows) if m.near} == NEAR_LIMITS.keys()


def test_the_readme_has_the_numbers_of_the_results():
    """In bf16, the precision of a GPU: bugs of one process that are named, and healthy variants that are flagged."""
    held = [r for r in read_all(RESULTS).values() if (r.model, r.precision, r.device) == ("tiny", "bf16", "cpu")]
    score = score_line(rows_of(r for r in held if r.study in COHORT_FILES.values()))
    rows = rows_of(r for r in held if r.study == "healthy")
    numbers = (
        f"{score['bugs'] - score['undetected']} of {score['bugs']} | {len(study.false_positives(rows))} of {len(rows)}"
    )

    assert f"bf16 | {numbers} |\n" in (project_folder() / "README.md").read_text(encoding="utf-8")


def test_results_that_are_missing_are_named(tmp_path):
    """All but those on real weights are required."""
    with pytest.raises(SuiteError, match=r"matrix-tiny\.json: not a result"):
        read_all(tmp_path)
    assert json.loads((RESULTS / "unseen-first.json").read_text())["kind"] == "unseen tiny"
