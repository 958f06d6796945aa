"""The checks that need a card or a long run: leaks, slow-downs, ceilings and broken hardware are found, and a healthy
run is not accused. All traces are made up.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
from metered import METERED, MIB, compared, health, merging, metered, reading_back, sample, step_seconds
from metered import allocated_bytes as healthy_bytes
from traces import adding, with_record, without

from tunecheck.checks import CHECKS, asked_of
from tunecheck.checks.telemetry import other_gpu_processes, throttled
from tunecheck.core import evidence as e
from tunecheck.core.evidence import Record
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Trace

HEALTHY = metered()
CHECK = {
    name: check
    for name, check in asked_of(HEALTHY.settings["features"], HEALTHY.settings["checks"]).items()
    if name in METERED
}
NAN = math.nan
HOT = {"hardware thermal slowdown": 25}
STRANGER = e.CardProcess(pid=4711, name="python3", used_bytes=1200 * MIB)


def replacing(trace: Trace, kind: type[Record], *records: Record) -> Trace:
    """The trace with these records in the place of its own of this kind."""
    return adding(without(trace, kind), *records)


def with_health(**after: object) -> Trace:
    """The counters after the attempt are these."""
    return replacing(HEALTHY, e.Health, health("before"), health("after", **after))


def comparing(**peaks_mib: int | None) -> Trace:
    """The variants took this much."""
    return dataclasses.replace(HEALTHY, attempts=(HEALTHY.main, *compared(**peaks_mib)))


def reading(**changes: float) -> Trace:
    """What was saved reads back like this."""
    return dataclasses.replace(HEALTHY, attempts=(HEALTHY.main, reading_back(**changes)))


def merged(**changes: object) -> Trace:
    """What was saved merges like this."""
    return dataclasses.replace(HEALTHY, attempts=(HEALTHY.main, merging(**changes)))


def leaking(bytes_a_step: int, steps: int = 50, seed: int = 0) -> Trace:
    """A run that keeps so many more bytes at every step."""
    return metered(steps=steps, seed=seed, allocated=lambda rng, step: healthy_bytes(rng, step) + bytes_a_step * step)


def slowing(change: float, steps: int = 500, seed: int = 0) -> Trace:
    """A run whose steps take this much longer at the end than at the beginning, little by little."""
    return metered(steps=steps, seed=seed, seconds=lambda *at: step_seconds(*at) * (1 + change) ** (at[1] / steps))


def on_the_cpu(trace: Trace) -> Trace:
    """The same run without a card: no allocator, no phase peaks, no meter."""
    trace = dataclasses.replace(trace, attempts=(trace.main,))
    trace = with_record(trace, e.Setup, device="cpu", cuda=None)
    trace = with_record(trace, e.AttemptStart, device="cpu")
    trace = with_record(trace, e.Step, allocated_bytes=None)
    peaks = dict.fromkeys(("peak_allocated_bytes", "peak_requested_bytes", "peak_reserved_bytes"))
    trace = with_record(trace, e.Phase, **peaks)
    return without(without(without(trace, e.Telemetry), e.DeviceSample), e.Health)


FAULTS: dict[str, dict[tuple[str, str], Trace]] = {
    "hardware_healthy": {
        ("memory errors", "uncorrected memory errors: 3 before, 5 after"): with_health(uncorrected_ecc=5),
        ("rows remapped", "rows of memory remapped after uncorrected errors: 0 before, 1"): with_health(
            remapped_rows_uncorrected=1
        ),
        ("remap pending", "remapping a row of memory became pending: 0 before, 1 after"): with_health(
            remap_pending=True
        ),
        ("remap failed", "remapping a row of memory failed"): with_health(remap_failed=True),
        ("a reset is due", "recovery action 1"): with_health(recovery_action=1),
        ("lost", "the card: the GPU is lost"): with_health(fault="the card: the GPU is lost"),
        ("double-bit error", "Xid 48: double-bit memory error"): adding(HEALTHY, sample(60.0, xids=(48,))),
        ("poison", "fatal poison"): adding(HEALTHY, sample(60.0, events=("fatal poison",))),
    },
    "memory_flat": {
        ("4 KiB a step over 50 steps", "allocated: +1"): leaking(4096),
        ("1 KiB a step over 200 steps", "allocated: +1"): leaking(1024, steps=200),
        ("on the CPU", "live tensors: +"): replacing(
            on_the_cpu(HEALTHY),
            e.LiveTensors,
            *(e.LiveTensors(step=20 + 10 * n, tensors=242, bytes=18314280 + 40960 * n) for n in range(10)),
        ),
    },
    "vram_ceiling": {
        ("too large", "reserved 1,500 MiB"): with_record(HEALTHY, e.Phase, 2, peak_allocated_bytes=1001 * MIB),
        ("first step too large", "requested 840 MiB"): with_record(
            HEALTHY, e.Phase, 1, peak_allocated_bytes=1000 * MIB + 1
        ),
        ("too large beside others", "loading took 1,200 MiB"): adding(
            with_record(HEALTHY, e.Phase, peak_allocated_bytes=1200 * MIB), sample(60.0, others=(STRANGER,))
        ),
    },
    "throughput_steady": {
        ("5 % in 500 steps", "from step 20 to 499"): slowing(0.05),
        ("twice as slow", "+8"): slowing(1.0, steps=200),
        ("a throttled card", "hardware thermal slowdown in 75 of 550 readings, up to 92 degrees Celsius"): adding(
            slowing(0.3, steps=200),
            *(sample(at, temperature_celsius=92.0, clock_reasons=HOT) for at in (60.0, 70.0, 80.0)),
        ),
        ("a step without a time", "step 60 took nan s"): with_record(HEALTHY, e.Step, 60, seconds=NAN),
    },
    "model_flops_utilization": {
        ("waits for the host", "TFLOP/s of 989 (NVIDIA H200, dense, datasheet)"): with_record(
            HEALTHY, e.Step, seconds=50.0
        ),
        ("no time at all", "nan tokens/s"): with_record(HEALTHY, e.Step, tokens=NAN),
    },
    "memory_order": {
        ("checkpointing does nothing", "checkpointing does not take less than no checkpointing"): comparing(
            checkpointing=300
        ),
        ("nothing is quantised", "as configured does not take less than lora"): comparing(as_configured=450),
        ("frozen weights have gradients", "lora does not take less than full: as configured 300 MiB"): comparing(
            lora=1990
        ),
    },
    "adapter_reads_back": {
        ("another alpha in the file", "logits differ by 0.31"): reading(logit_difference=0.31),
        ("the adapter is not read", "turning the adapters off changes them by 0"): reading(
            logit_difference=0.0, adapter_effect=0.0
        ),
        ("NaN", "logits differ by nan"): reading(logit_difference=NAN),
        ("NaN with the adapters off", "changes them by nan"): reading(adapter_effect=NAN),
        ("all weights rounded", "in fp32 arithmetic 0.0042"): reading(logit_difference=0.0, exact_difference=4.2e-3),
        ("NaN in fp32", "in fp32 arithmetic nan"): reading(exact_difference=NAN),
    },
    "merge_keeps_function": {
        ("into the file's weights", "logits differ by 0.3; without the adapter by 0.4"): merged(logit_difference=0.3),
        ("into packed weights", "still 4-bit: q.weight"): merged(packed_left=("q.weight",)),
        ("not merged", "still adapters: layers.0.q, layers.0.v"): merged(adapters_left=("layers.0.q", "layers.0.v")),
        ("an adapter without effect", "without the adapter by 0"): merged(logit_difference=0.0, adapter_effect=0.0),
        ("NaN", "logits differ by nan"): merged(logit_difference=NAN),
        ("NaN without the adapter", "by nan"): merged(adapter_effect=NAN),
        ("nine tenths of it", "0.82 of the expected change of layers.1.q"): merged(share=0.82, share_at="layers.1.q"),
        ("a share of NaN", "nan of the expected change"): merged(share=NAN, share_at="layers.1.q"),
    },
    "loss_keeps_falling": {
        ("diverges late", "1.263 -> 1.900"): with_record(HEALTHY, e.Evaluation, 4, loss=1.9),
        ("never falls", "4.200 -> 4.200"): with_record(HEALTHY, e.Evaluation, loss=4.2),
        ("NaN in the middle", "nan"): with_record(HEALTHY, e.Evaluation, 2, loss=NAN),
        ("NaN at the end", "nan"): with_record(HEALTHY, e.Evaluation, 4, loss=NAN),
    },
}
"""Check to faults, each with what its finding must name."""


@pytest.mark.parametrize("name", METERED)
def test_a_healthy_run_passes(name: str) -> None:
    """Judged, and judged good."""
    assert CHECK[name](HEALTHY).status is Status.PASSED


@pytest.mark.parametrize(("name", "fault", "culprit"), [(name, *key) for name in FAULTS for key in FAULTS[name]])
def test_a_fault_is_found_and_named(name: str, fault: str, culprit: str) -> None:
    """The finding fails and says what was seen."""
    finding = CHECK[name](FAULTS[name][fault, culprit])
    assert finding.status is Status.FAILED
    assert culprit in finding.detail


@pytest.mark.parametrize(
    ("difference", "rounding", "passed"),
    [
        (0.09, None, True),  # of a base too large to be widened
        (0.09, 0.016, False),
        (0.06, 0.016, True),
        (0.09, 0.05, True),
        (0.11, 0.05, False),
        (0.0, NAN, False),
    ],
)
def test_a_merge_in_16_bit_is_held_to_the_rounding_that_was_measured(difference, rounding, passed) -> None:
    """Never wider than the limit without it."""
    attempts = (with_record(HEALTHY, e.Setup, precision="bf16").main,)
    trace = dataclasses.replace(HEALTHY, attempts=(*attempts, merging(logit_difference=difference, rounding=rounding)))
    assert CHECK["merge_keeps_function"](trace).passed is passed


def test_every_metered_check_is_seen_to_fail() -> None:
    """And the tables here and in test_checks.py hold all checks."""
    assert set(FAULTS) == set(METERED) == set(CHECK)
    assert set(METERED) <= set(CHECKS)


# Not accused, not missed: 200 seeded repeats.


def failures(name: str, make: Callable[[int], Trace], repeats: int = 200) -> int:
    """How many of so many made-up runs fail the check."""
    found = [CHECK[name](make(seed)).status for seed in range(repeats)]
    assert Status.UNJUDGED not in found
    return found.count(Status.FAILED)


@pytest.mark.parametrize("steps", [50, 200])
def test_a_healthy_memory_is_never_accused_of_a_leak(steps: int) -> None:
    """Unread losses and windows of many lengths are no leak."""
    assert failures("memory_flat", lambda seed: metered(steps=steps, seed=seed)) == 0


def test_a_leak_of_4_kib_a_step_is_always_found_in_50_steps() -> None:
    """The smallest leak that the limits promise to find."""
    assert failures("memory_flat", lambda seed: leaking(4096, seed=seed), 100) == 100


@pytest.mark.parametrize(("steps", "scatter"), [(500, 0.02), (100, 0.05)])
def test_a_steady_pace_is_never_accused(steps: int, scatter: float) -> None:
    """Rows of many lengths, scatter and hiccups are no slow-down."""

    def make(seed: int) -> Trace:
        return metered(steps=steps, seed=seed, seconds=lambda *at: step_seconds(*at, scatter=scatter))

    assert failures("throughput_steady", make) == 0


def test_a_slowdown_of_5_percent_is_always_found_in_500_steps() -> None:
    """Little by little, under a scatter of 2 %."""
    assert failures("throughput_steady", lambda seed: slowing(0.05, seed=seed), 100) == 100


@pytest.mark.parametrize("probes", [True, False])
def test_a_noisy_loss_that_falls_is_never_accused(probes: bool) -> None:
    """By the fixed probe batch, and by the training loss alone."""

    def make(seed: int) -> Trace:
        made = metered(seed=seed)
        return made if probes else replacing(made, e.Evaluation, *made.all(e.Evaluation)[:1])

    assert failures("loss_keeps_falling", make) == 0


def by_training_loss(losses: Callable[[random.Random, int], float], steps: int = 200) -> Callable[[int], Trace]:
    """A run with these training losses and one evaluation."""

    def make(seed: int) -> Trace:
        rng = random.Random(seed)
        made = metered(steps=steps, seed=seed)
        records = [dataclasses.replace(step, loss=losses(rng, step.step)) for step in made.steps]
        return replacing(replacing(made, e.Evaluation, made.all(e.Evaluation)[0]), e.Step, *records)

    return make


def test_a_flat_or_rising_training_loss_is_found() -> None:
    """Without probe evaluations: flat with noise, and a fall that rises again."""
    flat = by_training_loss(lambda rng, step: 3.0 * math.exp(rng.gauss(0, 0.1)))
    late = by_training_loss(lambda rng, step: (1.5 + abs(step - 100) / 100) * math.exp(rng.gauss(0, 0.1)))
    nan = by_training_loss(lambda rng, step: NAN if step == 7 else 3.0 - step / 100)
    assert failures("loss_keeps_falling", flat, 50) == 50
    assert failures("loss_keeps_falling", late, 50) == 50
    assert failures("loss_keeps_falling", nan, 1) == 1


# Unjudged.


def unjudged(name: str, trace: Trace) -> tuple[bool, str]:
    """Whether it was expected, and the reason, of a finding that must be unjudged."""
    finding: Finding = CHECK[name](trace)
    assert finding.status is Status.UNJUDGED
    return finding.expected, finding.detail


@pytest.mark.parametrize("name", ["hardware_healthy", "vram_ceiling", "throughput_steady"])
def test_on_the_cpu_there_is_nothing_to_judge(name: str) -> None:
    """As expected, with the reason."""
    expected, reason = unjudged(name, on_the_cpu(HEALTHY))
    assert expected
    assert reason.startswith("trained on the CPU") or reason.startswith("trained on cpu")


def test_on_the_cpu_the_pace_is_judged_by_a_limit_of_its_own() -> None:
    """Where a run asks for it."""
    check = asked_of(HEALTHY.settings["features"], {"throughput_steady": {"max_change_cpu": 0.5}})["throughput_steady"]
    assert check(on_the_cpu(HEALTHY)).passed
    assert check(on_the_cpu(slowing(1.0, steps=200))).status is Status.FAILED


def test_memory_and_loss_are_judged_on_the_cpu_too() -> None:
    """By live tensors, and by the same losses."""
    finding = CHECK["memory_flat"](on_the_cpu(HEALTHY))
    assert finding.passed
    assert finding.detail.startswith("live tensors: +0 bytes")
    assert CHECK["loss_keeps_falling"](on_the_cpu(HEALTHY)).passed


def test_a_fallback_to_the_cpu_leaves_the_ceiling_unjudged_but_not_expectedly() -> None:
    """The GPU's attempt ran out of memory; nobody asked for the CPU."""
    gpu = with_record(HEALTHY, e.AttemptEnd, outcome="out_of_memory").attempts[0]
    both = Trace(HEALTHY.header, (gpu, *on_the_cpu(HEALTHY).attempts))
    assert unjudged("vram_ceiling", both) == (False, "trained on the CPU: no GPU memory was used")


