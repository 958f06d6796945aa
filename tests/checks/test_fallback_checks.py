"""What a correct fallback is: each check on made-up traces that pass it and that fail it."""

from __future__ import annotations

import dataclasses
import math

import pytest
from traces import LOSSES, healthy, with_record

from tunecheck.checks import CHECKS
from tunecheck.checks.device import DeviceAsConfigured
from tunecheck.checks.memory import CardReturnsToBaseline, FallbackInOrder
from tunecheck.checks.saving import FallbackEqualsReference, FallbackStartsFresh
from tunecheck.core import evidence as e
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Attempt, Trace, TraceWriter
from tunecheck.session.rows import Rows

RAN_OUT = "CUDA out of memory. Tried to allocate 20.00 MiB"
MIB = 2**20
BEGUN = e.TrainerState(step=0, tensors={"head": "0123"}, settings={"lr of group 0": "0.1", "random state": "4567"})


def watched(**changes):
    """A card that is as free afterwards as before."""
    told = {"uuid": "GPU-1", "complete": True, "used_bytes_before": 600 * MIB, "used_bytes_after": 601 * MIB}
    return e.Telemetry(**{**told, "process_id": 4242, **changes})


OUT_OF_MEMORY = {"reason": e.AttemptReason.OUT_OF_MEMORY, "detail": RAN_OUT}


def ran_out(fallback_step="", changes=None, *records, **why):
    """An attempt on the GPU that ran out of memory."""
    known = {"reason": e.AttemptReason.REQUESTED, **why, "changes": changes or {}, "fallback_step": fallback_step}
    start = e.AttemptStart(purpose=e.AttemptPurpose.TRAIN, device="cuda:0", **known)
    end = e.AttemptEnd(outcome=e.AttemptOutcome.OUT_OF_MEMORY, detail=RAN_OUT, seconds=3.0)
    return Attempt(start, records or (watched(),), end)


def fallen(*, ladder=("lean", "cpu"), reference=True):
    """As configured and lean ran out on the GPU; the CPU finished, and a run that began there agrees."""
    trace = healthy()
    main, *others = trace.attempts
    start = dataclasses.replace(main.start, fallback_step="cpu", **OUT_OF_MEMORY)
    main = Attempt(start, (BEGUN, *main.records), main.end)
    if reference:
        steps = tuple(record for record in main.records if isinstance(record, e.Step))
        there = dataclasses.replace(start, purpose=e.AttemptPurpose.REFERENCE, fallback_step="")
        others.append(Attempt(there, (BEGUN, *steps), main.end))
    lean = ran_out("lean", {"training.gradient_checkpointing": True}, **OUT_OF_MEMORY)
    attempts = (ran_out(), lean, main, *others)
    run = {**trace.header.run, "fallback": list(ladder), "features": ["fallback", "reference"]}
    return Trace(dataclasses.replace(trace.header, run=run), attempts)


def without_attempt(trace, number):
    """The trace less one of its attempts."""
    return Trace(trace.header, (*trace.attempts[:number], *trace.attempts[number + 1 :]))


def with_attempt(trace, number, **changes):
    """The trace with other fields in an attempt's end, or in its start where the end has none of that name."""
    attempts = list(trace.attempts)
    start, end = attempts[number].start, attempts[number].end
    in_end = {key: value for key, value in changes.items() if hasattr(end, key)}
    in_start = {key: value for key, value in changes.items() if key not in in_end}
    attempts[number] = Attempt(
        dataclasses.replace(start, **in_start), attempts[number].records, dataclasses.replace(end, **in_end)
    )
    return Trace(trace.header, tuple(attempts))


def with_telemetry(trace, **changes):
    """The trace whose first attempt saw this of its card."""
    attempts = list(trace.attempts)
    attempts[0] = Attempt(attempts[0].start, (watched(**changes),), attempts[0].end)
    return Trace(trace.header, tuple(attempts))


FALLEN = fallen()
NOTHING_HAPPENED = healthy()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (DeviceAsConfigured(), f"configured auto, ran on cpu after: out of memory on the GPU: {RAN_OUT}"),
        (FallbackInOrder(), "out of memory, then as configured on cuda:0 -> lean on cuda:0 -> cpu on cpu"),
        (FallbackStartsFresh(), "1 tensors and the random state are those of a fresh start"),
        (FallbackEqualsReference(), "6 steps equal to the last bit"),
        (CardReturnsToBaseline(), "an attempt leaves at most 1 MiB more in use (train as configured)"),
    ],
)
def test_a_correct_fallback_passes(check, words):
    """Each check says what it saw."""
    finding = check(FALLEN)

    assert finding.status is Status.PASSED, finding.detail
    assert finding.detail == words


