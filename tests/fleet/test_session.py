"""A fleet's session with an engine of the test's own: what comes in, what is missing, what goes on later."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
import shared_fork_server
from fleets import answer, judged, row_of
from html_page import Page
from tiny import TRAINED

from tunecheck.cli import main
from tunecheck.core.errors import SuiteError, TraceError
from tunecheck.fleet import node
from tunecheck.fleet.engines import ENGINES
from tunecheck.fleet.request import EngineOptions, News, Request, read_request, write_request
from tunecheck.fleet.session import FleetSession, new_request, read_answers
from tunecheck.history.remember import rebuild
from tunecheck.history.store import Store, history_file
from tunecheck.results.fleet import ANSWER_FILE, ANSWERS, FLEETS, Answer, Place
from tunecheck.results.stored import plain, write_record

NODES = [Place(name=f"n{number}", node=f"n{number}") for number in range(4)]


class Scripted:
    """An engine whose nodes do what the test says: an answer, a loss, silence, or an error at the submission."""

    summary, options, poll_seconds = "scripted", (), 0.01

    def __init__(self, does):
        self.does, self.asked, self.cancelled, self.told = does, [], False, []

    def __call__(self, options, folder):
        """Stand in the table for a class."""
        return self

    def places(self):
        """All of them, and one that Slurm would call down."""
        return [*NODES, Place(name="n9", node="n9", problem="Slurm says: down* (disk)")]

    def submit(self, request, places):
        """Do at once what the script says."""
        name = places[0].name
        self.asked.append(name)
        what = self.does.get(name, answer(int(name[1:])))
        if isinstance(what, Exception):
            raise what
        if isinstance(what, News):
            self.told.append(what)
        elif what is not None:
            self.told.append(News(place=name, state="answered", answer=what if isinstance(what, dict) else plain(what)))

    def poll(self):
        """What was told since; an interrupt after it, where the script has one."""
        told, self.told = self.told, []
        if not told and self.does.get("interrupt") and not self.cancelled:
            raise KeyboardInterrupt
        return told

    def cancel(self):
        """Remember it."""
        self.cancelled = True


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Ask a scripted fleet and return its report, its engine and its session."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path / "reports"))

    def run(request=None, at_once=None, wait_seconds=5.0, **does):
        engine = Scripted(does)
        monkeypatch.setitem(ENGINES, "slurm", engine)
        request = request or new_request("slurm", EngineOptions(), ["quick"], "tunecheck fleet")
        session = FleetSession(request, at_once=at_once, wait_seconds=wait_seconds)
        return session.ask(lambda heard, trouble: None), engine, session

    return run


def test_all_that_come_in_are_rows_and_the_files_are_written(ask):
    """Those that were not asked too, with the engine's reason."""
    report, engine, session = ask()

    assert engine.asked == ["n0", "n1", "n2", "n3"]
    assert report.status == 6
    assert row_of(report, "n9").reason == "Slurm says: down* (disk)"
    assert FLEETS.read(session.folder / "fleet.json") == report
    assert {"fleet.html", "drain.txt", "drain.json", "request.json"} <= {path.name for path in session.folder.iterdir()}


def test_fewer_nodes_than_were_asked_for_are_told(ask):
    """Those that there are are asked: any would do."""
    report, _, _ = ask(new_request("slurm", EngineOptions(nodes="64"), ["quick"], ""))

    assert "--nodes 64: 4 can be asked" in report.notes


@pytest.mark.parametrize("nodes", ["0", "00", "100000", "9" * 5000])
def test_a_number_of_nodes_that_no_cluster_has_is_a_usage_error(capsys, nodes):
    """By every engine, and before a row is made for each."""
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "--engine", "local", "--nodes", nodes, "quick"])
    assert ended.value.code == 4
    assert "from 1 to 99999" in capsys.readouterr().err


def test_a_run_is_deterministic_unless_the_command_line_says_otherwise():
    """Without it no bits would be compared."""
    asked = new_request("local", EngineOptions(), ["quick"], "")
    other = new_request("local", EngineOptions(), ["quick", "--set", "training.deterministic=false"], "")

    assert asked.arguments[-1] == "training.deterministic=true"
    assert "training.deterministic=true" not in other.arguments


def test_a_silent_node_is_a_row_after_the_time(ask):
    """What is queued is cancelled."""
    report, engine, _ = ask(n2=None, wait_seconds=0.3)

    assert engine.cancelled
    assert row_of(report, "n2").reason.startswith("no answer within 0.3 s (--wait)")


