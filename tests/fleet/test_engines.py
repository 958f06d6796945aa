"""What the engines read of Slurm and Ray, and what they say where these are not there."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from tunecheck.cli import main
from tunecheck.core.errors import ConfigError
from tunecheck.fleet.engines import local, ray_cluster, slurm
from tunecheck.fleet.request import EngineOptions, write_request
from tunecheck.fleet.session import new_request
from tunecheck.results.fleet import Place

SINFO = """\
n1|idle|gpu:2|none
n2|allocated|gpu:h100:1(S:0-1)|none
n3|down*|(null)|Not responding
n4|drained|gpu:4|bad disk
"""


@pytest.fixture
def cluster(monkeypatch):
    """Slurm's engine on a cluster whose commands print what the test says."""

    def make(**options):
        engine = object.__new__(slurm.Slurm)
        engine._options, engine._name = EngineOptions(**options), "fleet-x"
        engine._jobs, engine._ended, engine._told = {}, {}, {}
        return engine

    printed = {"sinfo": SINFO, "squeue": ""}
    monkeypatch.setattr(slurm, "_run", lambda command, *rest: printed[command])
    return SimpleNamespace(make=make, printed=printed)


@pytest.mark.parametrize(
    ("gres", "cards"),
    [
        ("(null)", 0),
        ("gpu:2", 2),
        ("gpu:a100:4(S:0-1),shard:8", 4),
        ("gpu:a100:4,gpu:h100:2", 6),
        ("craynetwork:4", 0),
        ("gpu:4090:2", 2),
        ("shard:8,gpu:4090:2(S:0,2),gpu:1", 3),
    ],
)
def test_cards_of_a_node(gres, cards):
    """As sinfo writes generic resources."""
    assert slurm.gpus(gres) == cards


def test_every_card_of_every_node_is_a_place(cluster):
    """Those of nodes that take no job too, with Slurm's reason."""
    places = cluster.make().places()

    assert [place.name for place in places] == ["n1-0", "n1-1", "n2", "n3", "n4-0", "n4-1", "n4-2", "n4-3"]
    assert [place.card for place in places[:4]] == [0, 1, 0, None]
    assert places[3].problem == "Slurm says: down* (Not responding)"
    assert places[4].problem == "Slurm says: drained (bad disk)"
    assert not places[2].problem
    assert [place.drained for place in places] == [False] * 4 + [True] * 4, "n3 is down, n4 was drained"


def test_a_number_of_nodes_takes_those_that_can_be_asked(cluster):
    """Whole nodes."""
    assert [place.name for place in cluster.make(nodes="1").places()] == ["n1-0", "n1-1"]


def test_nodes_that_slurm_does_not_know_are_a_usage_error(cluster):
    """With the partition that was named."""
    cluster.printed["sinfo"] = ""
    with pytest.raises(ConfigError, match="--nodes n77: Slurm lists no such node in partition gpu"):
        cluster.make(nodes="n77", partition="gpu").places()


def job(tmp_path, log=None):
    """A job of submitit without a result."""
    stderr = tmp_path / "7_0_log.err"
    if log is not None:
        stderr.write_text(log)
    part = SimpleNamespace(paths=SimpleNamespace(result_pickle=tmp_path / "none.pkl", stderr=stderr))
    part.paths.folder = tmp_path
    return SimpleNamespace(num_tasks=1, task=lambda number: part, paths=part.paths)


@pytest.mark.parametrize(
    ("state", "log", "words", "sick"),
    [
        ("NODE_FAIL", "", "the node failed while the job ran (Slurm: NODE_FAIL)", True),
        ("PREEMPTED", "", "Slurm preempted the job", False),
        (
            "TIMEOUT",
            "slurmstepd: error: time\n",
            "the job's time limit is over (--time): slurmstepd: error: time",
            False,
        ),
        ("COMPLETED", None, "the node does not share this folder", False),
        ("FAILED", "no python\n", "the job ended without an answer (Slurm: FAILED): no python", False),
        ("FAILED", "", "the job ended without an answer (Slurm: FAILED): its log is empty, perhaps because", False),
        ("", "", "Slurm forgot the job", False),
    ],
)
def test_a_job_that_ended_without_an_answer_is_lost_with_the_reason(cluster, tmp_path, state, log, words, sick):
    """After some looks: shared folders lag."""
    engine = cluster.make()
    engine._jobs["7"] = (job(tmp_path, log), {"n1": Place(name="n1", node="n1")})
    cluster.printed["squeue"] = f"7|{state}|None\n" if state else ""

    told = [list(engine.poll()) for _ in range(slurm.POLLS_BEFORE_LOST)]

    assert not any(told[:-1])
    (news,) = told[-1]
    assert (news.state, news.sick) == ("lost", sick)
    assert words in news.words


def test_a_job_that_waits_is_told_with_its_reason(cluster, tmp_path):
    """Until it runs."""
    engine = cluster.make()
    engine._jobs["7"] = (job(tmp_path), {"n1": Place(name="n1", node="n1")})
    told = []
    for line in ("7|PENDING|Resources", "7|PENDING|Resources", "7|RUNNING|None"):
        cluster.printed["squeue"] = f"{line}\n"
        told += [(news.state, news.words) for news in engine.poll()]

    assert told == [("queued", "Slurm: Resources"), ("queued", "Slurm: Resources"), ("running", "")]


def test_what_a_node_without_this_code_raises_is_told_as_another_version():
    """submitit hands over the traceback of the unpickling."""
    error = RuntimeError("Job failed:\nTraceback\nModuleNotFoundError: No module named 'tunecheck.fleet'\n")

    assert slurm._raised(error).startswith("another tunecheck, or none, is installed there: ModuleNotFoundError")


