"""Whose matter a failure is: the rules in their order, on made-up traces; and what telemetry amounts to."""

from __future__ import annotations

import dataclasses

import pytest
from metered import MIB, UUID, metered, sample
from traces import BY_A_SCRIPT, adding, healthy, with_record, with_run, without

from tunecheck.checks import asked_of
from tunecheck.checks.telemetry import HARDWARE_XIDS, XIDS, hardware_faults, other_gpu_processes, telemetry, throttled
from tunecheck.core import evidence as e
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Attempt, Trace
from tunecheck.results import summarize
from tunecheck.results.domain import Domain, attributed, domain_of, domain_of_end

ON_GPU, ON_CPU = metered(), healthy()
STRANGER = e.CardProcess(pid=4711, name="python3", used_bytes=1200 * MIB)
HOT = sample(60.0, readings=100, clock_reasons={"hardware thermal slowdown": 90})
BROKEN = sample(60.0, xids=(79,))


def failed(check: str) -> Finding:
    """A failed finding of this check."""
    return Finding(check=check, status=Status.FAILED)


def repeated(trace: Trace, change: float = 1.0, *, deterministic: bool = False) -> Trace:
    """The trace with a second fresh process whose losses are this many times as large."""
    made = with_record(trace, e.Setup, numerics={"deterministic": deterministic})
    steps = tuple(dataclasses.replace(step, loss=step.loss * change) for step in made.steps[:3])
    start = dataclasses.replace(made.main.start, purpose="repeat")
    return Trace(made.header, (*made.attempts, Attempt(start, steps, made.main.end)))


PARTIAL = with_record(ON_GPU, e.Telemetry, complete=False, problem="the sampling process was killed by SIGKILL")

