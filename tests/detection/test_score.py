"""The score: what counts as caught, results that are gone on with, and a document that says what the results say."""

from __future__ import annotations

import json
import math

import pytest
import traces

from benchmarks.detection import matrix, study, variants
from benchmarks.detection.bugs import FAULTS
from benchmarks.detection.bugs.blind import BLIND, MUST_SAY
from benchmarks.detection.bugs.blind_second import BLIND_SECOND, MUST_SAY_SECOND
from benchmarks.detection.bugs.unseen import UNSEEN
from benchmarks.detection.command import main
from benchmarks.detection.document import BEGIN, END, SCORED, detection_text, read_all, readme_table, with_table
from benchmarks.detection.ledger import code_state, open_ledger, read_results
from benchmarks.detection.statistics import clopper_pearson, margins, robust_spread
from benchmarks.detection.survivors import NEAR_LIMITS, WHAT_IT_WOULD_TAKE
from benchmarks.detection.tables import score_line
from benchmarks.detection.trial import Trial, naive_alarm
from suite.checks import CHECKS
from suite.core import evidence as e
from suite.core.errors import SuiteError
from suite.core.paths import project_folder

RESULTS = project_folder() / "reports" / "detection"


def trial(*failed: str, outcome: str = "finished", numbers: dict | None = None) -> Trial:
    """A run that ended so."""
    return Trial(
        outcome=outcome,
        failed=failed,
        unjudged=(),
        naive_alarm=outcome != "finished",
        numbers=numbers or {},
        seconds=1.0,
    )


# What counts.


def test_a_fault_is_caught_by_a_check_that_names_it_alone():
    """Another check's failure may be a consequence, and a crash names nothing."""
    fault = FAULTS["B18"]

    assert matrix.named_by(fault, trial("finite", "loss_oracle")) == ("loss_oracle",)
    assert matrix.named_by(fault, trial("finite", "trainable_moved")) == ()
    assert matrix.named_by(fault, trial(outcome="crashed")) == ()


def test_a_fault_is_looked_for_in_the_cheapest_tier_first(monkeypatch):
    """Until it is named; its own settings come last."""
    asked = []

    def tried(name, settings, fault):
        asked.append((name.partition("/")[0], "probes.resume_from=2" in settings))
        return trial("resume_equals") if len(asked) == 3 else trial("finite")

    monkeypatch.setattr(matrix, "try_run", tried)
    row = matrix.score(FAULTS["B79"], real=False)

    assert asked == [("quick", False), ("convergence", False), ("quick", True)]
    assert (row["caught_in"], row["named_by"], row["seconds"]) == ("its own settings", ["resume_equals"], 3.0)
    on_real_weights = [stage.name for stage in matrix.stages(FAULTS["B79"], real=True)]
    assert on_real_weights == ["quick", "its own settings", "convergence"]  # a minute each, then four


def test_real_weights_keep_their_shape():
    """A setting of the tiny model's shape is left out with them; the others of the fault stay."""
    own = {stage.name: stage.settings for stage in matrix.stages(FAULTS["X92"], real=True)}[matrix.OWN]
    assert "strategy=adapter_layers" in own
    assert not any(setting.startswith("model.") for setting in own)
    assert any(setting.startswith("model.") for setting in FAULTS["X92"].settings_on(real=False))


def test_a_survivor_is_told_with_everything_that_was_tried(monkeypatch):
    """Nothing named it, but something crashed: the naive test would have noticed."""
    monkeypatch.setattr(matrix, "try_run", lambda name, settings, fault: trial(outcome="crashed"))
    row = matrix.score(FAULTS["B12"], real=True)

    assert (row["caught_in"], row["naive"], row["crashed"]) == (None, True, True)
    assert [stage["stage"] for stage in row["stages"]] == ["quick", "convergence"]


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        (lambda trace: trace, False),
        (lambda trace: traces.with_record(trace, e.Evaluation, 2, loss=4.2), True),
        (lambda trace: traces.with_record(trace, e.Step, 3, loss=math.nan), True),
        (lambda trace: traces.with_record(trace, e.AttemptEnd, outcome="crashed"), True),
        (lambda trace: traces.without(trace, e.Evaluation), True),
    ],
    ids=["healthy", "the loss rose", "not finite", "crashed", "never evaluated"],
)
def test_the_naive_test_is_the_one_that_everyone_writes(change, alarm):
    """It ran to its end, every loss is finite, and the loss fell."""
    assert naive_alarm(change(traces.healthy())) is alarm


# Statistics.


@pytest.mark.parametrize(
    ("alarms", "runs", "low", "high"),
    [(0, 240, 0.0, 0.01240), (0, 24, 0.0, 0.11735), (1, 100, 0.000253, 0.05446), (5, 5, 0.54928, 1.0)],
)
def test_the_interval_of_a_rate(alarms, runs, low, high):
    """Clopper and Pearson's, as in their tables; one-sided at the ends."""
    assert clopper_pearson(alarms, runs) == pytest.approx((low, high), rel=1e-3)


def test_no_runs_are_no_rate():
    """An error, not 0 %."""
    with pytest.raises(ValueError, match="0 alarms in 0 runs is no rate"):
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


def test_variants_are_the_same_every_time_and_lie_in_the_schema():
    """24 on real weights, no two alike."""
    known = variants.variants(real=True)

    assert known == variants.variants(real=True)
    assert len({variant.settings for variant in known.values()}) == len(known) == variants.REAL_RUNS >= 20
    assert next(iter(known.values())).settings == ()


