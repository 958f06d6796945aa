"""What only a fleet can show: a node that computes wrongly, one that is slow, and what is the fault of no node."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from fleets import BROKEN, RUN, answer, heard, judged, row_of, silent

from tunecheck.core.errors import TraceError
from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.results.fleet import ANSWER_FILE, ANSWERS, FLEETS, Heard, Place, write_drain
from tunecheck.results.fleet.judge import clock_remark, natural
from tunecheck.results.stored import plain, write_record

OTHER_BITS = {**RUN.numbers, "loss of step": (4.5, 4.25, math.nextafter(4.125, 5))}


def agreement(report, place):
    """The finding of a place about its bits."""
    return next(finding for finding in row_of(report, place).findings if finding.check == "nodes_agree")


def test_nodes_that_agree_pass():
    """Nothing is odd, and the status is that of a pass."""
    report = judged(*(answer(number) for number in range(4)))

    assert (report.verdict, report.status) == ("pass", 0)
    assert not any(row.odd for row in report.rows)
    assert all(agreement(report, f"n{number}").passed for number in range(4))


def test_a_node_with_another_bit_is_named_although_its_own_checks_pass():
    """First in the report, with the number at which it departs, and in the list to drain."""
    report = judged(*(answer(number) for number in range(4)), answer(4, numbers=OTHER_BITS))

    assert (report.verdict, report.status) == ("fail", 1)
    wrong = report.rows[0]
    assert wrong.place == "n4"
    assert "first at loss of step 2: 4.125000000000001 on n4, 4.125 on n0" in wrong.findings[0].detail
    assert wrong.findings[0].domain is Domain.HARDWARE
    assert "nodes_agree" in wrong.drain
    assert not any(row.odd for row in report.rows[1:])


@pytest.mark.parametrize("last", [math.nan, math.inf, -0.0])
def test_every_other_bit_counts(last):
    """Also one that compares equal, or with nothing."""
    odd = {**RUN.numbers, "evaluation": (4.6, last)}
    same = {**RUN.numbers, "evaluation": (4.6, 0.0)}
    report = judged(*(answer(number, numbers=same) for number in range(3)), answer(3, numbers=odd))

    assert report.rows[0].place == "n3"
    assert report.status == 1


def test_not_a_number_on_all_is_agreement():
    """By their bits: what diverges everywhere is the training's matter."""
    diverged = {"loss of step": (math.nan, math.nan)}
    report = judged(*(answer(number, numbers=diverged) for number in range(3)))

    assert agreement(report, "n0").passed


def test_of_two_that_differ_neither_is_named():
    """It cannot be said which, so the fleet is inconclusive and nobody is drained."""
    report = judged(answer(0), answer(1, numbers=OTHER_BITS))

    assert (report.verdict, report.status) == ("inconclusive", 6)
    assert "tunecheck cannot tell which is wrong; ask a third node" in agreement(report, "n0").detail
    assert not any(row.drain for row in report.rows)


def test_two_cards_of_one_node_outvote_no_other_node():
    """What is wrong with a node is wrong with both of its cards."""
    report = judged(answer(0, "a"), answer(1, "a"), answer(0, "b", numbers=OTHER_BITS))

    assert all(agreement(report, place).status is Status.UNJUDGED for place in ("a-0", "a-1", "b-0"))


def test_one_card_of_a_node_is_named_by_its_neighbours():
    """Within one node the others are enough."""
    cards = [answer(number, "a") for number in range(3)]
    report = judged(*cards, answer(3, "a", numbers=OTHER_BITS))

    assert [row.place for row in report.rows if row.drain] == ["a-3"]


def test_nodes_that_share_another_result_are_not_broken():
    """An unknown difference of machines is likelier than the same fault twice: unjudged, with the reason."""
    alike = [answer(number, numbers=OTHER_BITS) for number in (7, 8)]
    report = judged(*(answer(number) for number in range(6)), *alike)

    assert report.status == 6
    assert "another setting of these machines is likelier" in agreement(report, "n7").detail
    assert not any(row.drain for row in report.rows)