RULES: dict[str, tuple[Trace, str, Domain, str]] = {
    "a broken card explains a wrong loss": (
        adding(ON_GPU, BROKEN),
        "loss_oracle",
        Domain.HARDWARE,
        "Xid 79: the GPU has fallen off the bus",
    ),
    "and goes before company": (
        adding(ON_GPU, BROKEN, sample(61.0, others=(STRANGER,))),
        "throughput_steady",
        Domain.HARDWARE,
        "Xid 79: the GPU has fallen off the bus",
    ),
    "company explains a slow run": (
        adding(ON_GPU, sample(60.0, others=(STRANGER,))),
        "throughput_steady",
        Domain.ENVIRONMENT,
        "other GPU processes: process 4711 (python3, 1,200 MiB)",
    ),
    "a busy machine explains a slow run": (
        with_record(ON_GPU, e.Phase, others_busy_share=0.7),
        "throughput_steady",
        Domain.ENVIRONMENT,
        "other processes used 70% of the CPU time while it trained",
    ),
    "a busy machine explains no wrong loss": (
        with_record(ON_GPU, e.Phase, others_busy_share=0.7),
        "loss_oracle",
        Domain.WORKLOAD,
        "the GPU was watched to the end and reported no fault",
    ),
    "company explains no memory of the process's own": (
        adding(ON_GPU, sample(60.0, others=(STRANGER,))),
        "memory_flat",
        Domain.WORKLOAD,
        "the GPU was watched to the end and reported no fault",
    ),
    "company explains no wrong loss": (
        adding(ON_GPU, sample(60.0, others=(STRANGER,))),
        "loss_oracle",
        Domain.WORKLOAD,
        "the GPU was watched to the end and reported no fault",
    ),
    "throttling explains a slow run": (
        adding(ON_GPU, HOT),
        "throughput_steady",
        Domain.ENVIRONMENT,
        "hardware thermal slowdown in 90 of 575 readings, up to 61 degrees Celsius",
    ),
    "throttling excuses no wrong loss": (
        adding(ON_GPU, HOT),
        "loss_oracle",
        Domain.WORKLOAD,
        "the GPU was watched to the end and reported no fault",
    ),
    "a slow run on a cool card is the workload's": (
        ON_GPU,
        "throughput_steady",
        Domain.WORKLOAD,
        "the GPU was watched to the end and reported no fault",
    ),
    "a repeat that agrees": (
        repeated(PARTIAL),
        "loss_falls",
        Domain.WORKLOAD,
        "a fresh process gave the same losses to the last bit in 3 steps",
    ),
    "a repeat that differs though nothing may": (
        repeated(ON_GPU, 1.01, deterministic=True),
        "repeat_equals",
        Domain.HARDWARE,
        "suspected: a fresh process gave other losses although the arithmetic is deterministic",
    ),
    "a repeat that may differ": (
        repeated(ON_GPU, 1.01),
        "repeat_equals",
        Domain.UNKNOWN,
        "a fresh process gave other losses, and the run does not set training.deterministic",
    ),
    "a repeat that is equal and yet failed": (
        repeated(ON_GPU),
        "repeat_equals",
        Domain.UNKNOWN,
        "the losses agree, and yet the check failed",
    ),
    "NaN twice is the same": (
        repeated(with_record(ON_GPU, e.Step, loss=float("nan"))),
        "finite",
        Domain.WORKLOAD,
        "a fresh process gave the same losses to the last bit in 3 steps",
    ),
    "a page fault may be the program's": (
        adding(ON_GPU, sample(60.0, xids=(31,))),
        "finite",
        Domain.UNKNOWN,
        "Xid 31: memory page fault: an illegal access: run again in a fresh process",
    ),
    "a dead sampler proves nothing": (
        PARTIAL,
        "finite",
        Domain.UNKNOWN,
        "the GPU was not watched to the end: the sampling process was killed by SIGKILL",
    ),
    "nor does none": (
        without(ON_GPU, e.Telemetry),
        "finite",
        Domain.UNKNOWN,
        "the GPU was not watched to the end: there are no samples",
    ),
    "a script's own GPU": (
        with_run(without(ON_GPU, e.Telemetry), premises=BY_A_SCRIPT),
        "finite",
        Domain.UNKNOWN,
        "",
    ),
    "on the CPU": (
        Trace(ON_CPU.header, ON_CPU.attempts[:1]),
        "finite",
        Domain.WORKLOAD,
        "trained on the CPU: no GPU was involved",
    ),
    "it is not known where it ran": (
        without(ON_GPU, e.Setup),
        "finite",
        Domain.UNKNOWN,
        "the trace holds no Setup record",
    ),
    "a check of another version": (
        ON_GPU,
        "no_such_check",
        Domain.WORKLOAD,
        "the GPU was watched to the end and reported no fault",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_each_rule_in_its_order(case: str) -> None:
    """A domain and what speaks for it."""
    trace, check, domain, evidence = RULES[case]
    assert domain_of(trace, failed(check)) == (domain, evidence)


def test_only_failures_are_attributed() -> None:
    """A passed or unjudged finding is nobody's matter."""
    for status in (Status.PASSED, Status.UNJUDGED):
        finding = Finding(check="finite", status=status)
        assert attributed(adding(ON_GPU, BROKEN), finding) is finding
    told = attributed(adding(ON_GPU, BROKEN), failed("finite"))
    assert (told.domain, told.evidence) == ("hardware", "Xid 79: the GPU has fallen off the bus")


# Company.


def hidden(**before: object) -> Trace:
    """A container: the driver never lists the training under its own id."""
    trace = with_record(ON_GPU, e.DeviceSample, process_seen=False, process_bytes=None)
    return with_record(trace, e.Telemetry, memory_source="device", **before)


def listing(trace: Trace, *processes: e.CardProcess) -> Trace:
    """These are on the card all the time."""
    return with_record(trace, e.DeviceSample, others=processes)


def test_a_card_of_its_own_has_no_company() -> None:
    """With process ids and without."""
    assert other_gpu_processes(ON_GPU) == other_gpu_processes(hidden()) == other_gpu_processes(ON_CPU) == ""


def test_the_training_under_the_hosts_number_is_no_stranger() -> None:
    """One newcomer, the largest, is taken for it; whoever was there before or is one too many is company."""
    own = e.CardProcess(pid=99001, name=None, used_bytes=2000 * MIB)
    assert other_gpu_processes(listing(hidden(), own)) == ""
    assert other_gpu_processes(listing(hidden(), STRANGER, own)) == "process 4711 (python3, 1,200 MiB)"
    assert (
        other_gpu_processes(listing(hidden(processes_before=(STRANGER,)), STRANGER))
        == "process 4711 (python3, 1,200 MiB)"
    )
    unknown = e.CardProcess(pid=5, name=None, used_bytes=None)
    assert other_gpu_processes(listing(ON_GPU, unknown)) == "process 5 (name unknown, memory unknown)"


def test_a_hidden_neighbour_that_came_in_an_attempt_before_is_company() -> None:
    """What a fallback step finds taken was free when the run began."""
    late = with_record(hidden(used_bytes_before=9000 * MIB), e.DeviceSample, used_bytes=9500 * MIB)
    early = hidden(used_bytes_before=600 * MIB).main
    assert "does not list (" in other_gpu_processes(dataclasses.replace(late, attempts=(early, *late.attempts)))


def test_windows_are_no_company() -> None:
    """What draws more than a desktop is."""
    windows = e.CardProcess(pid=6, name="Xorg", used_bytes=700 * MIB, graphics=True)
    game = e.CardProcess(pid=7, name="game", used_bytes=4000 * MIB, graphics=True)
    assert other_gpu_processes(listing(ON_GPU, windows)) == ""
    assert other_gpu_processes(listing(ON_GPU, windows, game)) == "process 7 (game, 4,000 MiB)"


def test_memory_that_nobody_is_named_for_is_company_too() -> None:
    """Where it came during the run: what was there before may be a desktop's, or that of Windows around WSL2."""
    used = with_record(ON_GPU, e.DeviceSample, used_bytes=5500 * MIB)
    assert other_gpu_processes(with_record(used, e.Telemetry, used_bytes_before=3000 * MIB)) == ""
    taken = with_record(hidden(), e.DeviceSample, used_bytes=5000 * MIB)
    assert other_gpu_processes(taken) == "processes that the driver does not list (1,364 MiB or more)"
    assert other_gpu_processes(hidden(used_bytes_before=None)) == ""
    assert other_gpu_processes(with_record(taken, e.Phase, peak_reserved_bytes=None)) == ""


def test_another_card_was_watched() -> None:
    """Then its samples say nothing; a MIG instance is the same with and without its prefix."""
    other = with_record(adding(ON_GPU, sample(60.0, others=(STRANGER,))), e.Telemetry, uuid="GPU-ffff")
    assert other_gpu_processes(other) == ""
    assert telemetry(with_record(ON_GPU, e.Setup, cuda={"uuid": "MIG-5"}).main).complete is False
    same = with_record(with_record(ON_GPU, e.Setup, cuda={"uuid": "GPU-5"}), e.Telemetry, uuid="MIG-5")
    assert telemetry(same.main).complete


# Throttling.


def test_single_readings_are_no_throttling() -> None:
    """A slowdown may come with a change of the power state; a software power cap is ordinary."""
    assert throttled(ON_GPU) == ""
    assert throttled(adding(ON_GPU, sample(60.0, clock_reasons={"hardware slowdown": 2}))) == ""
    assert throttled(adding(ON_GPU, sample(60.0, clock_reasons={"hardware slowdown": 20}))) == ""
    assert "power brake" in throttled(adding(ON_GPU, sample(60.0, readings=40, clock_reasons={"power brake": 40})))


def test_throttling_before_the_training_does_not_count() -> None:
    """Loading a model is not what was slow."""
    early = sample(1.0, seconds=2.0, readings=400, clock_reasons={"power brake": 400})
    assert throttled(adding(ON_GPU, early)) == ""


def test_a_clock_that_falls_is_seen_without_a_reason() -> None:
    """First against last third of the steady part."""
    times = [float(at) for at in range(15, 100, 5)]
    falling = adding(without(ON_GPU, e.DeviceSample), *(sample(at, sm_clock_mhz=2000 - 5 * at) for at in times))
    assert throttled(falling) == "the SM clock fell from 1875 to 1575 MHz"
    untold = with_record(ON_GPU, e.DeviceSample, sm_clock_mhz=None, temperature_celsius=None, clock_reasons=None)
    assert throttled(untold) == ""


# Xids.


def test_every_xid_has_a_meaning_and_unknown_ones_condemn_nobody() -> None:
    """The tables are data; only some of the numbers put the GPU at fault."""
    assert all(XIDS.values())
    assert XIDS.keys() > HARDWARE_XIDS
    assert hardware_faults(adding(ON_GPU, sample(60.0, xids=(9999, 63, 48, 48)))) == ["Xid 48: double-bit memory error"]


# What did not end.


def ended(trace: Trace, outcome: str, cause: e.AttemptCause | None = None) -> Trace:
    """The trace as if its training had ended so after its first records."""
    end = e.AttemptEnd(outcome=e.AttemptOutcome(outcome), detail="made up", seconds=1.0, cause=cause)
    return Trace(trace.header, (Attempt(trace.main.start, trace.main.records[:40], end),))


@pytest.mark.parametrize(
    ("outcome", "cause", "domain"),
    [
        ("crashed", e.AttemptCause.KILLED, Domain.ENVIRONMENT),
        ("crashed", e.AttemptCause.SIGNAL, Domain.UNKNOWN),
        ("crashed", e.AttemptCause.START, Domain.ENVIRONMENT),
        ("crashed", e.AttemptCause.EXIT, Domain.UNKNOWN),
        ("hung", e.AttemptCause.DEADLINE, Domain.UNKNOWN),
        ("failed", e.AttemptCause.DISK_FULL, Domain.ENVIRONMENT),
        ("out_of_memory", e.AttemptCause.HOST_MEMORY, Domain.ENVIRONMENT),
        ("out_of_memory", e.AttemptCause.GPU_MEMORY, Domain.UNKNOWN),
        ("failed", e.AttemptCause.GPU_ERROR, Domain.UNKNOWN),
        ("failed", e.AttemptCause.NO_GPU, Domain.ENVIRONMENT),
        ("failed", e.AttemptCause.ERROR, Domain.WORKLOAD),
        ("unavailable", None, Domain.ENVIRONMENT),
        ("misconfigured", None, Domain.WORKLOAD),
        ("crashed", None, Domain.UNKNOWN),
    ],
)
def test_what_keeps_a_run_from_its_end_has_a_domain(outcome, cause, domain) -> None:
    """By what was seen from outside; UNKNOWN where nothing was."""
    found = domain_of_end(ended(ON_CPU, outcome, cause))

    assert found is not None
    assert found[0] is domain
    assert found[1]


@pytest.mark.parametrize("outcome", ["finished", "interrupted"])
def test_what_ended_as_it_should_or_was_interrupted_has_none(outcome) -> None:
    """Whoever presses Ctrl-C knows."""
    assert domain_of_end(ended(ON_CPU, outcome)) is None


def test_a_fault_or_another_process_on_the_gpu_explains_the_end() -> None:
    """Before whatever the training raised."""
    broken = Trace(ON_GPU.header, (Attempt(ON_GPU.main.start, (*ON_GPU.main.records, BROKEN), _end("failed")),))
    assert domain_of_end(broken)[0] is Domain.HARDWARE
    for trace in (ON_GPU, without(ON_GPU, e.Setup)):  # the latter ran out of memory while the weights were loaded
        assert domain_of_end(ending(trace, "out_of_memory", CROWD))[0] is Domain.ENVIRONMENT


def test_another_process_on_the_gpu_explains_no_error_of_the_program() -> None:
    """It takes memory and time; it changes no shapes."""
    assert domain_of_end(ending(ON_GPU, "failed", CROWD))[0] is Domain.WORKLOAD


def test_whose_memory_ran_out_is_known_where_the_gpu_was_watched() -> None:
    """That no other process was seen says something only where one would have been."""
    assert domain_of_end(ending(ON_GPU, "out_of_memory"))[0] is Domain.WORKLOAD
    domain, evidence = domain_of_end(ending(PARTIAL, "out_of_memory"))
    assert (domain, evidence) == (
        Domain.UNKNOWN,
        "whose memory it was is not known: the sampling process was killed by SIGKILL",
    )


CROWD = sample(60.0, others=(STRANGER,))


def ending(trace: Trace, outcome: str, *seen: e.Record) -> Trace:
    """The trace with these records more, and ended so."""
    return Trace(trace.header, (Attempt(trace.main.start, (*trace.main.records, *seen), _end(outcome)),))


@pytest.mark.parametrize(
    ("check", "seen", "outcome", "domain"),
    [
        ("hardware_healthy", BROKEN, "error", Domain.HARDWARE),
        ("loss_oracle", BROKEN, "error", Domain.HARDWARE),
        ("throughput_steady", HOT, "error", Domain.ENVIRONMENT),
        ("throughput_steady", CROWD, "error", Domain.ENVIRONMENT),
        ("loss_oracle", HOT, "fail", ""),
        ("loss_oracle", CROWD, "fail", ""),
    ],
)
def test_what_the_machine_explains_is_not_judged_bad(check, seen, outcome, domain) -> None:
    """The finding stays; the run could not be judged, and says why."""
    row = summarize(adding(ON_GPU, seen), [failed(check)], trace_file="", seconds=1.0)

    assert (row.outcome, row.domain, [found.check for found in row.failed]) == (outcome, domain, [check])
    assert (f"{check} failed by a fault of the machine" == row.reason) is (outcome == "error")


def test_a_slow_run_beside_a_wrong_loss_is_judged_bad() -> None:
    """The machine explains one of the two."""
    found = [failed("throughput_steady"), failed("loss_oracle")]

    assert summarize(adding(ON_GPU, HOT), found, trace_file="", seconds=1.0).outcome == "fail"


def test_suspected_hardware_excuses_nothing() -> None:
    """A run that does not repeat may be the program's fault."""
    trace = repeated(ON_GPU, 1.01, deterministic=True)

    assert summarize(trace, [failed("repeat_equals")], trace_file="", seconds=1.0).outcome == "fail"


def test_torch_may_tell_the_whole_cards_uuid_of_a_mig_instance() -> None:
    """Of two whole cards another UUID means another card."""
    uuids = {"uuid": "GPU-ffffffff-0000-0000-0000-000000000009"}
    for sampled, complete in (
        ("MIG-ab12cd34-0000-0000-0000-000000000001", True),
        (UUID, False),
    ):
        trace = with_record(with_record(ON_GPU, e.Setup, cuda=uuids), e.Telemetry, uuid=sampled)
        assert telemetry(trace.main).complete is complete


def _end(outcome: str) -> e.AttemptEnd:
    cause = e.AttemptCause.GPU_MEMORY if outcome == "out_of_memory" else e.AttemptCause.ERROR
    return e.AttemptEnd(outcome=e.AttemptOutcome(outcome), detail="made up", seconds=1.0, cause=cause)


@pytest.mark.parametrize("outcome", ["crashed", "hung", "interrupted", None])
def test_no_check_fails_because_a_training_did_not_end(outcome) -> None:
    """A healthy trace, cut after each of its records: what is missing is unjudged, what is there is still good."""
    end = None if outcome is None else dataclasses.replace(_end("failed"), outcome=e.AttemptOutcome(outcome))
    checks = asked_of(ON_CPU.run.features, ON_CPU.run.checks)
    failed_by_cut = {
        (len(cut.main.records), name)
        for at in range(len(ON_CPU.main.records) + 1)
        for cut in [Trace(ON_CPU.header, (Attempt(ON_CPU.main.start, ON_CPU.main.records[:at], end),))]
        for name, check in checks.items()
        if check(cut).status is Status.FAILED
    }

    assert failed_by_cut == set()