def test_running_out_of_memory_below_the_ceiling_is_not_judged() -> None:
    """And who else was on the card is named."""
    out = with_record(HEALTHY, e.AttemptEnd, outcome="out_of_memory")
    assert unjudged("vram_ceiling", out) == (False, "memory ran out at 900 MiB")
    beside = adding(out, sample(60.0, others=(STRANGER,)))
    assert unjudged("vram_ceiling", beside)[1] == "memory ran out at 900 MiB beside process 4711 (python3, 1,200 MiB)"


def test_peaks_that_nobody_told_are_not_judged() -> None:
    """A ceiling without a measurement is no ceiling kept."""
    trace = with_record(HEALTHY, e.Phase, peak_allocated_bytes=None)
    assert unjudged("vram_ceiling", trace) == (False, "no training phase recorded its peak of allocated memory")


def test_company_on_the_card_makes_a_slow_run_unjudged_and_leaves_the_rest() -> None:
    """What is the process's own is judged all the same."""
    beside = adding(slowing(0.3, steps=200), sample(60.0, others=(STRANGER,)))
    expected, reason = unjudged("throughput_steady", beside)
    assert not expected
    assert "not alone on the GPU: process 4711 (python3, 1,200 MiB)" in reason
    assert CHECK["throughput_steady"](adding(HEALTHY, sample(60.0, others=(STRANGER,)))).passed
    assert CHECK["memory_flat"](adding(leaking(4096), sample(60.0, others=(STRANGER,)))).status is Status.FAILED