def test_bits_are_compared_within_a_kind_alone():
    """Another driver may compute another sum; that one node has it is a remark."""
    kind = {**RUN.kind, "driver": "550.54"}
    report = judged(*(answer(number) for number in range(4)), answer(4, kind=kind, numbers=OTHER_BITS))

    assert report.status == 0
    assert row_of(report, "n4").remarks == ("driver 550.54, and 570.86 on 4 of 5",)
    assert "no other node answered with this card" in agreement(report, "n4").detail


def test_a_run_that_is_not_deterministic_is_not_compared():
    """Its sums have no fixed order."""
    report = judged(*(answer(number, deterministic=False) for number in range(3)), answer(3, numbers=OTHER_BITS))

    assert report.status == 0
    assert "does not set training.deterministic" in agreement(report, "n0").detail


@pytest.mark.parametrize(("figure", "value"), [("temperature_celsius", 91.0), ("peak_allocated_bytes", 2.0**31)])
def test_a_hot_or_large_node_is_a_remark(figure, value):
    """It decides nothing: the speed does."""
    odd = {**RUN.figures, figure: value}
    report = judged(*(answer(number) for number in range(9)), answer(9, figures=odd))

    assert report.status == 0
    assert report.rows[0].place == "n9"
    assert "median of its kind" in report.rows[0].remarks[0]
    assert not report.rows[0].drain


@pytest.mark.parametrize("speed", [900.0, math.nan])
def test_a_slow_node_fails_and_is_drained(speed):
    """A job over several nodes waits for it; a speed that is no number is no speed."""
    slow = {**RUN.figures, "tokens_per_second": speed}
    report = judged(*(answer(number) for number in range(9)), answer(9, figures=slow))

    assert (report.rows[0].place, report.status) == ("n9", 1)
    assert "node_speed" in report.rows[0].drain


def test_a_slow_node_with_other_work_on_it_is_a_remark():
    """The check of speed in a session holds no node to a time that others took."""
    slow = {"figures": {"tokens_per_second": 900.0}, "disturbed": "other processes used 60% of the CPU time"}
    report = judged(*(answer(number) for number in range(9)), answer(9, **slow))

    assert report.status == 0
    assert report.rows[0].remarks[0].endswith("other processes used 60% of the CPU time")


def test_healthy_scatter_flags_nobody():
    """Speeds within a fifth of each other, and seven nodes are too few to judge."""
    paces = (1700, 1750, 1800, 1850, 1900, 2000, 2050, 2100)
    some = [answer(n, figures={"tokens_per_second": float(pace)}) for n, pace in enumerate(paces)]
    few = [answer(n, figures={"tokens_per_second": 200.0 if n == 6 else 2000.0}) for n in range(7)]

    assert judged(*some).status == judged(*few).status == 0


def test_what_fails_on_one_node_drains_it_and_what_fails_on_most_drains_none():
    """A bug of the training is found on every node."""
    one = judged(*(answer(number) for number in range(4)), answer(4, status=1, outcome="fail", failed=(BROKEN,)))
    most = judged(answer(0), *(answer(n, status=1, outcome="fail", failed=(BROKEN,)) for n in range(1, 5)))

    assert row_of(one, "n4").drain == "quick/tiny: loss_oracle failed on 1 of 5 places"
    assert not any(row.drain for row in most.rows)
    assert "loss_oracle on 4 of 5 places: look at the training" in most.notes[0]
    assert one.status == most.status == 1


def test_what_could_not_be_judged_is_told_with_its_reason():
    """Once for the checks that share it."""
    why = "the probe failed at the end: No space left on device"
    lost = [Finding(check=check, status=Status.UNJUDGED, detail=why) for check in ("a", "b")]
    report = judged(answer(0), answer(1, status=6, outcome="inconclusive", reason="without", unjudged=tuple(lost)))

    assert report.status == 6
    assert (report.rows[0].unjudged, report.rows[0].reason) == ((f"quick/tiny: a, b: {why}",), "")


