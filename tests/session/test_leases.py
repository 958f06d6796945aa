"""Cards by lease: one holder each, the smallest that holds the run, never one that CUDA_VISIBLE_DEVICES hides."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import types

import pytest
from fake_machine import CARD, GIB, SECOND, machine
from memory_runs import run_with

from tunecheck.core.errors import MachineTooSmall, SuiteError, Unsupported
from tunecheck.core.evidence import CardProcess
from tunecheck.runner.child import cap_memory, require_card
from tunecheck.runner.request import card_of_rank, show_only
from tunecheck.session.leases import Cards

pytestmark = pytest.mark.usefixtures("stated_needs")
SMALL = dataclasses.replace(SECOND, name="NVIDIA L4", total_bytes=24 * GIB, free_bytes=23 * GIB)
TWO = (
    *("parallel={processes: 2}", "fallback=none", "probes.memory_order=false", "training.loss_chunk_tokens=null"),
    *("probes.rungs=false", "probes.reference=false", "training.gradient_accumulation_steps=4"),
)
UUID, OTHER = "ab12cd34-0000-4000-8000-00000000000e", "ab12cd34-0000-4000-8000-00000000000f"
HOLD = """
import fcntl, os, sys, time
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(str(os.getpid()))
    file.flush()
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Leases of these tests alone."""
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path))
    return tmp_path


def cards(*looks, **options):
    """Cards of a machine that looks like the first of these, then like the next one, and stays like the last."""
    queue = list(looks)

    def look():
        return queue.pop(0) if len(queue) > 1 else queue[0]

    return Cards(look=look, **{"wait_seconds": 0, "settle_seconds": 0, **options})


@contextlib.contextmanager
def held_elsewhere(cache, card):
    """Another process has a lease on this card."""
    (cache / "cards").mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(cache / "cards" / f"{card.uuid}.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_smallest_card_that_holds_the_run_is_leased():
    """Large ones stay free for large runs."""
    with cards(machine(CARD, SMALL)).lease(run_with()) as (card,):
        assert card == SMALL
    with cards(machine(CARD, SMALL)).lease(run_with("vram=40GiB")) as (card,):
        assert card == CARD


def test_a_leased_card_is_passed_over_for_another(cache):
    """Two leases at once are on two cards; after the block the card is free again."""
    there = cards(machine(CARD, SMALL))
    with there.lease(run_with()) as (first,), there.lease(run_with()) as (second,):
        assert (first, second) == (SMALL, CARD)
    with there.lease(run_with()) as (card,):
        assert card == SMALL
    assert (cache / "cards" / f"{SMALL.uuid}.lock").read_text() == str(os.getpid())


def test_another_process_is_waited_for_and_named(cache, said):
    """The lease ends with the process, here by SIGKILL."""
    with held_elsewhere(cache, CARD) as process:
        with pytest.raises(SuiteError, match=f"waited 0 s for NVIDIA H200 GPU-1111 .process {process.pid} runs on it"):
            cards(machine(CARD)).lease(run_with()).__enter__()
        patient = cards(machine(CARD), wait_seconds=30)
        killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(1); os.kill({process.pid}, 9)"])
        with patient.lease(run_with()) as (card,):
            assert card == CARD
        killer.wait()
    assert said == [f"memory/tinyllama-1.1b-qlora: waits for NVIDIA H200 GPU-1111 (process {process.pid} runs on it)"]


def test_a_run_that_raises_gives_its_card_back():
    """Whatever happens in the block."""
    there = cards(machine(CARD))
    with pytest.raises(ZeroDivisionError), there.lease(run_with()):
        _ = 1 / 0
    with there.lease(run_with()) as (card,):
        assert card == CARD


def test_no_card_that_holds_the_run_is_a_skip_with_the_gates_sentence():
    """Also when the memory is taken after the first look; a card that is given back in time is taken."""
    full = dataclasses.replace(CARD, free_bytes=GIB)

    with pytest.raises(MachineTooSmall, match=r"1\.0 GiB free of 141\.0 GiB on NVIDIA H200, 140\.0 GiB held by"):
        cards(machine(full)).lease(run_with()).__enter__()
    with pytest.raises(MachineTooSmall, match=r"needs 200\.0 GiB"):
        cards(machine(CARD)).lease(run_with("vram=200GiB")).__enter__()
    with pytest.raises(MachineTooSmall, match="found no GPU with enough free memory"):
        cards(machine(CARD), machine(full), machine(CARD)).lease(run_with()).__enter__()
    with cards(machine(full), machine(full), machine(CARD), settle_seconds=5).lease(run_with()) as (card,):
        assert card == full


def test_a_card_that_goes_away_is_not_leased():
    """It has fallen off the bus between two looks."""
    with pytest.raises(MachineTooSmall, match="this machine shows none"):
        cards(machine(CARD), machine()).lease(run_with()).__enter__()


def test_a_cap_makes_every_card_small():
    """What does not fit 8 GiB is skipped on a card of 141."""
    with pytest.raises(MachineTooSmall, match=r"under --vram-cap 8\.0 GiB .the card itself: 140\.0 GiB free"):
        cards(machine(CARD, vram_cap_bytes=8 * GIB)).lease(run_with("vram=11GiB")).__enter__()


def test_a_card_that_a_named_process_fills_is_busy_not_too_small():
    """What others hold is no property of the machine: the run is neither skipped nor judged."""
    full = dataclasses.replace(CARD, free_bytes=GIB, memory_by_process=(CardProcess(pid=9, used_bytes=GIB, name="x"),))

    with pytest.raises(SuiteError, match=r"1\.0 GiB held by process 9 \(x\)\. What to do: end that process, or wait"):
        cards(machine(full)).lease(run_with()).__enter__()


def test_a_run_in_two_processes_leases_two_cards():
    """Both or none, so that two such sessions cannot wait for each other."""
    third = dataclasses.replace(SMALL, uuid="GPU-3333")
    there = cards(machine(CARD, SMALL, third))
    with there.lease(run_with(*TWO)) as leased:
        assert leased == (SMALL, third)
        with pytest.raises(SuiteError, match=rf"waited 0 s for NVIDIA .* {SMALL.uuid} .* or NVIDIA .* {third.uuid}"):
            there.lease(run_with(*TWO)).__enter__()
        with there.lease(run_with()) as (card,):  # what could not be had is not kept
            assert card == CARD


@pytest.mark.parametrize(
    ("here", "settings", "words"),
    [
        (1, (), "needs 2 GPUs, one for each process; this machine shows 1"),
        (
            2,
            ("probes.rescale_to=[4]", "probes.resume_from=2"),
            "needs 4 GPUs, .*; this machine shows 2",
        ),
        (2, ("vram=100GiB",), r"needs 2 GPUs, one for each process; 1 have room, on the next it needs 100\.0 GiB"),
    ],
)
def test_too_few_cards_for_the_processes_are_a_skip(here, settings, words):
    """Two processes on one card would be no measurement, and NCCL refuses them."""
    with pytest.raises(MachineTooSmall, match=words):
        cards(machine(*(CARD, SMALL)[:here])).lease(run_with(*TWO, *settings)).__enter__()


def test_a_run_on_the_cpu_looks_at_no_card():
    """A driver that hangs or a card that is lost concerns it as little as one that is busy."""
    unread = Cards(look=lambda: pytest.fail("the driver was asked"))

    with unread.lease(run_with("device=cpu", "vram=null")) as leased:
        assert leased == ()


def test_a_run_on_the_cpu_takes_no_card():
    """Asked for, or for want of a GPU; a run that needs one is refused."""
    with cards(machine(CARD)).lease(run_with("device=cpu")) as leased:
        assert leased == ()
    with cards(machine()).lease(run_with("device=auto", "vram=null")) as leased:
        assert leased == ()
    with pytest.raises(MachineTooSmall, match="needs a GPU"):
        cards(machine()).lease(run_with()).__enter__()


def test_only_visible_cards_that_allow_it_are_used():
    """CUDA_VISIBLE_DEVICES and its order are the caller's; a card whose compute mode is prohibited is none."""
    closed = dataclasses.replace(CARD, compute_mode="prohibited")

    assert machine(CARD, SMALL, visible=(SMALL.uuid,)).usable_gpus == (SMALL,)
    assert machine(closed, SMALL).usable_gpus == (SMALL,)
    with pytest.raises(MachineTooSmall, match="prohibited"):
        cards(machine(closed)).lease(run_with()).__enter__()