def test_a_busy_machine_makes_a_slow_run_unjudged() -> None:
    """Where others took so much of the processors while it trained; a little company excuses nothing."""
    slow = slowing(0.3, steps=200)
    busy, quiet = (with_record(slow, e.Phase, others_busy_share=share) for share in (0.6, 0.4))
    expected, reason = unjudged("throughput_steady", busy)
    assert not expected
    assert reason.endswith("the machine was busy: other processes used 60% of the CPU time while it trained")
    assert CHECK["throughput_steady"](quiet).status is Status.FAILED
    assert CHECK["throughput_steady"](with_record(HEALTHY, e.Phase, others_busy_share=0.6)).passed


def test_a_host_that_slows_down_makes_a_slow_run_unjudged() -> None:
    """The same piece of Python takes longer too. One that stays as fast, or nearly, excuses nothing."""
    slow = slowing(0.3, steps=200)
    noise = random.Random(0)

    def beside(change: float) -> Trace:
        host = tuple(2e-4 * (1 + change * at / 199) * noise.lognormvariate(0, 0.05) for at in range(200))
        return adding(slow, e.StepTimes(seconds=tuple(step.seconds for step in slow.steps), host_seconds=host))

    expected, reason = unjudged("throughput_steady", beside(0.35))
    assert not expected
    assert "but the host slowed down: the same piece of Python took +2" in reason
    assert CHECK["throughput_steady"](beside(0.0)).status is Status.FAILED
    assert CHECK["throughput_steady"](beside(0.15)).status is Status.FAILED