@pytest.mark.parametrize(
    ("status", "stopped", "drained"), [(6, False, True), (6, True, False), (2, False, False), (124, True, True)]
)
def test_a_signal_from_outside_is_no_fault_of_the_node(status, stopped, drained):
    """A cancelled job or a killed process drains nobody; a training that hung until --time does."""
    one = answer(4, status=status, outcome="error", reason="it did not end", stopped=stopped, numbers={})
    report = judged(*(answer(number) for number in range(4)), one)

    assert bool(row_of(report, "n4").drain) == drained
    assert report.status == 6


def test_a_hardware_fault_drains_at_once():
    """Whatever the others do."""
    fault = replace(BROKEN, domain=Domain.HARDWARE, evidence="uncorrected memory errors: 0 before, 2 after")
    report = judged(answer(0, status=1, outcome="fail", failed=(fault,)))

    assert "hardware: uncorrected memory errors" in report.rows[0].drain


def test_nodes_without_an_answer_are_rows():
    """A node that is gone is drained, one that is busy is not; the fleet is inconclusive."""
    busy, gone = silent("n8", "no answer within 1 h: queued"), silent("n9", "NODE_FAIL", gone=True)
    report = judged(answer(0), answer(1), busy, gone)

    assert (report.verdict, report.status) == ("inconclusive", 6)
    assert [(row.place, row.outcome, row.drain) for row in report.rows[:2]] == [
        ("n8", "no answer", ""),
        ("n9", "no answer", "NODE_FAIL"),
    ]


def test_a_node_that_is_gone_is_drained_though_its_answer_came():
    """The daemon died, and the task went on to its end."""
    told = [heard(answer(number)) for number in range(3)]
    told[1].missing, told[1].gone = "NODE_FAIL", True
    told[2].missing = "TIMEOUT"
    report = judged(*told)

    assert [(row.place, row.outcome, row.drain) for row in report.rows if row.odd] == [("n1", "error", "NODE_FAIL")]
    assert report.status == 6


@pytest.mark.parametrize(
    ("statuses", "interrupted", "status"),
    [
        ((0, 0), False, 0),
        ((0, 7), False, 0),
        ((7, 7), False, 7),
        ((0, 6), False, 6),
        ((0, 4), False, 4),
        ((0, 0), True, 2),
        ((0, 1), True, 1),
        ((), False, 6),
    ],
)
def test_the_exit_status_is_that_of_the_worst(statuses, interrupted, status):
    """A failure first, then an interrupt, a usage error, what could not be judged."""
    answers = [answer(number, status=one) for number, one in enumerate(statuses)]

    assert judged(*answers, interrupted=interrupted).status == status


@pytest.mark.parametrize(("broken", "healthy", "drained"), [(1, 3, 1), (1, 0, 1), (1, 1, 1), (3, 1, 0)])
def test_a_node_without_its_gpu_is_drained_unless_most_are(broken, healthy, drained):
    """What most have in common is the software."""
    gone = {"status": 1, "outcome": "fail", "reason": "no driver", "domain": Domain.ENVIRONMENT, "numbers": {}}
    report = judged(*(answer(n, **gone) for n in range(broken)), *(answer(9 - n) for n in range(healthy)))

    assert report.status == 1
    assert sum("no GPU works" in row.drain for row in report.rows) == drained
    assert any("no GPU works on 3 of 4 places" in note for note in report.notes) == (not drained)


@pytest.mark.parametrize("runs", [(), (replace(RUN, passed=0),), (replace(RUN, outcome="inconclusive"),)])
def test_nothing_judged_is_no_pass(runs):
    """Whatever the status says."""
    report = judged(*(replace(answer(number), runs=runs) for number in range(3)))

    assert (report.verdict, report.status) == ("inconclusive", 6)
    assert "nothing was judged" in report.rows[0].reason


@pytest.mark.parametrize(
    ("began", "ended", "words"),
    [(100, 160, ""), (97, 160, ""), (40, 100, "1 min 00 s behind"), (190, 290, "2 min 00 s ahead")],
)
def test_clocks_that_are_apart_are_told(began, ended, words):
    """A node begins after it was asked and ends before its answer is seen, here at 100 and 170."""
    remark = clock_remark(replace(answer(0), began_at=began, ended_at=ended), 100, 170)

    assert (words in remark) if words else remark == ""