def test_a_healthy_run_that_is_accused_is_told(monkeypatch):
    """With what accused it; numbers are kept for the margins."""
    monkeypatch.setattr(
        study, "try_run", lambda name, settings: trial("finite", numbers={"kernel_agrees": (1 / 3, 1e-4)})
    )
    known = {"T001": variants.Variant(id="T001", title="as it is", settings=())}
    ledger, said = Memory(), []
    study.fill(ledger, known, ["T001"], real=False, settings=[], say=said.append)

    assert said == ["T001 as it is: finished, accused: finite (1 s)"]
    assert study.alarms(list(ledger.rows.values())) == [ledger.rows["T001"]]
    assert ledger.rows["T001"]["numbers"] == {"kernel_agrees": [0.3333, 0.0001]}
    assert [m.check for m in study.study_margins(ledger.rows.values())] == ["kernel_agrees"]


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


def test_a_broken_off_matrix_goes_on(tmp_path):
    """What is in the file is not done again, unless another state of the code gave it."""
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
        ('{"schema": 9, "rows": []}', "schema 9, this tunecheck reads 1"),
        ("[]", "no results of `python -m benchmarks.detection`: TypeError"),
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


def test_a_fault_is_scored_by_one_command(tmp_path, capsys):
    """In a real child process; the row is written as JSON and as Markdown."""
    assert main(["matrix", "B12", "--output", str(tmp_path)]) == 0
    row = read_results(tmp_path / "matrix-tiny.json")["rows"][0]

    assert (row["id"], row["caught_in"], row["naive"]) == ("B12", "quick", False)
    assert f"1 of {len(FAULTS)} faults tried, 0 survive: none" in capsys.readouterr().out
    assert "| B12 | LoRA scales by alpha, not alpha/r | quick | `adapter_algebra` |" in (
        tmp_path / "matrix-tiny.md"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["matrix", "B999"], "no fault is called 'B999'"),
        (
            ["matrix", "--of", "unseen", "B12"],
            "no fault is called 'B12': `python -m benchmarks.detection list --of unseen`",
        ),
        (["run", "U999"], "no fault is called 'U999'"),
        (["healthy", "--real", "T001"], "no healthy variant is called 'T001'"),
    ],
)
def test_what_does_not_exist_is_a_wrong_request(capsys, arguments, message):
    """With the way to those that do."""
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
    readme = (project_folder() / "README.md").read_text(encoding="utf-8")

    assert (project_folder() / "docs" / "detection.md").read_text(encoding="utf-8") == detection_text(held)
    assert with_table(readme, readme_table(held)) == readme


def test_the_committed_results_are_whole_and_meet_the_targets():
    """Every fault was tried, four fifths are caught in quick; 200 healthy runs, none accused."""
    held = {name: result["rows"] for name, result in read_all(RESULTS).items()}
    tiny = score_line(held["matrix-tiny"])

    assert [row["id"] for row in held["matrix-tiny"]] == list(FAULTS)
    assert [row["id"] for row in held["unseen-tiny"]] == [row["id"] for row in held["unseen-first"]] == list(UNSEEN)
    assert [row["id"] for row in held["blind-tiny"]] == [row["id"] for row in held["blind-first"]] == list(BLIND)
    assert [row["id"] for row in held["blind-second-tiny"]] == list(BLIND_SECOND)
    assert [row["id"] for row in held["blind-second-first"]] == list(BLIND_SECOND)
    assert tiny["quick"] >= 0.8 * tiny["faults"]
    assert len(held["healthy-tiny"]) >= 200
    assert study.alarms(held["healthy-tiny"]) == []
    assert {check for row in held["matrix-tiny"] for check in row["named_by"]} <= CHECKS.keys()


def test_every_survivor_is_explained():
    """By what it would take, and nothing that is caught is still explained."""
    held = read_all(RESULTS)
    survivors = {row["id"] for name in SCORED for row in held[name]["rows"] if row["caught_in"] is None}

    assert survivors == WHAT_IT_WOULD_TAKE.keys()


def test_every_blind_fault_has_its_sentence():
    """Written before any check was named for it."""
    assert list(MUST_SAY) == list(BLIND)
    assert list(MUST_SAY_SECOND) == list(BLIND_SECOND)
    assert all(fault.caught_by for fault in (*BLIND.values(), *BLIND_SECOND.values()))


def test_every_limit_that_is_near_was_dealt_with():
    """Widened with a reason, or replaced by an invariant."""
    held = read_all(RESULTS)
    studied = [held[name]["rows"] for name in ("healthy-tiny", "healthy-real") if name in held]

    assert {m.check for rows in studied for m in study.study_margins(rows) if m.near} == NEAR_LIMITS.keys()


def test_a_readme_without_a_place_for_the_table_is_refused():
    """Rather than written without it."""
    with pytest.raises(SuiteError, match="are missing: put them where the table belongs"):
        with_table("# tunecheck", "| a |")
    assert with_table(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"


def test_results_that_are_missing_are_named(tmp_path):
    """All but those on real weights must be there."""
    with pytest.raises(SuiteError, match=r"matrix-tiny\.json: no results"):
        read_all(tmp_path)
    assert json.loads((RESULTS / "unseen-first.json").read_text())["kind"] == "unseen tiny"