OOM_PHASE = e.Phase(name="steady", seconds=1.0, out_of_memory_count=2)


def with_phase(count, *records):
    """The main attempt finished although torch counted so many out-of-memory errors in it."""
    attempts = list(FALLEN.attempts)
    phase = dataclasses.replace(OOM_PHASE, out_of_memory_count=count)
    attempts[2] = Attempt(attempts[2].start, (*attempts[2].records, phase, *records), attempts[2].end)
    return Trace(FALLEN.header, tuple(attempts))


PROBE_OOM = e.ProbeFailed(probe="OracleProbe", moment="start", error="OutOfMemoryError: CUDA out of memory (a.py:1)")


def test_an_out_of_memory_error_that_is_recorded_for_a_probe_is_not_hidden():
    """torch counts it in the phase as well; only the rest was caught elsewhere."""
    finding = FallbackInOrder()(with_phase(1, PROBE_OOM))

    assert finding.status is Status.PASSED, finding.detail


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (with_phase(2), "the train attempt ran out of memory 2 times in 'steady' and continued"),
        (with_phase(2, PROBE_OOM), "the train attempt ran out of memory 1 times in 'steady' and continued"),
        (
            with_phase(1, dataclasses.replace(PROBE_OOM, error="RuntimeError: CUDA out of memory")),
            "the train attempt ran out of memory 1 times in 'steady' and continued",
        ),
        (with_phase(math.nan, PROBE_OOM), "the train attempt ran out of memory nan times in 'steady' and continued"),
        (with_phase(math.nan), "the train attempt ran out of memory nan times in 'steady' and continued"),
        (
            with_attempt(FALLEN, 0, outcome=e.AttemptOutcome.CRASHED, detail="SIGSEGV"),
            "started again on cuda:0 after an attempt that crashed: SIGSEGV",
        ),
        (
            with_attempt(FALLEN, 2, reason=e.AttemptReason.REQUESTED),
            "the attempt on cpu does not record the error that caused it",
        ),
        (
            with_attempt(FALLEN, 1, detail="CUDA out of memory. Tried to allocate 40.00 MiB"),
            "the attempt on cpu does not record the error that caused it",
        ),
        (fallen(ladder=["cpu"]), "took as configured, lean, cpu; the fallback is configured as cpu"),
        (fallen(ladder=[]), "took as configured, lean, cpu; the fallback is configured as none"),
        (with_attempt(FALLEN, 1, fallback_step="cpu"), "took as configured, cpu, cpu; the fallback is configured as"),
    ],
)
def test_a_fallback_out_of_order_fails(trace, words):
    """An error that was hidden, a reason that is not recorded, a step that is not configured."""
    finding = FallbackInOrder()(trace)

    assert finding.status is Status.FAILED
    assert words in finding.detail


def test_a_run_without_a_fallback_is_in_order_too():
    """As one whose memory never ran out."""
    finding = FallbackInOrder()(NOTHING_HAPPENED)

    assert finding.passed
    assert finding.detail == "as configured on cpu, memory never ran out"


def test_a_ladder_that_did_not_end_well_is_unjudged():
    """The training's end says more than the order of its attempts."""
    cut = Trace(FALLEN.header, FALLEN.attempts[:2])

    assert FallbackInOrder()(cut).detail == "the training did not finish, so the fallback chain did not end"