def test_a_node_that_the_engine_loses_is_a_row_with_its_words(ask):
    """And drained where the node itself is gone."""
    gone = News(place="n1", state="lost", words="Slurm: NODE_FAIL", sick=True)
    report, _, session = ask(n1=gone, n2=News(place="n2", state="lost", words="Slurm preempted the job"))

    assert row_of(report, "n1").drain == "Slurm: NODE_FAIL"
    assert (row_of(report, "n2").reason, row_of(report, "n2").drain) == ("Slurm preempted the job", "")
    assert (session.folder / "drain.txt").read_text() == "n1\n"


def test_a_refused_node_is_a_row_and_a_refused_fleet_a_usage_error(ask):
    """One node that Slurm does not take keeps no other from being asked."""
    no = SuiteError("Slurm refuses the job for n1: invalid account")
    report, _, _ = ask(n1=no)

    assert row_of(report, "n1").reason == str(no)
    assert row_of(report, "n2").outcome == "pass"
    with pytest.raises(SuiteError, match="invalid account"):
        ask(n0=no, n1=no, n2=no, n3=no)


@pytest.mark.parametrize("broken", [{}, {"schema": 1, "place": "n1"}, {"schema": 9}, plain(answer(2))])
def test_an_answer_that_is_none_is_told(ask, broken):
    """Another version may answer something else."""
    report, _, _ = ask(n1=broken)

    assert row_of(report, "n1").outcome == "no answer"
    assert "the answer of n1" in row_of(report, "n1").reason


def test_an_interrupt_keeps_what_was_finished(ask):
    """The rest is cancelled; the status is that of an interrupt."""
    report, engine, _ = ask(n3=None, interrupt=True)

    assert (report.status, report.interrupted, engine.cancelled) == (2, True, True)
    assert row_of(report, "n0").outcome == "pass"
    assert "--resume" in row_of(report, "n3").reason


def test_a_session_goes_on_with_those_that_have_not_finished(ask):
    """What is missing, was interrupted or had a problem is asked again, and nothing else is."""
    stopped = replace(answer(1), status=2)
    report, _, session = ask(n0=answer(0), n1=stopped, n2=answer(2, problem="not shared"), n3=None, wait_seconds=0.3)
    assert [row.outcome for row in report.rows].count("pass") == 1
    write_record(answer(0), session.request.place_folder("n0") / ANSWER_FILE)

    report, engine, _ = ask(request=read_request(session.folder))

    assert engine.asked == ["n1", "n2", "n3"]
    assert [row_of(report, f"n{number}").outcome for number in range(4)] == ["pass"] * 4


def test_at_once_is_kept(ask):
    """The second node is asked when the first has answered."""
    _, engine, _ = ask(at_once=1, n0=None, wait_seconds=0.3)

    assert engine.asked == ["n0"]


def test_a_clock_that_is_apart_is_a_remark(ask):
    """The answers of the test are of 1970."""
    report, _, _ = ask()

    assert "its clock is at least" in row_of(report, "n0").remarks[0]


def test_a_folder_that_is_not_a_fleet_is_a_message(tmp_path):
    """With what to name instead."""
    with pytest.raises(TraceError, match="give a fleet's folder"):
        read_request(tmp_path)
    (tmp_path / "request.json").write_text('{"id": 3}')
    with pytest.raises(TraceError, match="not written by `tunecheck fleet`"):
        read_request(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.1.0"}, "but the fleet's is 0.1.0: their checks differ"),
        ({"fleet": "fleet-of-another"}, "is another folder here than on the machine that started the fleet"),
        ({"folder": "/nowhere/fleet"}, "set TUNECHECK_REPORTS to a folder that all nodes share"),
    ],
)
def test_a_node_that_cannot_take_part_says_why(tmp_path, monkeypatch, change, words):
    """Another tunecheck, a folder that is not shared: an answer with the problem, and no session."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    request = new_request("slurm", EngineOptions(), ["quick"], "")
    write_request(request)
    given = {"folder": request.folder, "fleet": request.id, "version": request.tunecheck, **change}

    found = node.answer(**given, place=NODES[0])

    assert words in found["problem"]
    assert found["status"] is None


def answered(request: Request, place: Place, **device: str) -> Answer:
    """What this place answers to the request."""
    write_request(request)
    return ANSWERS.built(node.answer(request.folder, request.id, request.tunecheck, place, **device), "the answer")


def test_a_node_whose_session_cannot_begin_says_what_it_printed(tmp_path, monkeypatch):
    """A usage error there is the node's answer."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    request = new_request("slurm", EngineOptions(), ["no-such-run"], "")
    found = answered(request, NODES[0])

    assert found.status == 4
    assert "no-such-run" in found.problem
    assert read_answers(Path(request.folder))["n0"] == found


