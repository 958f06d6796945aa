"""A trace of schema 3 is still read: its attempts are told in other words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import healthy

from tunecheck.checks.device import DeviceAsAsked
from tunecheck.checks.fallback import FallbackInOrder
from tunecheck.core.evidence import AttemptOutcome, AttemptPurpose, AttemptReason, MemoryVariant, Step
from tunecheck.core.trace import Trace, encode, read

RAN_OUT = "CUDA out of memory. Tried to allocate 20.00 MiB"
END = {"kind": "AttemptEnd", "detail": "", "seconds": 4.0, "log_tail": ""}
FINISHED = {**END, "outcome": "finished"}


def start(purpose: str, reason: str, **changes: object) -> dict[str, object]:
    """An AttemptStart as schema 3 wrote it."""
    seen = {"purpose": purpose, "device": "cpu", "reason": reason, "changes": {}, "card": None, "vram_cap_bytes": None}
    return {"kind": "AttemptStart", **seen, "rung": "", "arithmetic": [], **changes}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A run whose GPU ran out of memory, in the words of schema 3."""
    today = healthy()
    header = json.loads(encode(today.header)) | {"schema": 3}
    header["run"]["fallback"] = ["lean", "cpu"]
    main = [json.loads(encode(record)) for record in today.main.records]
    for record in main:
        if record["kind"] == "Gradients":  # these came later
            del record["left_over"], record["micro_batch_tokens"]
    told = f"out of memory on the GPU: {RAN_OUT}; lean: the run is that already"
    lines = [
        header,
        start("train", "asked for", device="cuda:0", card="GPU-1"),
        {**END, "outcome": "out_of_memory", "detail": RAN_OUT},
        start("train", told, rung="cpu"),
        *main,
        FINISHED,
        start("reference", "a run that begins on the CPU, to compare"),
        *[record for record in main if record["kind"] == "Step"],
        FINISHED,
        start("compare", "as asked"),
        FINISHED,
        start("compare", "4 rows"),
        FINISHED,
        start("rung", "asked for", rung="lean"),
        {**END, "outcome": "crashed", "detail": "SIGSEGV"},
        start("read back", "asked for"),
    ]
    path: Path = tmp_path_factory.mktemp("older") / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return read(path)


def test_its_attempts_are_read_in_todays_words(older: Trace) -> None:
    """Purposes, reasons, variants and fallback steps."""
    seen = [(a.start.purpose, a.start.reason, a.start.fallback_step, a.start.variant) for a in older.attempts]
    requested, purpose = AttemptReason.REQUESTED, AttemptPurpose

    assert seen == [
        (purpose.TRAIN, requested, "", None),
        (purpose.TRAIN, AttemptReason.OUT_OF_MEMORY, "cpu", None),
        (purpose.REFERENCE, requested, "", None),
        (purpose.COMPARE, requested, "", MemoryVariant.AS_CONFIGURED),
        (purpose.COMPARE, requested, "", MemoryVariant.FOUR_ROWS),
        (purpose.FALLBACK_STEP, requested, "lean", None),
        (purpose.READ_BACK, requested, "", None),
    ]
    assert older.main.start.explanation == f"out of memory on the GPU: {RAN_OUT}; lean: the run is that already"
    assert [attempt.outcome for attempt in older.attempts][-2:] == [AttemptOutcome.CRASHED, AttemptOutcome.CUT_OFF]
    assert len(older.last(AttemptPurpose.REFERENCE).all(Step)) == 6


@pytest.mark.parametrize("check", [FallbackInOrder(), DeviceAsAsked()], ids=lambda check: check.name)
def test_it_is_judged_as_before(older: Trace, check) -> None:
    """The checks that read those words."""
    assert check(older).passed, check(older).detail


def test_reading_and_writing_it_again_gives_a_trace_of_today(older: Trace) -> None:
    """No word of schema 3 is left."""
    lines = [json.loads(encode(attempt.start)) for attempt in older.attempts]

    assert all("rung" not in line for line in lines)
    assert {line["reason"] for line in lines} == {"requested", "out of memory on the GPU"}