def reference_with(**changes):
    """The reference began otherwise."""
    attempts = list(FALLEN.attempts)
    records = (dataclasses.replace(BEGUN, **changes), *attempts[-1].records[1:])
    attempts[-1] = Attempt(attempts[-1].start, records, attempts[-1].end)
    return Trace(FALLEN.header, tuple(attempts))


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (reference_with(tensors={"head": "feed"}), "1 differ from a run that starts on the CPU: head"),
        (reference_with(settings={"random state": "feed"}), "lr of group 0, random state"),
        (with_record(FALLEN, e.TrainerState, 0, tensors=lambda t: t | {"step of head": "1"}), "step of head"),
    ],
)
def test_a_start_that_is_not_fresh_fails(trace, words):
    """Half-trained weights, or moments of the optimizer."""
    finding = FallbackStartsFresh()(trace)

    assert finding.status is Status.FAILED
    assert words in finding.detail


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (with_record(FALLEN, e.Step, 3, loss=LOSSES[3] * (1 + 1e-7)), "1 of 6 steps differ, first step 3: loss"),
        (with_record(FALLEN, e.Step, loss=math.nan), "6 of 6 steps differ, first step 0: loss nan"),
        (with_record(FALLEN, e.Step, 5, step=7), "1 of 6 steps differ, first step 5: the first run has no"),
    ],
)
def test_other_losses_than_the_references_fail(trace, words):
    """By as little as a bit; a NaN equals nothing; a step that only one of them took."""
    finding = FallbackEqualsReference()(trace)

    assert finding.status is Status.FAILED
    assert words in finding.detail


def test_a_nan_in_both_runs_is_no_agreement():
    """It would be with `!=`."""
    steps = [dataclasses.replace(r, loss=math.nan) if isinstance(r, e.Step) else r for r in FALLEN.attempts[-1].records]
    reference = Attempt(FALLEN.attempts[-1].start, tuple(steps), FALLEN.attempts[-1].end)
    trace = with_record(Trace(FALLEN.header, (*FALLEN.attempts[:-1], reference)), e.Step, loss=math.nan)

    assert FallbackEqualsReference()(trace).status is Status.FAILED


@pytest.mark.parametrize("check", [FallbackStartsFresh(), FallbackEqualsReference()], ids=["start", "losses"])
def test_without_a_fallback_to_the_cpu_there_is_nothing_to_compare(check):
    """That is expected; a reference that is missing or broke off is not."""
    on_gpu = with_attempt(FALLEN, 2, device="cuda:0")
    missing = without_attempt(FALLEN, -1 % len(FALLEN.attempts))
    broken = with_attempt(FALLEN, len(FALLEN.attempts) - 1, outcome="crashed", detail="SIGSEGV")

    assert (check(NOTHING_HAPPENED).expected, check(NOTHING_HAPPENED).detail) == (True, "no fallback happened")
    assert check(on_gpu).expected
    assert "only a fallback to the CPU has a reference" in check(on_gpu).detail
    assert (check(missing).expected, check(missing).status) == (False, Status.UNJUDGED)
    assert check(broken).detail == "the reference attempt did not finish: it crashed: SIGSEGV"


def test_a_reference_that_does_not_say_how_it_began_is_unjudged():
    """The losses alone can be compared."""
    attempts = list(FALLEN.attempts)
    attempts[-1] = Attempt(attempts[-1].start, attempts[-1].records[1:], attempts[-1].end)
    trace = Trace(FALLEN.header, tuple(attempts))

    assert FallbackStartsFresh()(trace).detail == "the reference attempt did not record its start"
    assert FallbackEqualsReference()(trace).passed


STRANGER = e.CardProcess(pid=77, name="other", used_bytes=300 * MIB)
SMALLER = dataclasses.replace(STRANGER, used_bytes=100 * MIB)
SILENT = e.CardProcess(pid=78, name=None, used_bytes=None)
LEFT = e.CardProcess(pid=4243, name="python", used_bytes=500 * MIB, descendant=True)
OWN = e.CardProcess(pid=4242, name="python", used_bytes=500 * MIB)


@pytest.mark.parametrize(
    ("seen", "measured"),
    [
        ({"used_bytes_after": 1100 * MIB, "processes_after": (LEFT,)}, 500.0),
        ({"used_bytes_after": math.nan}, math.nan),
        ({"used_bytes_after": 1100 * MIB, "processes_after": (STRANGER, LEFT)}, 200.0),
        ({"used_bytes_after": 1100 * MIB, "processes_before": (SMALLER,), "processes_after": (STRANGER, LEFT)}, 300.0),
        ({"used_bytes_after": 600 * MIB, "processes_before": (STRANGER,), "processes_after": (LEFT,)}, 300.0),
    ],
)
def test_memory_that_does_not_come_back_fails(seen, measured):
    """The largest growth of any attempt; what others took or gave back meanwhile is not the run's."""
    finding = CardReturnsToBaseline()(with_telemetry(FALLEN, memory_source="process", **seen))

    assert finding.status is Status.FAILED
    assert finding.measured == pytest.approx(measured, nan_ok=True)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"used_bytes_after": None}, "was not read before and after"),
        ({"processes_after": (SILENT,)}, "does not report what they hold"),
        ({"processes_after": (OWN,)}, "the training process is still alive"),
        ({"used_bytes_after": 1100 * MIB, "memory_source": "device"}, "the driver does not list the owner"),
        ({"used_bytes_after": 1100 * MIB, "memory_source": "process"}, "no process of the attempt is left"),
    ],
)
def test_a_card_that_does_not_tell_is_unjudged(seen, words):
    """Silence is no baseline."""
    finding = CardReturnsToBaseline()(with_telemetry(FALLEN, **seen))

    assert (finding.status, finding.expected) == (Status.UNJUDGED, False)
    assert words in finding.detail


