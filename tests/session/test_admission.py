"""The gate: what does not fit what is free is skipped, with a sentence that a person can act on."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentTypeError

import pytest
from fake_machine import CARD, GIB, SECOND, machine
from memory_runs import run_with

from tunecheck.core.evidence import CardProcess
from tunecheck.core.units import size_option
from tunecheck.hardware import NvmlState
from tunecheck.memory import Need
from tunecheck.session import admission as gate
from tunecheck.session.admission import obstacle, prospect, room, shortage

pytestmark = pytest.mark.usefixtures("stated_needs")
SMALL = dataclasses.replace(
    CARD,
    name="NVIDIA RTX 4060 Ti",
    total_bytes=8 * GIB,
    free_bytes=round(7.8 * GIB),
    memory_by_process=(CardProcess(pid=4711, used_bytes=round(0.2 * GIB), name="python"),),
)


def predicted(monkeypatch, gib):
    """Let the need of every run be predicted."""
    need = Need(bytes=round(gib * GIB), known="predicted 2026-11-21")
    monkeypatch.setattr(gate, "need_of", lambda run, *, gpu_name, capability=None: need)


def test_the_sentence_names_need_room_card_and_holder(monkeypatch):
    """Where the need comes from and when, what is free, on what, and who is in the way."""
    predicted(monkeypatch, 11.2)

    assert obstacle(run_with(), machine(SMALL)) == (
        "needs 11.2 GiB (predicted 2026-11-21), 7.8 GiB free of 8.0 GiB on NVIDIA RTX 4060 Ti, "
        "0.2 GiB held by process 4711 (python)"
    )


def test_what_fits_what_is_free_is_no_obstacle():
    """3 GiB on a card with 7.8 GiB free, but not when others leave 2 GiB."""
    assert obstacle(run_with(), machine(SMALL)) is None
    full = dataclasses.replace(SMALL, free_bytes=2 * GIB)
    assert (obstacle(run_with(), machine(full)) or "").startswith("needs 3.0 GiB (stated by the run), 2.0 GiB free")


def test_a_need_just_above_what_is_free_is_told_with_more_decimals():
    """Not "needs 3.0 GiB, 3.0 GiB free"."""
    nearly = dataclasses.replace(SMALL, free_bytes=round(2.98 * GIB))

    assert (obstacle(run_with(), machine(nearly)) or "").startswith("needs 3.00 GiB (stated by the run), 2.98 GiB free")


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (None, "140.0 GiB held by processes that the driver does not show here"),
        ((), "140.0 GiB held by processes that the driver does not show here"),
        ((CardProcess(pid=7, used_bytes=None, name=None),), "memory held by process 7"),
        (
            tuple(CardProcess(pid=pid, used_bytes=pid * GIB, name="python") for pid in (1, 2, 3, 4)),
            "4.0 GiB held by process 4 (python), 3.0 GiB held by process 3 (python), more by 2 others",
        ),
    ],
)
def test_holders_are_named_as_far_as_the_driver_tells(processes, words):
    """The largest first; hidden ones, as in a container, are called hidden."""
    full = dataclasses.replace(CARD, free_bytes=GIB, memory_by_process=processes)

    assert (obstacle(run_with(), machine(full)) or "").endswith(f", {words}")


def test_of_several_cards_the_roomiest_is_told():
    """One that holds the run is enough; if none does, the others are worse."""
    full, fuller = (dataclasses.replace(card, free_bytes=free * GIB) for card, free in ((CARD, 2), (SECOND, 1)))

    assert obstacle(run_with(), machine(fuller, CARD)) is None
    reason = obstacle(run_with(), machine(fuller, full)) or ""
    assert "2.0 GiB free" in reason
    assert reason.endswith("(the other 1 have less)")


def test_without_a_gpu_the_reason_is_the_drivers():
    """A run that may go to the CPU is no concern of the gate."""
    bare = machine(nvml_state=NvmlState.NO_LIBRARY, nvml_problem="no driver", nvml_remedy="install one")

    assert obstacle(run_with(), bare) == (
        "needs a GPU with 3.0 GiB of free memory (stated by the run); this machine shows none: no driver; install one"
    )
    assert obstacle(run_with("vram=null"), bare) == "needs a GPU; this machine shows none: no driver; install one"
    assert obstacle(run_with("vram=null", "device=auto"), bare) is None
    assert obstacle(run_with("device=cpu"), bare) is None


def test_hidden_cards_are_called_hidden():
    """CUDA_VISIBLE_DEVICES="" on a machine with a card."""
    assert (obstacle(run_with(), machine(CARD, visible=())) or "").endswith("CUDA_VISIBLE_DEVICES hides it")
    assert (obstacle(run_with(), machine()) or "").endswith("its driver lists none")


def test_a_run_that_goes_on_on_the_cpu_is_tried(monkeypatch):
    """Its own fallback says what happens out of memory; a stated need still skips it."""
    predicted(monkeypatch, 200)
    quick = run_with(name="quick/smollm2-135m-qlora")

    assert obstacle(quick, machine(CARD)) is None
    assert prospect(quick, machine(CARD)).endswith("out of memory it falls back to cpu")
    assert obstacle(run_with("fallback=none", name="quick/smollm2-135m-qlora"), machine(CARD)) is not None
    assert obstacle(run_with("fallback=cpu"), machine(CARD)) is not None


def test_what_is_not_known_is_no_obstacle():
    """Neither a card that does not tell its memory nor a run whose need nobody knows."""
    silent = dataclasses.replace(CARD, total_bytes=None, free_bytes=None)

    assert obstacle(run_with(), machine(silent)) is None
    assert obstacle(run_with("vram=null"), machine(SMALL)) is None
    assert prospect(run_with("vram=null"), machine(SMALL)) == "can run here, its need is unknown"


def test_under_a_cap_the_gate_takes_the_card_for_a_small_one_and_says_so():
    """Total and free memory are capped; the real ones stay in the sentence."""
    run = run_with("vram=11GiB")

    assert obstacle(run, machine(CARD)) is None
    assert obstacle(run, machine(CARD, vram_cap_bytes=8 * GIB)) == (
        "needs 11.0 GiB (stated by the run), 8.0 GiB free of 8.0 GiB on NVIDIA H200 under --vram-cap 8.0 GiB "
        "(the card itself: 140.0 GiB free of 141.0 GiB)"
    )
    assert obstacle(run_with(), machine(CARD, vram_cap_bytes=8 * GIB)) is None
    assert "under --vram-cap 8.0 GiB" in room(dataclasses.replace(CARD, cap_bytes=8 * GIB))


def test_a_cap_above_the_card_changes_no_number():
    """It is still named."""
    assert room(dataclasses.replace(SMALL, cap_bytes=80 * GIB)).startswith(
        "7.8 GiB free of 8.0 GiB on NVIDIA RTX 4060 Ti under"
    )


def test_an_empty_card_is_asked_for_its_total():
    """What is in the way now may be gone when the lease comes."""
    full = dataclasses.replace(CARD, free_bytes=GIB)

    assert shortage(run_with(), full)
    assert shortage(run_with(), full, when_empty=True) is None
    assert shortage(run_with(), dataclasses.replace(full, cap_bytes=2 * GIB), when_empty=True)


def test_prospects_say_need_and_source():
    """The table of `tunecheck list --needs`."""
    assert prospect(run_with(), machine(CARD)) == "can run here, needs 3.0 GiB (stated by the run)"
    assert prospect(run_with("device=cpu"), machine(CARD)) == "can run here, on the CPU"
    assert prospect(run_with(), machine(SMALL, vram_cap_bytes=2 * GIB)).startswith("needs 3.0 GiB")


@pytest.mark.parametrize("text", ["8", "8G", "", "-1GiB", "0GiB", "lots"])
def test_a_size_without_a_unit_is_refused_with_the_units(text):
    """The value, the rule and an example."""
    with pytest.raises(ArgumentTypeError, match="should be"):
        size_option(text)


def test_a_size_with_a_unit_is_bytes():
    """As in the YAML."""
    assert (size_option("8GiB"), size_option("512 MiB")) == (8 * GIB, GIB // 2)
