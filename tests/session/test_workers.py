"""Several workers on one session: a run stays on one, has a card to itself, and is never trained twice."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import time
import uuid
from types import SimpleNamespace

import psutil
import pytest
import shared_fork_server
import tiny
from fake_machine import CARD, SECOND, machine
from tier_sessions import COMMAND, environment, session_folder

import tunecheck
from tunecheck.core.errors import GpuUnusable, SuiteError
from tunecheck.core.paths import project_folder
from tunecheck.hardware import NvmlState
from tunecheck.plugin import asks_for_tiers, one_worker_a_run, pytest_xdist_auto_num_workers, run_named
from tunecheck.session import TierSession
from tunecheck.session.admission import driver_fault, require_usable
from tunecheck.session.rows import Rows

RUNS = ["quick/smollm2-135m-qlora", "convergence/smollm2-135m-qlora", "memory/tinyllama-1.1b-qlora"]
SHORT = [
    *tiny.SHRUNK,
    "training.max_steps=5",
    "evaluation={}",
    "probes={}",
    "checks={device_as_configured: off, hardware_healthy: off}",
    "fallback=none",
    "device=auto",
]
OPTIONS = [argument for setting in SHORT for argument in ("--set", setting)]
MEMORY = ["-m", "memory", "-k", "tinyllama"]
TIERS = ["-m", "quick or convergence or memory", "-k", "135m-qlora or 1.1b-qlora"]


class Worker:
    """What the scheduler sees of a worker: it notes what it is sent."""

    def __init__(self, name="gw0"):
        self.gateway, self.shutting_down, self.sent = SimpleNamespace(id=name), False, []

    def send_runtest_some(self, places):
        """As xdist's."""
        self.sent += places

    def shutdown(self):
        """As xdist's."""
        self.shutting_down = True


def items(*runs, checks=3):
    """Node ids of this many checks of each of the runs."""
    names = ["finite", "loss_falls", "steps_applied"][:checks]
    return [
        f"tiers/test_{run.partition('/')[0]}.py::test_it[{run.partition('/')[2]}-{name}]"
        for run in runs
        for name in names
    ]


def scheduler_of(workers):
    """A scheduler for so many workers, with the part of pytest's configuration that it asks."""
    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=option, getvalue=lambda name: ["popen"] * workers, hook=Hook())
    return one_worker_a_run(config)


class Hook:
    """pytest's hooks, as far as a scheduler calls them."""

    def pytest_collectreport(self, report):
        """Keep what could not be collected."""
        self.report = report


def scheduled(collection, *names):
    """A scheduler that has handed out this collection to new workers of these names."""
    crew = [Worker(name) for name in names]
    scheduler = scheduler_of(len(crew))
    for worker in crew:
        scheduler.add_node(worker)
    for worker in crew:
        assert not scheduler.collection_is_completed
        scheduler.add_node_collection(worker, collection)
    scheduler.schedule()
    return scheduler, crew


def test_a_run_is_read_off_its_checks_node_ids():
    """Run ids hold hyphens, names of checks do not."""
    assert run_named("tiers/test_quick.py::test_it[smollm2-135m-qlora-base_matches_file]") == "quick/smollm2-135m-qlora"
    assert run_named("tests/test_gate.py::test_it[1-2]") == "gate/1"
    assert run_named("tests/test_schedule.py::test_it") == "tests/test_schedule.py::test_it"


def test_each_run_goes_as_a_whole_to_one_worker():
    """The third one to whoever has two checks left, since a worker begins a check only when it knows the next."""
    scheduler, (first, second) = scheduled(items("quick/a", "quick/b-c", "full/d"), "gw0", "gw1")
    assert (first.sent, second.sent) == ([0, 1, 2], [3, 4, 5])

    scheduler.mark_test_complete(second, 3)
    assert second.sent == [3, 4, 5, 6, 7, 8]
    assert not scheduler.tests_finished
    scheduler.mark_test_complete(second, 4)
    assert second.shutting_down
    for place in (0, 1):
        scheduler.mark_test_complete(first, place)
    assert first.shutting_down
    for worker, place in [(first, 2), (second, 5), (second, 6), (second, 7), (second, 8)]:
        assert scheduler.has_pending
        scheduler.mark_test_complete(worker, place)
    assert scheduler.tests_finished
    assert not scheduler.has_pending
    assert [scheduler.remove_node(worker) for worker in (first, second)] == [None, None]