def test_newcomers_and_older_processes_leave_the_baseline_alone():
    """Only what the attempt itself left behind counts."""
    came = with_telemetry(FALLEN, used_bytes_after=900 * MIB, processes_after=(STRANGER,))
    stayed = with_telemetry(FALLEN, processes_before=(SILENT,), processes_after=(SILENT,))
    grew = with_telemetry(FALLEN, used_bytes_after=800 * MIB, processes_before=(SMALLER,), processes_after=(STRANGER,))

    assert CardReturnsToBaseline()(grew).passed
    assert CardReturnsToBaseline()(came).passed
    assert CardReturnsToBaseline()(stayed).passed
    assert CardReturnsToBaseline()(NOTHING_HAPPENED).expected


def test_offloaded_parameters_may_lie_on_the_cpu_and_others_may_not():
    """The trace says of the fallback step that they do."""
    trace = with_record(healthy(), e.Census, devices={"cpu": 20, "cuda:0": 4})
    start = dataclasses.replace(trace.main.start, device="cuda:0", fallback_step="offload")
    placed = dataclasses.replace(start, changes={"training.offload": "parameters"})

    def on(start):
        main = Attempt(start, trace.main.records, trace.main.end)
        return DeviceAsConfigured()(Trace(trace.header, (main, *trace.attempts[1:])))

    assert on(placed).passed
    all_on_cpu = with_record(healthy(), e.Census, devices={"cpu": 24}).main.records
    finding = DeviceAsConfigured()(Trace(trace.header, (Attempt(placed, all_on_cpu, trace.main.end),)))
    assert "but no tensor is on cuda:0" in finding.detail
    assert finding.status is Status.FAILED
    assert on(start).status is Status.FAILED


def test_a_trace_is_judged_by_the_settings_of_its_fallback_step():
    """Checkpointing that lean switched on is as configured; the header keeps the run's own configuration."""
    trace = with_attempt(FALLEN, 2, changes={"training.gradient_checkpointing": True, "profile": "lean"})

    assert trace.settings["training"]["gradient_checkpointing"] is True
    assert trace.settings["profile"] == "lean"
    assert trace.header.run["training"]["gradient_checkpointing"] is False


def test_the_checks_are_asked_of_runs_with_a_ladder_or_a_reference():
    """Others have no evidence for them."""
    wanted = {"fallback_in_order": "fallback", "card_returns_to_baseline": "fallback"}
    wanted |= {"fallback_starts_fresh": "reference", "fallback_equals_reference": "reference"}

    assert {name: CHECKS[name].features() for name in wanted} == {n: frozenset({f}) for n, f in wanted.items()}


@pytest.mark.parametrize(("refused", "outcome"), [("skipped", "pass"), ("fail", "fail")])
def test_under_require_gpu_no_run_is_green_that_a_cpu_has_done(tmp_path, refused, outcome):
    """However good its losses are; without the option the report and its headline tell the fallback."""
    name = f"{FALLEN.settings['tier']}/{FALLEN.settings['id']}"
    writer = TraceWriter(tmp_path / f"{name.replace('/', '-')}.jsonl")
    writer.write(FALLEN.header)
    for attempt in FALLEN.attempts:
        writer.write(attempt.start, *attempt.records, attempt.end)
    rows = Rows(folder=tmp_path, too_small=refused)
    rows.add(name, Finding(check="finite", status=Status.PASSED))

    (row,) = rows.all()

    assert row.outcome == outcome
    assert row.retries[-1] == "ran out of memory on cuda:0 (lean), repeated on cpu"
    assert row.reason.startswith(
        "--require-gpu, and the training ran out of memory on cuda:0" if outcome == "fail" else ""
    )