def test_ray_nodes_by_name_or_number():
    """An unknown name is a usage error."""
    places = [Place(name=name, node=name, problem="Ray says: dead" * (name == "r2")) for name in ("r1", "r2", "r3")]

    assert [place.name for place in ray_cluster._chosen(places, "2")] == ["r1", "r3"]
    assert [place.name for place in ray_cluster._chosen(places, "r2,r3")] == ["r2", "r3"]
    with pytest.raises(ConfigError, match="Ray has no node r9"):
        ray_cluster._chosen(places, "r9")


def test_an_address_where_nothing_listens_is_told_at_once():
    """Ray would try for minutes; names that it resolves itself are its own matter."""
    with pytest.raises(OSError, match="refused"):
        ray_cluster._reach("127.0.0.1:1")
    ray_cluster._reach("auto")


@pytest.mark.parametrize(
    ("variables", "visible", "lacking"),
    [
        ({}, 1, []),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 0, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "0,3,1"}, 1, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1"}, 1, []),
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "GPU-a"}, 0, []),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 0, []),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 1, ["GPU-b"]),
    ],
)
def test_a_gpu_that_the_scheduler_lists_and_that_does_not_work_is_asked(monkeypatch, variables, visible, lacking):
    """Its session finds that there is none; the CPU does not stand in for it."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert local._lacking(visible) == lacking


@pytest.mark.parametrize(("given", "rank", "own"), [("3,5", 1, "5"), ("3", 1, ""), (None, 1, "1")])
def test_a_task_of_slurm_sees_its_own_card_alone(monkeypatch, given, rank, own):
    """None where Slurm gave the job too few, rather than another one's."""
    monkeypatch.setattr(slurm.node, "answer", lambda *about, **device: device)
    monkeypatch.setattr(slurm.signal, "signal", lambda *about: None)
    monkeypatch.setenv("SLURM_LOCALID", str(rank))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    places = [{"name": f"n1-{card}", "node": "n1", "card": card} for card in range(2)]

    assert slurm.task("", "", "", places) == {"CUDA_VISIBLE_DEVICES": own}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_task_that_slurm_signals_answers_that_it_was_stopped(monkeypatch, tmp_path, number):
    """SIGUSR2 before the time limit is no error of tunecheck itself."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    request = new_request("slurm", EngineOptions(), ["quick"], "")
    write_request(request)
    monkeypatch.setattr(slurm.node.sys, "executable", "/bin/sleep")
    monkeypatch.setattr(slurm.node.subprocess, "Popen", sleeping(slurm.node.subprocess.Popen, number))
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        place = {"name": "n1", "node": "n1"}
        found = slurm.task(request.folder, request.id, request.tunecheck, [place])
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)

    assert found["problem"] == slurm.node.STOPPED


def sleeping(real, number):
    """Start a process that sleeps in the place of a session, and have Slurm signal this one."""

    def start(command, **options):
        threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
        return real(["sleep", "60"], **options)

    return start


@pytest.mark.parametrize(("seconds", "minutes"), [(60.0, 3), (300.0, 7), (1800.0, 32)])
def test_the_time_limit_of_a_job_leaves_the_session_all_of_its_time(cluster, tmp_path, seconds, minutes):
    """Slurm signals a job before its limit, and a job starts before its session."""
    engine, asked = cluster.make(seconds=seconds), {}
    submitted = SimpleNamespace(job_id="7")
    engine._executor = SimpleNamespace(update_parameters=asked.update, submit=lambda *about: submitted)
    engine.submit(new_request("slurm", engine._options, ["quick"], ""), [Place(name="n1", node="n1")])

    assert asked["time"] == minutes
    assert asked["time"] * 60 - asked["signal_delay_s"] >= seconds + 60


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_a_name_that_is_no_folder_is_a_usage_error(name, monkeypatch, capsys):
    """It would lie outside of the fleet's."""
    monkeypatch.setenv("TUNECHECK_NODE", name)

    assert main(["fleet", "--engine", "local", "quick"]) == 4
    assert f"TUNECHECK_NODE={name!r}" in capsys.readouterr().err


@pytest.mark.parametrize("nodes", ["0", "n1", "-1", ""])
def test_places_of_this_machine_are_a_number(nodes):
    """Or all."""
    with pytest.raises(ConfigError, match="--nodes"):
        local._number(nodes, 0)


def test_more_places_than_cards_are_a_usage_error():
    """Each card is asked once."""
    assert (local._number("all", 0), local._number("all", 4), local._number("3", 4)) == (1, 4, 3)
    with pytest.raises(ConfigError, match="this machine shows 4"):
        local._number("5", 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quick"], "name an engine and a tier"),
        (["--engine", "local"], "name an engine and a tier"),
        (["--engine", "local", "--partition", "gpu", "quick"], "--engine local does not support --partition"),
        (["--engine", "slurm", "--address", "here", "quick"], "--engine slurm does not support --address"),
        (["--engine", "local", "no-such-run"], "no-such-run"),
        (["--engine", "pbs", "quick"], "invalid choice"),
        (["--engine", "local", "--time", "soon", "quick"], "should be a number with a unit"),
        (["--engine", "local", "--wait", "0s", "quick"], "should be above 0"),
        (["--resume", "/nowhere"], "give a fleet's folder"),
        (["--resume", "/nowhere", "quick"], "defines the engine and the runs"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(arguments, words, capsys):
    """Status 4 and a sentence."""
    try:
        status = main(["fleet", *arguments])
    except SystemExit as end:
        status = end.code

    assert status == 4
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_an_engine_that_is_not_there_is_a_usage_error(engine, monkeypatch, tmp_path, capsys):
    """With what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)

    assert main(["fleet", "--engine", engine, "quick"]) == 4
    assert f"--engine {engine}: " in capsys.readouterr().err