def test_more_workers_than_runs_are_sent_home():
    """At once."""
    _, crew = scheduled(items("quick/a"), "gw0", "gw1")

    assert [(worker.sent, worker.shutting_down) for worker in crew] == [([0, 1, 2], True), ([], True)]


def test_workers_that_collected_different_tests_run_nothing():
    """Places in the collection would mean other tests."""
    scheduler = scheduler_of(2)
    for worker in (crew := [Worker("gw0"), Worker("gw1")]):
        scheduler.add_node(worker)
    scheduler.add_node_collection(crew[0], items("quick/a"))
    scheduler.add_node_collection(crew[1], items("quick/b"))
    scheduler.schedule()

    assert scheduler.config.hook.report.outcome == "failed"
    assert [worker.sent for worker in crew] == [[], []]


@pytest.mark.parametrize(
    ("paths", "asked"),
    [(["tiers"], True), (["tiers/test_quick.py::test_it[a]"], True), (["."], True), (["tests/test_cli.py"], False)],
)
def test_only_tiers_are_given_out_by_run(monkeypatch, paths, asked):
    """The suite's own tests are xdist's."""
    monkeypatch.chdir(project_folder())

    assert asks_for_tiers(paths) is asked


def test_there_are_as_many_workers_as_usable_cards(monkeypatch):
    """One without a card."""
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.chdir(project_folder())
    for found, count in [((), 1), ((CARD,), 1), ((CARD, SECOND), 2)]:
        monkeypatch.setattr("tunecheck.plugin.probe", lambda found=found: machine(*found))
        assert pytest_xdist_auto_num_workers(SimpleNamespace(args=["tiers"])) == count


def test_a_trace_that_cannot_be_read_is_a_row_with_an_error(tmp_path):
    """The others are told all the same."""
    (tmp_path / "quick-broken.jsonl").write_text("")

    (row,) = Rows(folder=tmp_path, too_small="skipped").all()

    assert (row.name, row.outcome) == ("quick/broken", "error")
    assert "no run header" in row.reason


def test_no_run_is_trained_twice(tmp_path):
    """A trace in the shared folder is somebody else's beginning."""
    from tunecheck.config import find_run, load_run

    run = load_run(find_run(RUNS[0]), ["device=cpu"])
    (tmp_path / f"{run.stem}.jsonl").write_text("")
    session = TierSession(command="", folder=tmp_path)

    with pytest.raises(SuiteError, match="no run is trained twice"):
        session.train(run)
    news = session.rows.news(run.name)
    assert news["row"]["outcome"] == "error"
    assert Rows(folder=tmp_path, too_small="skipped").merge(news).startswith(f"{run.name}: error: another worker")


def test_a_gpu_that_is_lost_in_the_middle_is_an_error_not_a_slow_pass(tmp_path, monkeypatch):
    """A run for either device does not go to the CPU then, and one for a GPU is not called too large."""
    from tunecheck.config import find_run, load_run

    monkeypatch.setattr("tunecheck.session.probe", lambda: machine(CARD))
    lost = machine(visible=None, nvml_state=NvmlState.GPU_LOST, nvml_problem="GPU 0 is lost", nvml_remedy="reboot")
    monkeypatch.setattr("tunecheck.session.look_again", lambda hardware: lost)

    for name in (RUNS[0], RUNS[2]):
        session = TierSession(command="", folder=tmp_path)
        with pytest.raises(SuiteError, match=r"that this session began with are gone: .* GPU 0 is lost; reboot"):
            session.train(load_run(find_run(name)))
        assert session.rows.news(name)["row"]["outcome"] == "error"


FAULTS = {
    NvmlState.GPU_LOST: "hardware",
    NvmlState.VERSION_MISMATCH: "environment",
    NvmlState.HUNG: "unknown",
    NvmlState.NO_UTILITIES: "environment",
    NvmlState.NO_BINDINGS: "environment",
    NvmlState.SHADOWED: "environment",
    NvmlState.DRIVER_NOT_LOADED: "",
    NvmlState.NO_LIBRARY: "",
}