def test_utilization_is_not_judged_on_a_busy_machine() -> None:
    """As a slow run is not."""
    idle = dataclasses.replace(CHECK["model_flops_utilization"], min_utilization=1e9)
    assert idle(HEALTHY).status is Status.FAILED
    assert idle(with_record(HEALTHY, e.Phase, others_busy_share=0.6)).detail.endswith(
        "60% of the CPU time while it trained"
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            without(HEALTHY, e.Telemetry),
            "the GPU was not monitored until the end of the train attempt: there are no samples",
        ),
        (
            with_record(HEALTHY, e.Telemetry, complete=False, problem="the sampling process was killed by SIGKILL"),
            "the GPU was not monitored until the end of the train attempt: the sampling process was killed by SIGKILL",
        ),
        (
            with_record(HEALTHY, e.Telemetry, uuid="GPU-ffff"),
            "the GPU was not monitored until the end of the train attempt: GPU-ffff was sampled, torch used GPU-ab12",
        ),
    ],
    ids=["nobody", "killed", "another card"],
)
def test_a_card_that_was_not_watched_is_not_called_healthy(changed: Trace, reason: str) -> None:
    """Silence is no sign of health."""
    expected, detail = unjudged("hardware_healthy", changed)
    assert not expected
    assert detail.startswith(reason)