def test_a_cache_that_cannot_be_written_is_a_message(cache):
    """Leases live there."""
    (cache / "cards").write_text("in the way")

    with pytest.raises(SuiteError, match="set TUNECHECK_CACHE to another folder"):
        cards(machine(CARD)).lease(run_with()).__enter__()


def test_a_lock_file_that_cannot_be_opened_is_a_message(cache):
    """The folder is there, the file is not one."""
    (cache / "cards" / f"{CARD.uuid}.lock").mkdir(parents=True)

    with pytest.raises(SuiteError, match="give write access"):
        cards(machine(CARD)).lease(run_with()).__enter__()


# In the child: the edge to CUDA is fake.


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda with a fake H200 that remembers what fraction it was limited to."""
    import torch

    fractions = []
    card = types.SimpleNamespace(name="NVIDIA H200", total_memory=140 * GIB, uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: fractions.append((fraction, device))
    )
    return fractions


def test_the_allocator_is_capped_at_its_share_of_the_card(cuda):
    """8 of 140 GiB; a cap above the card, or none, limits nothing."""
    assert cap_memory("cuda:0", 8 * GIB) == 8 * GIB
    assert cuda == [(8 / 140, "cuda:0")]
    assert cap_memory("cuda:0", 140 * GIB) is None
    assert cap_memory("cuda:0", None) is None
    assert len(cuda) == 1


@pytest.mark.parametrize(
    "leased", [(f"GPU-{UUID}",), (f"GPU-{UUID.upper()}",), (f"MIG-{OTHER}",), ("GPU-1111",), (), None]
)
def test_the_leased_card_is_the_one_that_torch_shows(cuda, leased):
    """A MIG instance is taken on trust, since torch may tell its card's UUID, and so is what is no UUID."""
    require_card("cuda:0", leased)
    assert cuda == []


def test_another_card_than_the_leased_one_is_refused(cuda):
    """CUDA was initialised before the variable was set."""
    with pytest.raises(Unsupported, match=f"has a lease on GPU-{OTHER}, but torch shows {UUID}: CUDA was initialised"):
        require_card("cuda:0", (f"GPU-{OTHER}",))


@pytest.mark.parametrize(
    ("leased", "seen"), [(("GPU-2222",), "GPU-2222"), (("MIG-7777",), "MIG-7777"), ((), ""), (None, "3")]
)
def test_a_child_sees_its_card_alone(monkeypatch, leased, seen):
    """None leaves the caller's choice as it is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

    show_only(leased)

    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(
    ("leased", "visible", "seen"),
    [(("GPU-1", "GPU-2"), None, ("GPU-2",)), (None, "5,7", ("7",)), (None, None, ("1",)), ((), "5,7", ())],
)
def test_a_rank_sees_the_card_in_its_place(monkeypatch, leased, visible, seen):
    """Of cards that nobody leased, those that CUDA shows are counted."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert card_of_rank(leased, 1) == seen