@pytest.mark.parametrize("state", FAULTS)
def test_a_gpu_that_cannot_be_used_moves_no_run_to_the_cpu(tmp_path, monkeypatch, state):
    """Where a GPU is known to be there: a driver that is not loaded, or none, shows none; nor is one that is hidden."""
    from tunecheck.config import find_run, load_run

    found = machine(visible=None, nvml_state=state, nvml_problem="NVML says no", nvml_remedy="reboot")
    for reader in ("session", "hardware"):
        monkeypatch.setattr(f"tunecheck.{reader}.probe", lambda: found)
    monkeypatch.setattr("tunecheck.session.look_again", lambda hardware: hardware)
    monkeypatch.setattr("tunecheck.hardware.nvml.has_device", lambda: True)
    run = load_run(find_run(RUNS[0]), ["device=auto"])

    assert driver_fault(found) == (FAULTS[state] or None)
    assert driver_fault(dataclasses.replace(found, environment={"CUDA_VISIBLE_DEVICES": "-1"})) is None
    if FAULTS[state]:
        session = TierSession(command="", folder=tmp_path)
        with pytest.raises(GpuUnusable, match=r"cannot be used: NVML says no\. What to do: reboot; or .* device=cpu"):
            session.train(run)
        assert session.rows.news(run.name)["row"]["domain"] == FAULTS[state]
        with pytest.raises(GpuUnusable, match="NVML says no"):
            tunecheck.train(run, tmp_path)


def test_bindings_that_fail_prove_no_gpu(monkeypatch):
    """On a machine without one a run goes to the CPU as before."""
    monkeypatch.setattr("tunecheck.hardware.nvml.has_device", lambda: False)

    assert driver_fault(machine(visible=None, nvml_state=NvmlState.SHADOWED)) is None


@pytest.mark.parametrize(("entry", "visible"), [("0", None), ("GPU-ffff", ())])
def test_a_gpu_that_cannot_be_identified_moves_no_run_to_the_cpu(entry, visible):
    """CUDA may use another one than NVML's of that number, or none for a name that is misspelt."""
    found = machine(CARD, visible=visible, visible_problem="unclear", environment={"CUDA_VISIBLE_DEVICES": entry})

    with pytest.raises(GpuUnusable, match=r"cannot be used: unclear\. What to do: name the GPUs by UUID, .*=cpu"):
        require_usable(found)


# Whole sessions: real workers on fake cards.