@pytest.mark.parametrize("full_from", [0, 1])
def test_a_full_reports_folder_is_a_fault_of_the_machine(ask, monkeypatch, capsys, full_from):
    """Status 6, before the fleet is asked and after."""
    written = itertools.count()

    def replaced(source, target, real=os.replace):
        if next(written) >= full_from:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr("tunecheck.core.files.os.replace", replaced)
    engine = Scripted({"n1": answer(1, problem="no room")})
    monkeypatch.setitem(ENGINES, "slurm", engine)

    assert main(["fleet", "--engine", "slurm", "quick"]) == 6
    printed = capsys.readouterr()
    assert "No space left on device" in " ".join((printed.out + printed.err).split())
    assert ("report: " in printed.out) is False
    assert ("verdict: INCONCLUSIVE" in printed.out) == bool(full_from)


@pytest.mark.parametrize(("device", "outcome"), [("auto", "fail"), ("cpu", "pass")])
def test_a_place_with_a_gpu_does_not_pass_on_its_cpu(tmp_path, monkeypatch, device, outcome):
    """It fails and is drained, unless the command line asks for the CPU."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    for name, value in shared_fork_server.variables().items():
        monkeypatch.setenv(name, value)
    settings = [setting for setting in TRAINED if setting != "device=cpu"]
    arguments = [part for one in (*settings, "training.max_steps=2", f"device={device}") for part in ("--set", one)]
    request = new_request("slurm", EngineOptions(), ["quick/smollm2-135m-qlora", *arguments], "")

    found = answered(request, replace(NODES[0], card=0), CUDA_VISIBLE_DEVICES="7")
    row = row_of(judged(found, answer(1)), "n0")

    assert found.runs[0].outcome == outcome
    assert ("no GPU works" in row.drain) == ("--require-gpu" in row.reason) == (outcome == "fail")


@pytest.mark.parametrize(
    ("whom", "number"), [("session", signal.SIGKILL), ("all", signal.SIGTERM), ("training", signal.SIGKILL)]
)
@pytest.mark.slow
def test_a_session_that_is_killed_from_outside_drains_nobody(tmp_path, monkeypatch, whom, number):
    """Neither by Slurm's scancel, which signals all of its processes, nor by the kernel."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    arguments = [part for one in (*TRAINED, "training.max_steps=5000") for part in ("--set", one)]
    request = new_request("slurm", EngineOptions(seconds=60), ["quick/smollm2-135m-qlora", *arguments], "")

    def kill():
        while not any('"step"' in file.read_text() for file in tmp_path.glob("**/*.jsonl")):
            time.sleep(0.1)
        (session,) = (one for one in psutil.Process().children() if "tunecheck.cli" in one.cmdline())
        below = session.children(recursive=True)
        training = max((one for one in below if not one.children()), key=lambda one: one.cpu_times().user)
        for process in {"session": [session], "all": [*below, session], "training": [training]}[whom]:
            process.send_signal(number)

    thread = threading.Thread(target=kill)
    thread.start()
    found = answered(request, NODES[0])
    thread.join()
    report = judged(found, *(replace(answer(n, run=found.runs[0].run)) for n in (1, 2, 3)))

    assert row_of(report, "n0").outcome == "error"
    assert not row_of(report, "n0").drain


@pytest.fixture(scope="module")
def fleet_of_two(tmp_path_factory):
    """A tiny run on two places of this machine's processor, for real."""
    reports = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNECHECK_REPORTS", str(reports))
        patch.setenv("TUNECHECK_HISTORY", str(reports / "history.sqlite"))
        for name, value in shared_fork_server.variables().items():
            patch.setenv(name, value)
        settings = [part for setting in (*TRAINED, "training.max_steps=2") for part in ("--set", setting)]
        command = ["fleet", "--engine", "local", "--nodes", "2", "quick/smollm2-135m-qlora", *settings]
        status = main(command)
        (folder,) = reports.glob("fleet-*")
        yield status, folder, reports