def test_an_answer_and_a_report_are_read_as_written(tmp_path):
    """Also not-a-number."""
    one = answer(3, numbers={"loss of step": (math.nan, 1.5)}, failed=(BROKEN,))
    write_record(one, tmp_path / ANSWER_FILE)
    report = judged(one, answer(4), silent("n9", "gone"))
    write_record(report, tmp_path / "fleet.json")

    assert plain(ANSWERS.read(tmp_path / "answer.json")) == plain(one)
    assert plain(FLEETS.read(tmp_path / "fleet.json")) == plain(report)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "cannot be read as JSON"),
        ("[]", "not written by `tunecheck fleet`"),
        ('{"schema": 99, "tunecheck": "9.0"}', "schema 99, written by tunecheck 9.0; this tunecheck reads 1"),
        ('{"schema": 1, "place": 3}', "damaged"),
        ('{"schema": 1}', "damaged"),
    ],
)
def test_a_broken_answer_is_an_error_with_its_file(tmp_path, content, words):
    """Never a traceback."""
    (tmp_path / "answer.json").write_text(content)
    with pytest.raises(TraceError, match=r"answer\.json") as error:
        ANSWERS.read(tmp_path / "answer.json")

    assert words in str(error.value)


def test_the_list_to_drain_is_what_slurm_takes(tmp_path):
    """One line of names; JSON has each place with its reason."""
    wrong = [answer(0, "a", numbers=OTHER_BITS), answer(1, "a"), answer(2, "b"), answer(3, "c"), answer(4, "d")]
    write_drain(judged(*wrong, silent("n9", "NODE_FAIL", gone=True)), tmp_path)

    assert (tmp_path / "drain.txt").read_text() == "a,n9\n"
    held = json.loads((tmp_path / "drain.json").read_text())
    assert [(one["node"], one["places"][0]["place"]) for one in held["nodes"]] == [("a", "a-0"), ("n9", "n9")]


def test_nothing_to_drain_is_an_empty_file(tmp_path):
    """Which `test -s` tells."""
    write_drain(judged(answer(0)), tmp_path)

    assert (tmp_path / "drain.txt").read_text() == ""


@pytest.mark.parametrize("name", ["ALL", "n[1-99]", "n1,n2", "n1 reason=x", "$(reboot)", "n1\nn2", "-n1", ""])
def test_what_is_no_name_of_one_node_is_not_in_the_list(tmp_path, name):
    """Slurm or a shell would take it for something else; it is told."""
    report = judged(*(silent(one, "NODE_FAIL", gone=True) for one in (name, "n2")))
    write_drain(report, tmp_path)

    assert (tmp_path / "drain.txt").read_text() == "n2\n"
    assert any(repr(name) in note for note in report.notes)


def test_an_answer_drains_no_other_node_than_the_one_that_was_asked():
    """Whatever it says of itself."""
    fault = replace(BROKEN, domain=Domain.HARDWARE)
    liar = replace(answer(0, status=1, outcome="fail", failed=(fault,)), node="n7")

    assert judged(Heard(Place(name="n0", node="n0"), answer=liar)).rows[0].node == "n0"


@pytest.mark.parametrize(("answers", "status"), [(2, 0), (0, 6)])
def test_a_node_that_is_out_of_service_is_no_fault_of_the_fleet(answers, status):
    """An administrator drained it; a fleet of such nodes alone was not judged."""
    out = Heard(Place(name="n9", node="n9", problem="x", drained=True))
    report = judged(*map(answer, range(answers)), out)

    assert report.status == status
    assert row_of(report, "n9").outcome == "skipped"
    assert report.notes == ("not asked, because already out of service: n9",)


def test_places_are_sorted_as_a_person_would():
    """n2 before n10."""
    assert sorted(["n10-1", "n2", "n10-0"], key=natural) == ["n2", "n10-0", "n10-1"]