@pytest.fixture
def start(tmp_path):
    """Starts pytest with a worker for each of these fake cards (GiB); what is left of it is killed after the test."""

    def begin(*arguments, cards=(2, 16), kill="", settings=(), shared=False):
        fake = {
            "FAKE_CARDS": json.dumps(cards),
            "FAKE_CARDS_TOKEN": uuid.uuid4().hex,  # leases of other sessions on this machine are not in the way
            "FAKE_CARDS_LOG": str(tmp_path / "log"),
            "FAKE_CARDS_KILL": kill,
            **(shared_fork_server.address() if shared else {}),
        }
        given = environment(tmp_path / "reports", **fake)
        given.pop("CUDA_VISIBLE_DEVICES", None)
        options = [*OPTIONS, *(argument for setting in settings for argument in ("--set", setting))]
        plugins = ["-p", "fake_cards", *(shared_fork_server.OPTIONS if shared else ())]
        command = [*COMMAND, *plugins, "-n", "auto", *options, *arguments]
        return subprocess.Popen(
            command, cwd=project_folder(), env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    yield begin
    for process in left_behind(tmp_path, seconds=0):
        process.kill()


def ended(process):
    """Its output and exit status."""
    output, _ = process.communicate(timeout=300)
    return output, process.returncode


def log(tmp_path):
    """What the attempts noted, in order."""
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def verdict(tmp_path):
    """The one report that was written."""
    return json.loads((session_folder(tmp_path / "reports") / "verdict.json").read_text())


def left_behind(tmp_path, seconds=20):
    """Processes of this session that are still there after this time."""
    deadline, mark = time.monotonic() + seconds, str(tmp_path / "reports")

    def alive():
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TUNECHECK_REPORTS") == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    while (found := alive()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@pytest.mark.slow
def test_two_workers_on_two_cards_make_one_report(start, tmp_path):
    """Every run once, on a card that holds it, alone on it; the cap is in the trace and in the report."""
    output, status = ended(start(*TIERS, "--vram-cap", "8GiB", "-rs", shared=True))

    assert status == 0, output
    assert "created: 2/2 workers" in output
    assert "every GPU is limited to 8.0 GiB" in output
    starts = [line for line in log(tmp_path) if line["moment"] == "start"]
    assert sorted(line["run"] for line in starts) == sorted(RUNS)
    (memory,) = (line["card"] for line in starts if line["run"] == RUNS[2])
    assert memory.endswith("-1"), "3 GiB do not fit the small card"
    for card in {line["card"] for line in starts}:
        moments = [line["moment"] for line in log(tmp_path) if line["card"] == card]
        assert moments == ["start", "end"] * (len(moments) // 2), "one run at a time"
    assert {line["cap"] for line in starts} == {8 * 1024**3}
    report = verdict(tmp_path)
    assert report["verdict"] == "pass"
    assert sorted(f"{run['tier']}/{run['run']}" for run in report["runs"]) == sorted(RUNS)
    assert all(len(run["findings"]) > 20 for run in report["runs"])
    assert all(run["attempts"][0]["device"] == "cuda:0 (capped at 8.0 GiB)" for run in report["runs"])
    assert report["environment"]["vram_cap_bytes"] == 8 * 1024**3
    assert all(f": {run}: step 1/" in output for run in RUNS), "live, from whichever worker trains it"
    assert sum(f"{run}: finished on cuda:0 (GPU-" in output for run in RUNS) == 3
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_killed_worker_is_an_error_with_a_name_and_nothing_is_repeated(start, tmp_path):
    """Its successor refuses what it had begun and judges the other run; no process stays."""
    first, second = RUNS[1], RUNS[0]
    output, status = ended(start("-m", "quick or convergence", "-k", "135m-qlora", cards=(16,), kill=first))

    assert status == 6, output
    assert "worker 'gw0' crashed while running 'tiers/test_convergence.py" in output
    starts = [line["run"] for line in log(tmp_path) if line["moment"] == "start"]
    assert sorted(starts) == sorted([first, second]), "each once"
    rows = {f"{run['tier']}/{run['run']}": run for run in verdict(tmp_path)["runs"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {first: "error", second: "pass"}
    assert "another worker of this session started this run and died; no run is trained twice" in rows[first]["reason"]
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.slow
def test_an_interrupted_session_of_workers_leaves_one_report_and_no_process(start, tmp_path, number):
    """The signal goes to the controller alone, as from a job that is cancelled."""
    process = start(*TIERS, settings=["training.max_steps=5000"])
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").exists() or len(log(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(1)
    started = time.monotonic()
    process.send_signal(number)
    output, status = ended(process)

    assert status == 2, output
    # 7 s on two cores at rest or nearly so, 11 s beside others' work; the steps that were left would take far longer
    assert time.monotonic() - started < 60
    report = verdict(tmp_path)
    assert report["interrupted"]
    assert {run["attempts"][0]["outcome"] for run in report["runs"]} == {"interrupted"}
    assert left_behind(tmp_path) == []


def test_a_refused_run_is_skipped_once_for_all_workers(start, tmp_path):
    """Nothing ran: exit status 7, and the sentence is the gate's."""
    output, status = ended(start(*MEMORY, "-rs", cards=(2, 2)))

    assert status == 7, output
    (row,) = verdict(tmp_path)["runs"]
    assert (row["outcome"], row["model"]) == ("skipped", "tinyllama-1.1b")
    assert row["reason"].startswith("needs 3.0 GiB")
    assert "skipped: needs 3.0 GiB" in output


def test_a_bad_configuration_is_one_message_from_all_workers(start, tmp_path):
    """Exit status 4, no worker is replaced, no folder."""
    output, status = ended(start(*TIERS, settings=["lora.rank=8"]))

    assert status == 4, output
    assert "lora.rank: unknown key" in output
    assert "replacing crashed worker" not in output
    assert not (tmp_path / "reports").exists()
