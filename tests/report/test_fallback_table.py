"""Memory and speed by strategy and fallback step: of made-up attempts, and of a real run on the CPU."""

from __future__ import annotations

import json

import tiny
from rich.console import Console
from traces import attempt, healthy

from tunecheck.cli import main
from tunecheck.config import find_run, load_run
from tunecheck.core import evidence as e
from tunecheck.core.trace import Attempt, Trace
from tunecheck.report.history_tables import print_rows, rows_of
from tunecheck.runner import Runner

MIB = 2**20
HEALTHY = healthy()


def tried(rung, *, peak_mib=None, resident_mib=None, seconds=1.0, device="cuda:0", outcome="finished", purpose="train"):
    """An attempt at this fallback step: its peak, its step, its device."""
    changes = {"strategy": "full"} if rung == "offload" else {}
    start = e.AttemptStart(
        purpose=purpose, device=device, reason=e.AttemptReason.REQUESTED, changes=changes, fallback_step=rung
    )
    setup = HEALTHY.one(e.Setup)
    phase = e.Phase(
        name="steady",
        seconds=1.0,
        peak_allocated_bytes=None if peak_mib is None else peak_mib * MIB,
        process_bytes=None if resident_mib is None else resident_mib * MIB,
    )
    load = e.Phase(name="load", seconds=1.0, peak_allocated_bytes=None if peak_mib is None else 10**6 * MIB)
    steps = [e.Step(**{**values(HEALTHY.steps[0]), "step": n, "seconds": 9.0 if n == 0 else seconds}) for n in range(3)]
    records = (e.Setup(**{**values(setup), "device": device, "precision": "bf16"}), *steps, load, phase)
    return Attempt(start, records, e.AttemptEnd(outcome=outcome, detail="", seconds=1.0))


def values(record):
    """A record's fields by name."""
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}


def test_peak_and_speed_are_those_of_the_training_relative_to_the_run_as_configured():
    """Loading does not count, nor the first step; a fallback step may change the strategy itself."""
    trace = Trace(HEALTHY.header, (tried("", peak_mib=1000), tried("lean", peak_mib=350, seconds=1.25)))

    configured, lean = rows_of([trace])

    assert (configured.fallback_step, configured.device, configured.precision, configured.peak_kind) == (
        "as configured",
        "cuda:0",
        "bf16",
        "allocator",
    )
    assert (configured.peak_bytes, configured.step_seconds, configured.relative_peak, configured.relative_speed) == (
        1000 * MIB,
        1,
        1,
        1,
    )
    assert (lean.relative_peak, lean.relative_speed) == (0.35, 0.8)
    assert (configured.strategy, configured.steps) == ("qlora", 3)


def test_a_gpus_allocator_and_a_cpus_process_are_never_set_against_each_other():
    """Nor is the peak of an attempt that had not reached it; speeds of two devices may be compared."""
    trace = Trace(
        HEALTHY.header,
        (
            tried("", peak_mib=1000),
            tried("lean", peak_mib=900, outcome="out_of_memory"),
            tried("cpu", resident_mib=4000, seconds=10.0, device="cpu"),
        ),
    )

    _, ran_out, cpu = rows_of([trace])

    assert (ran_out.outcome, ran_out.peak_bytes, ran_out.relative_peak) == ("out_of_memory", 900 * MIB, None)
    assert (cpu.peak_kind, cpu.relative_peak, cpu.relative_speed) == ("resident", None, 0.1)


def test_attempts_that_never_trained_are_rows_without_figures():
    """They were made, so they are reported; other attempts than trainings are not."""
    bare = Attempt(tried("").start, (), e.AttemptEnd(outcome="out_of_memory", detail="", seconds=1.0))
    cut = Attempt(tried("lean").start, (), None)
    trace = Trace(HEALTHY.header, (bare, cut, attempt("repeat", *HEALTHY.steps)))

    rows = rows_of([trace])

    assert [(row.device, row.outcome, row.peak_bytes, row.step_seconds) for row in rows] == [
        ("cuda:0", "out_of_memory", None, None),
        ("cuda:0", "cut_off", None, None),
    ]


def test_the_table_shows_what_there_is(capsys):
    """A dash where nothing was measured."""
    rung = tried("offload", peak_mib=150, seconds=4.0, purpose=e.AttemptPurpose.FALLBACK_STEP)
    trace = Trace(HEALTHY.header, (tried("", peak_mib=1000), rung))

    print_rows(rows_of([trace]), Console(width=160))

    text = " ".join(capsys.readouterr().out.split())
    assert "qlora as configured cuda:0 bf16 finished" in text
    assert "finished, 3 steps 150 MiB allocator 15% 4 s 0.25x" in text


def test_a_folder_without_traces_is_refused(tmp_path, capsys):
    """Status 4, as any usage error."""
    assert main(["fallback-table", str(tmp_path)]) == 4
    assert "holds no trace" in capsys.readouterr().err


def test_every_fallback_step_of_a_run_is_measured_where_the_run_trained(tmp_path, capsys):
    """On a machine without a GPU that is the CPU, and the table says so."""
    settings = [*tiny.SETTINGS, "training.max_steps=3", "probes.rungs=true", "fallback=none"]
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)
    Runner(folder=tmp_path, environment={}, gpu=False).execute(run)

    assert main(["fallback-table", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["attempts"]

    assert [(row["fallback_step"], row["outcome"]) for row in rows] == [
        ("as configured", "finished"),
        ("as configured", "finished, 3 steps"),
        ("lean", "finished, 3 steps"),
        ("offload", "finished, 3 steps"),
    ]
    assert {(row["device"], row["peak_kind"]) for row in rows} == {("cpu", "resident")}
    assert all(row["step_seconds"] > 0 and row["relative_peak"] and row["relative_speed"] for row in rows)