@pytest.mark.parametrize("name", METERED)
def test_a_run_that_never_began_is_unjudged(name: str) -> None:
    """And not expectedly so."""
    start = dataclasses.replace(HEALTHY.attempts[0].start, device="cpu")
    attempt = dataclasses.replace(HEALTHY.attempts[0], start=start, records=(), end=None)
    for attempts in ((), (attempt,)):
        assert unjudged(name, Trace(HEALTHY.header, attempts))[0] is False


@pytest.mark.parametrize(
    ("name", "trace", "reason"),
    [
        (
            "memory_flat",
            replacing(HEALTHY, e.Step, *HEALTHY.steps[:25]),
            "5 samples after 20 steps, 8 are needed",
        ),
        ("throughput_steady", replacing(HEALTHY, e.Step, *HEALTHY.steps[:40]), "20 steps after the warm-up"),
        (
            "loss_keeps_falling",
            replacing(replacing(HEALTHY, e.Step, *HEALTHY.steps[:40]), e.Evaluation, *HEALTHY.all(e.Evaluation)[:3]),
            "40 steps, 50 are needed",
        ),
        ("loss_keeps_falling", with_record(HEALTHY, e.Weights, pretrained=False), "the weights are random"),
    ],
)
def test_too_little_evidence_is_unjudged(name: str, trace: Trace, reason: str) -> None:
    """The reason says how much there was."""
    assert reason in unjudged(name, trace)[1]


def test_what_a_card_does_not_tell_is_neither_good_nor_bad() -> None:
    """A consumer card without ECC passes, whatever the other counters say."""
    untold = [
        dataclasses.replace(h, uncorrected_ecc=None, remap_failed=None, recovery_action=None)
        for h in HEALTHY.all(e.Health)
    ]
    assert CHECK["hardware_healthy"](replacing(HEALTHY, e.Health, *untold)).passed
    one_sided = replacing(HEALTHY, e.Health, health("before", uncorrected_ecc=None), health("after"))
    assert CHECK["hardware_healthy"](one_sided).passed