def test_two_places_agree_to_the_last_bit(fleet_of_two):
    """Each with a session of its own, whose page the fleet's page links."""
    status, folder, _ = fleet_of_two
    report = FLEETS.read(folder / "fleet.json")

    assert status == report.status == 0
    assert [row.outcome for row in report.rows] == ["pass", "pass"]
    assert all(finding.passed for row in report.rows for finding in row.findings)
    links = [link["href"] for link in Page((folder / "fleet.html").read_text()).named("a")]
    assert len(links) == 2
    assert all((folder / link).is_file() for link in links)


def test_their_figures_are_in_the_history(fleet_of_two, monkeypatch):
    """Under the name of the place; a rebuilt history has them too."""
    _, folder, reports = fleet_of_two
    monkeypatch.setenv("TUNECHECK_HISTORY", str(reports / "history.sqlite"))
    held = Store(history_file()).entries()
    assert sorted(entry.session for entry in held) == sorted(
        f"{folder.name}/{row.place}" for row in FLEETS.read(folder / "fleet.json").rows
    )

    monkeypatch.setenv("TUNECHECK_HISTORY", str(reports / "again.sqlite"))
    rebuild(reports)
    assert Store(history_file()).entries() == held


def test_a_fleet_is_judged_again_from_its_folder(fleet_of_two, monkeypatch, capsys):
    """Asking nobody: a wrong bit that is put into an answer is found."""
    _, folder, reports = fleet_of_two
    monkeypatch.setenv("TUNECHECK_HISTORY", str(reports / "judged.sqlite"))
    path = sorted(folder.glob("nodes/*/answer.json"))[0]
    kept = path.read_text()
    held = json.loads(kept)
    held["runs"][0]["numbers"]["loss of step"][1] += 1e-6
    path.write_text(json.dumps(held))
    try:
        assert main(["fleet", "--judge", str(folder)]) == 6
    finally:
        path.write_text(kept)

    assert "tunecheck cannot tell which is wrong" in " ".join(capsys.readouterr().out.split())


def test_fleets_of_one_node_each_are_judged_together(tmp_path, monkeypatch, capsys):
    """As the pods of a Kubernetes Job leave them; the last answer of a place counts."""
    monkeypatch.setenv("TUNECHECK_HISTORY", str(tmp_path / "history.sqlite"))
    for number in range(3):
        for began in (1.0, 2.0):
            bits = {"loss of step": (4.5, 5.0 if began == 1 or number == 2 else 4.25)}
            one = replace(answer(number, numbers=bits), began_at=began)
            folder = tmp_path / f"n{number}" / f"fleet-{began}" / "nodes" / f"n{number}"
            write_record(one, folder / ANSWER_FILE)

    assert main(["fleet", "--judge", str(tmp_path)]) == 1
    assert (tmp_path / "drain.txt").read_text() == "n2\n"
    assert row_of(FLEETS.read(tmp_path / "fleet.json"), "n0").session.startswith("n0/fleet-2.0/nodes/n0/")
    assert main(["fleet", "--judge", str(tmp_path / "n0" / "none")]) == 4
    assert "holds no answer of a fleet" in capsys.readouterr().err


def pod(folder, name, *, days_ago, killed=False, **changes):
    """What the fleet of one pod leaves, killed with -9 before its answer or not."""
    began = datetime.now(UTC) - timedelta(days=days_ago)
    fleet = folder / name / f"fleet-{days_ago}"
    asked = new_request("local", EngineOptions(), ["quick"], "")
    places = (Place(name=name, node=name),)
    write_request(replace(asked, folder=str(fleet), started_at=began.isoformat(timespec="seconds"), places=places))
    (fleet / "nodes" / name).mkdir(parents=True)
    if not killed:
        one = replace(answer(0, **changes), place=name, node=name, session="")
        one = replace(one, began_at=began.timestamp(), ended_at=began.timestamp() + 60)
        write_record(one, fleet / "nodes" / name / ANSWER_FILE)


@pytest.mark.parametrize(
    ("pods", "nodes", "words"),
    [
        ([("n3", 0, True)], "all", "it was asked but did not answer"),
        ([("n3", 0, True), ("n3", 1, False)], "all", "it was asked but did not answer; it last answered 24 h"),
        ([("n3", 1, False)], "all", "it did not begin; its last answer is 24 h"),
        ([], "4", "it was never asked: --nodes 4, and 3 left a request here"),
        ([], "n[1],n1,n2,n3", "it was never asked"),
    ],
)
def test_every_place_that_was_ever_asked_is_a_row(tmp_path, monkeypatch, pods, nodes, words):
    """Killed before its answer, not begun today, or never asked: none of them is a pass, nor missing."""
    monkeypatch.setenv("TUNECHECK_HISTORY", str(tmp_path / "history.sqlite"))
    for name, days_ago, killed in [("n1", 0, False), ("n2", 0, False), ("n[1]", 0, False), *pods]:
        pod(tmp_path, name, days_ago=days_ago, killed=killed)

    assert main(["fleet", "--judge", str(tmp_path), "--nodes", nodes]) == 6
    rows = {row.place: row for row in FLEETS.read(tmp_path / "fleet.json").rows}
    (silent,) = set(rows) - {"n1", "n2", "n[1]"}
    assert rows[silent].reason.startswith(words)
    assert {rows[name].outcome for name in ("n1", "n2", "n[1]")} == {"pass"}
    assert rows["n1"].age_seconds < 3600


def test_a_request_that_cannot_be_read_is_a_row(tmp_path, monkeypatch):
    """A copy that broke off: nobody knows whom it asked."""
    monkeypatch.setenv("TUNECHECK_HISTORY", str(tmp_path / "history.sqlite"))
    pod(tmp_path, "n1", days_ago=0)
    (tmp_path / "n2" / "fleet-0").mkdir(parents=True)
    (tmp_path / "n2" / "fleet-0" / "request.json").touch()

    assert main(["fleet", "--judge", str(tmp_path)]) == 6
    report = FLEETS.read(tmp_path / "fleet.json")
    assert [(row.place, row.outcome) for row in report.rows] == [("fleet-0", "no answer"), ("n1", "pass")]
    assert "request.json: cannot be read as JSON" in row_of(report, "fleet-0").reason


def test_a_fleet_that_was_killed_is_judged_with_every_place_that_it_was_to_ask(ask, monkeypatch):
    """Also those whose turn had not come."""
    _, _, session = ask()
    for name in ("fleet.json", "nodes/n1/answer.json"):
        (session.folder / name).unlink(missing_ok=True)

    assert main(["fleet", "--judge", str(session.folder)]) == 6
    assert {row.place for row in FLEETS.read(session.folder / "fleet.json").rows} == {"n0", "n1", "n2", "n3", "n9"}


@pytest.mark.parametrize(
    "change",
    [{"session": "/etc"}, {"session": "../../../etc"}, {"session": "a\0b"}, {"place": "n2"}, {"began_at": "soon"}],
)
def test_one_answer_that_cannot_be_used_is_one_row(tmp_path, monkeypatch, change):
    """The others are judged."""
    monkeypatch.setenv("TUNECHECK_HISTORY", str(tmp_path / "history.sqlite"))
    for name in ("n1", "n2"):
        pod(tmp_path, name, days_ago=0)
    (path,) = tmp_path.glob("n1/**/answer.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    assert main(["fleet", "--judge", str(tmp_path)]) == 6
    report = FLEETS.read(tmp_path / "fleet.json")
    assert [(row.place, row.outcome) for row in report.rows] == [("n1", "error"), ("n2", "pass")]
    assert "answer.json" in row_of(report, "n1").reason


@pytest.mark.parametrize(("error", "status"), [(errno.ENOENT, 0), (errno.EACCES, 6)])
def test_a_folder_that_cannot_be_looked_into_is_gone_or_a_row(tmp_path, monkeypatch, error, status):
    """Pods come and go while a fleet is judged; the folder of another user may hold a failure."""
    monkeypatch.setenv("TUNECHECK_HISTORY", str(tmp_path / "history.sqlite"))
    for name in ("n1", "n2"):
        pod(tmp_path, name, days_ago=0)
    scandir = os.scandir

    def looked(path):
        if "n2" in str(path):
            raise OSError(error, os.strerror(error), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", looked)

    assert main(["fleet", "--judge", str(tmp_path)]) == status
    rows = {row.place: row.reason for row in FLEETS.read(tmp_path / "fleet.json").rows}
    assert rows == {"n1": "", **({"n2": f"{tmp_path / 'n2'} cannot be read: Permission denied"} if status else {})}