def test_old_counts_throttling_and_unclear_xids_are_no_hardware_fault() -> None:
    """Deltas count, not what the card has lived through; a page fault may be the program's."""
    hot = sample(60.0, clock_reasons={"hardware thermal slowdown": 25}, xids=(31, 63))
    finding = CHECK["hardware_healthy"](adding(HEALTHY, hot))
    assert finding.passed
    assert "Xid 31: memory page fault" in finding.detail


def test_hardware_faults_of_a_repeat_count_too() -> None:
    """Each attempt on the card is watched."""
    again = adding(HEALTHY, sample(60.0, xids=(79,))).attempts[0]
    repeat = dataclasses.replace(again, start=dataclasses.replace(again.start, purpose="repeat"))
    finding = CHECK["hardware_healthy"](Trace(HEALTHY.header, (*HEALTHY.attempts, repeat)))
    assert finding.detail == "Xid 79: the GPU has fallen off the bus"


def test_a_ceiling_tells_process_memory_from_the_device_where_ids_are_hidden() -> None:
    """And says which of the two it is."""
    hidden = with_record(HEALTHY, e.DeviceSample, process_bytes=None, process_seen=False)
    finding = CHECK["vram_ceiling"](with_record(hidden, e.Telemetry, memory_source="device"))
    assert "2,000 MiB of the GPU by the GPU's total less what was used before (the driver hides" in finding.detail
    retried = with_record(HEALTHY, e.Phase, 2, allocation_retries=2)
    assert "2 allocation retries" in CHECK["vram_ceiling"](retried).detail


def test_short_runs_are_not_asked_about_trends() -> None:
    """Nor is a run asked for a ceiling that it does not set."""
    assert not {"memory_flat", "throughput_steady", "vram_ceiling"} & set(asked_of({"several_steps"}, {}))
    assert "memory_flat" in asked_of({"many_steps"}, {})


def test_the_order_of_memory_is_unjudged_without_its_evidence() -> None:
    """On a CPU as expected; a variant that was never made, or never trained, is a gap."""
    check = CHECK["memory_order"]
    without_lora = tuple(attempt for attempt in HEALTHY.attempts if attempt.start.variant != "lora")

    on_cpu, unmade, untrained = (
        check(on_the_cpu(HEALTHY)),
        check(dataclasses.replace(HEALTHY, attempts=without_lora)),
        check(comparing(full=None)),
    )

    assert {f.status for f in (on_cpu, unmade, untrained)} == {Status.UNJUDGED}
    assert [f.expected for f in (on_cpu, unmade, untrained)] == [True, False, False]
    assert unmade.detail == "no attempt trained the variant lora"
    assert untrained.detail == "the variant 'full' recorded no peak"


def with_second_card(changed: Trace) -> Trace:
    """The healthy training, whose second rank saw on its own card what this trace's only one did."""
    ranks = {1: changed.main.records}
    attempts = (dataclasses.replace(a, of_ranks=ranks) if a is HEALTHY.main else a for a in HEALTHY.attempts)
    return Trace(HEALTHY.header, tuple(attempts))


def test_what_befalls_the_card_of_a_second_rank_is_seen() -> None:
    """As on the first one, with the rank where several cards are told apart."""
    check = CHECK["hardware_healthy"]
    assert check(with_second_card(HEALTHY)).passed
    assert check(with_second_card(with_health(uncorrected_ecc=4))).status is Status.FAILED
    dead = with_second_card(with_record(HEALTHY, e.Telemetry, complete=False, problem="the sampling process hung"))
    assert unjudged("hardware_healthy", dead)[1].endswith("the sampling process hung")

    company = with_second_card(adding(HEALTHY, sample(60.0, others=(STRANGER,))))
    assert other_gpu_processes(company) == "rank 1: process 4711 (python3, 1,200 MiB)"
    hot = with_second_card(replacing(HEALTHY, e.DeviceSample, sample(60.0, clock_reasons=HOT)))
    assert throttled(hot).startswith("rank 1: hardware thermal slowdown in 25 of")
