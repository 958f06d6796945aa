"""Baselines, comparisons, old sessions that make room, and the charts of the history, by command as a user would."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import time

import pytest
from history_entries import KEY, RUN, entry, on_cpu, write_session, write_trace
from html_page import MOST_BYTES, Page
from sessions import leaking
from traces import adding, healthy, opened, with_record, with_run

from tunecheck.cli import main
from tunecheck.core import evidence as e
from tunecheck.core.errors import HistoryError
from tunecheck.core.paths import baselines_folder, project_folder
from tunecheck.core.trace import SCHEMA
from tunecheck.history.baseline import baseline_file, baseline_for, read_baseline
from tunecheck.history.remember import plan, prune, remember, with_history
from tunecheck.history.store import Store, history_entry, history_file
from tunecheck.memory import measured_peaks
from tunecheck.report.page import page_html, trends
from tunecheck.results.stored import write_record

NAME = "convergence/two-layers-qlora"


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """The folder of sessions."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def slower(trace, factor):
    """The trace with steps that take so many times as long."""
    steps = with_record(trace, e.Step, seconds=lambda seconds: seconds * factor)
    return with_record(steps, e.StepTimes, seconds=lambda each: tuple(seconds * factor for seconds in each))


def grown(trace):
    """The trace with 16 MiB more of live tensors."""
    return with_record(trace, e.LiveTensors, bytes=lambda size: size + 16 * 2**20)


def past(folder, report, count=9):
    """Nights of the same key before this session, a few per cent apart in pace."""
    now = history_entry(report.runs[0], on_cpu(healthy()), session=folder.name, started_at=report.started_at)
    pace = now.figures["tokens_per_second"]
    entries = [
        dataclasses.replace(
            now,
            session=entry(at).session,
            started_at=entry(at).started_at,
            figures={**now.figures, "tokens_per_second": pace * (1 + (at % 3 - 1) / 50)},
        )
        for at in range(1, count + 1)
    ]
    Store(history_file()).add(entries)
    return entries


def told(capsys):
    """What was printed, white space collapsed."""
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_compare_shows_a_growth_and_a_slowdown_and_nothing_else(reports, capsys):
    """By more than the sessions scatter; the status is that of something worse."""
    report, a = write_session(reports, 20)
    past(a, report)
    _, b = write_session(reports, 21, slower(grown(healthy()), 3))

    assert main(["compare", str(a), str(b), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert {one["figure"]: one["status"] for one in found["differences"] if one["status"] != "steady"} == {
        "tokens_per_second": "worse",
        "live_tensor_bytes": "worse",
    }
    assert found["sessions"] == 9
    assert main(["compare", str(a), str(b)]) == 1
    assert "limits are those of the scatter of 9 sessions" in told(capsys)


def test_compare_of_two_equal_sessions_shows_nothing(reports, capsys):
    """And is status 0; two traces are as good as two sessions."""
    report, a = write_session(reports, 20)
    past(a, report)
    _, b = write_session(reports, 21, slower(healthy(), 1.03))

    assert main(["compare", str(a), str(b)]) == 0
    assert "worse" not in told(capsys)
    assert main(["compare", str(a / "run-0.jsonl"), str(b / "run-0.jsonl"), "--json"]) == 0


def test_compare_without_a_history_is_not_certain_of_a_pace(reports, capsys):
    """It says that only the floors are known."""
    _, a = write_session(reports, 20)
    _, b = write_session(reports, 21, slower(healthy(), 3))

    assert main(["compare", str(a), str(b)]) == 0
    words = told(capsys)
    assert "suspect, scatter unknown" in words
    assert "the floors alone: fewer than 8 sessions" in words


def test_compare_leaves_out_a_pace_that_others_slowed_down_and_says_so(reports, capsys):
    """A slowdown that is somebody else's is nobody's regression."""
    _, a = write_session(reports, 20)
    beside = e.Phase(name="steady", seconds=5.0, process_bytes=0, others_busy_share=0.68)
    _, b = write_session(reports, 21, slower(adding(healthy(), beside), 3))

    assert main(["compare", str(a), str(b)]) == 0
    words = told(capsys)
    assert "B: other processes used 68% of the CPU time while it trained" in words
    assert "throughput" not in words


def test_compare_names_checks_that_answer_otherwise(reports, capsys):
    """A run that failed after it passed is worse, whatever its figures."""
    _, a = write_session(reports, 20)
    _, b = write_session(reports, 21, with_record(healthy(), e.Movement, frozen_changed=("base.weight",)))

    assert main(["compare", str(a), str(b)]) == 1
    words = told(capsys)
    assert f"{NAME}: pass → fail" in words
    assert "base_untouched: passed → failed" in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "another"}, "they trained different things (fingerprints"),
        (
            {"environment": {"cpu": {"model": "other", "usable_cores": 2}}},
            "they ran on different devices (made up, 2 cores and other",
        ),
    ],
)
def test_compare_of_what_cannot_be_compared_says_why(reports, capsys, change, words):
    """Figures of one card say nothing about another."""
    _, a = write_session(reports, 20)
    _, b = write_session(reports, 21)
    trace = on_cpu(healthy())
    write_trace(b / "run-0.jsonl", dataclasses.replace(trace, header=dataclasses.replace(trace.header, **change)))

    assert main(["compare", str(a), str(b)]) == 0
    assert f"figures cannot be compared: {words}" in told(capsys)


def test_compare_of_sessions_without_a_common_run_is_a_wrong_request(reports, capsys):
    """As is a folder that holds no session, and a trace of another schema."""
    _, a = write_session(reports, 20)
    _, b = write_session(reports, 21, with_run(healthy(), id="another"))
    (old := reports / "old.jsonl").write_text(
        (a / "run-0.jsonl").read_text().replace(f'"schema": {SCHEMA}', '"schema": 0')
    )

    assert main(["compare", str(a), str(b)]) == 4
    assert f"have no run in common: {NAME}; convergence/another" in told(capsys)
    assert main(["compare", str(a), str(reports / "none")]) == 4
    assert "cannot be read" in told(capsys)
    assert main(["compare", str(a), str(old)]) == 4
    assert f"trace schema 0, this tunecheck reads {SCHEMA}" in told(capsys)


def test_a_baseline_is_accepted_shown_and_held_against(reports, capsys):
    """A small file to be committed; from then on it goes before the sessions."""
    past(*reversed(write_session(reports, 10)))
    report, folder = write_session(reports, 20, grown(healthy()))

    assert main(["baseline", "accept", NAME]) == 0
    (path,) = baselines_folder().iterdir()
    assert path.name == "convergence-two-layers-qlora.made-up-2-cores.json"
    assert path.stat().st_size < 2000
    capsys.readouterr()
    assert main(["baseline", "show"]) == 0
    assert f"{NAME} on made up, 2 cores, accepted 20" in told(capsys)
    assert main(["baseline", "show", NAME, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[path.name]["run"] == NAME
    standings = with_history(report, folder).figure_comparisons
    assert {standing.baseline for standing in standings} == {path.name}
    assert [standing.figure for standing in with_history(report, folder).regressions] == ["live_tensor_bytes"]
    assert main(["baseline", "diff", NAME]) == 0, "the last session is one of those that were accepted"
    remember(report, folder)
    assert main(["baseline", "diff", NAME]) == 1


def test_too_few_sessions_make_no_baseline(reports, capsys):
    """It is a status, with the way to get one; a name that no run has is a wrong request."""
    Store(history_file()).add([entry(at) for at in range(1, 4)])

    assert main(["baseline", "accept", RUN]) == 4
    assert "no baseline: 3 of 8 passed sessions of the same configuration on AMD EPYC, 2 cores" in told(capsys)
    assert main(["baseline", "diff", "quick/smollm2-135m-qlora"]) == 0
    assert "has no session of it; train it first" in told(capsys)
    assert main(["baseline", "show"]) == 0
    assert "no baseline in " in told(capsys)
    assert main(["history", "quick/none"]) == 4
    assert "no run is called 'quick/none'" in told(capsys)


def accepted(**changes):
    """A baseline of eight sessions, in its file."""
    from tunecheck.history.baseline import accepted_from

    made = accepted_from([entry(at) for at in range(1, 9)], run=RUN)
    made = dataclasses.replace(made, **changes)
    return write_record(made, baseline_file(baselines_folder(), made.run, made.key.device))


def test_a_baseline_of_another_card_is_refused(reports, capsys):
    """By name, by content, and with the way to one of this card."""
    path = accepted(key=dataclasses.replace(KEY, device="NVIDIA H200, 140 GiB"))
    Store(history_file()).add([entry(9)])

    assert baseline_for(entry(9)) == (None, "")
    assert main(["baseline", "diff", RUN, "--file", str(path)]) == 4
    words = told(capsys)
    assert "a baseline of NVIDIA H200, 140 GiB, and 20261109T013000Z-7 ran on AMD EPYC, 2 cores" in words
    assert f"`tunecheck baseline accept {RUN}` makes one for this device" in words
    path.rename(baseline_file(baselines_folder(), RUN, KEY.device))
    with pytest.raises(HistoryError, match="a baseline of NVIDIA H200"):
        baseline_for(entry(9))


def test_a_baseline_of_another_configuration_is_not_used_and_says_so(reports, capsys):
    """A new key starts a new baseline."""
    path = accepted()
    now = entry(9, key=dataclasses.replace(KEY, majors="torch 3"))
    baseline, words = baseline_for(now)

    assert baseline is None
    assert f"{path.name} is not used: it was accepted for another configuration or other versions" in words
    assert baseline_for(entry(9))[0] == read_baseline(path)
    Store(history_file()).add([now])
    assert main(["baseline", "diff", RUN, "--file", str(path)]) == 4
    assert "name another file" in told(capsys)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it should be a baseline"),
        ("[]", "not a baseline"),
        ("{}", "not a baseline"),
        ('{"schema": 9, "run": "quick/x"}', "schema 9; this tunecheck reads 1; `tunecheck baseline accept RUN`"),
        ('{"schema": 1, "figures": {}, "key": 3}', "damaged .*; `tunecheck baseline accept RUN` makes one"),
    ],
)
def test_a_file_that_is_no_baseline_is_named(tmp_path, text, words):
    """With what makes one."""
    (path := tmp_path / "x.json").write_text(text)
    with pytest.raises(HistoryError, match=words):
        read_baseline(path)


def test_history_shows_the_sessions_and_the_baseline(reports, capsys):
    """Of one run, or the last session of each; made again from the folders first, if that is asked for."""
    _, folder = write_session(reports, 20, grown(healthy()))
    past(folder, write_session(reports, 1)[0])

    assert main(["history", "--rebuild"]) == 0
    words = told(capsys)
    assert "rebuilt from 2 sessions" in words
    assert "worse" in words
    assert main(["history", NAME]) == 0
    words = told(capsys)
    assert "limit" in words
    assert "10 sessions" in words
    assert main(["history", NAME, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 10


def test_an_empty_history_says_how_it_fills(reports, capsys):
    """The first session has nobody to be compared with."""
    assert main(["history"]) == 0
    assert "no session yet: each adds an entry" in told(capsys)


def test_prune_keeps_the_last_sessions_and_all_figures(reports, capsys):
    """First it only says what it would do; what is no session, and what may still be running, stays."""
    for number in range(1, 5):
        write_session(reports, number)
    (reports / "notes").mkdir()
    running = reports / "20261001T013000Z-9"
    running.mkdir()
    (running / "quick-x.jsonl").write_text("")

    assert main(["prune", "--keep", "1", "--dry-run"]) == 0
    assert "would be removed: 20261103T013000Z-7" in told(capsys)
    assert len(list(reports.iterdir())) == 6
    assert main(["prune", "--keep", "1"]) == 0
    words = told(capsys)
    assert "kept, because it may be running: 20261001T013000Z-9" in words
    assert "3 removed" in words
    assert sorted(path.name for path in reports.iterdir()) == ["20261001T013000Z-9", "20261104T013000Z-7", "notes"]
    assert [held.session[:8] for held in Store(history_file()).entries()] == ["20261101", "20261102", "20261103"]


def test_prune_takes_what_was_killed_long_ago(reports, capsys):
    """A session that wrote nothing for a day has ended, with or without a verdict."""
    _, folder = write_session(reports, 1)
    (folder / "verdict.json").unlink()
    for path in folder.iterdir():
        os.utime(path, (time.time() - 90000,) * 2)
    write_session(reports, 2)

    assert main(["prune", "--keep", "1"]) == 0
    assert [path.name for path in reports.iterdir()] == ["20261102T013000Z-7"]


def test_a_dangling_link_stops_no_prune(reports, capsys):
    """In a session that ended, in one that was killed, and beside them."""
    for number in (1, 2, 3):
        _, folder = write_session(reports, number)
        (folder / "latest").symlink_to("gone")
    (reports / "20261101T013000Z-7" / "verdict.json").unlink()
    (reports / "20261105T013000Z-7").symlink_to("gone")

    assert main(["prune", "--keep", "1"]) == 0
    assert "kept, because it may be running: 20261101T013000Z-7" in told(capsys)
    names = ["20261101T013000Z-7", "20261103T013000Z-7", "20261105T013000Z-7"]
    assert sorted(path.name for path in reports.iterdir() if "sqlite" not in path.name) == names


def test_a_session_that_vanishes_meanwhile_stops_no_prune(reports, capsys, monkeypatch):
    """Two nightlies may share their reports; what cannot be looked into may be running."""
    for number in (1, 2, 3):
        write_session(reports, number)
    what = plan(reports, keep=1)
    shutil.rmtree(what.removed[0])

    assert prune(what, Store(history_file())) > 0
    assert "20261103T013000Z-7" in [path.name for path in reports.iterdir()]

    (reports / "20261101T013000Z-7").mkdir()
    monkeypatch.setattr(os, "stat", closed("20261101T013000Z-7/"))
    assert main(["prune", "--keep", "1"]) == 0
    assert "kept, because it may be running: 20261101T013000Z-7" in told(capsys)


@pytest.mark.parametrize("what", [baselines_folder, history_file])
def test_a_closed_folder_of_baselines_or_of_the_store_costs_no_verdict(reports, monkeypatch, what):
    """Like a store that cannot be used, it is a note; and a run's need is known from elsewhere."""
    report, folder = write_session(reports, 1)
    monkeypatch.setattr(os, "stat", closed(str(what())))

    (note,) = with_history(report, folder).history_notes
    assert "is not compared with previous sessions" in note
    assert "Permission denied" in note
    assert isinstance(measured_peaks("a fingerprint"), dict)


def closed(folder, stat=os.stat):
    """What the kernel says of what lies in another user's folder."""

    def refused(path, *arguments, **settings):
        if folder in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **settings)

    return refused


def test_no_command_prints_a_foreign_escape_sequence(reports, capsys):
    """Of a trace, a verdict or a store that somebody else wrote: neither in tables nor in errors."""
    evil = "\x1b]0;owned\x07\x1b[2J\u202eevil\u200f\x9b"
    trace = with_run(healthy(), id=evil, premises=opened({"schedule_known": evil}))
    trace = with_record(trace, e.Setup, versions=lambda held: {**held, evil: evil}, device_name=lambda _: evil)
    for number in (1, 2):
        write_session(reports, number, trace)
    write_session(reports, 3)
    Store(history_file()).add([dataclasses.replace(entry(1), session=evil, outcome=evil, versions={evil: evil})])
    folders = sorted(path for path in reports.iterdir() if path.is_dir())

    main(["explain", str(next(folders[0].glob("*.jsonl")))])
    for words in (folders[:2], folders[1:], [folders[0], folders[0] / evil]):
        main(["compare", *map(str, words)])
    for words in (["history"], ["history", RUN], ["history", evil], ["prune", "--keep", "1"], ["show", evil]):
        main(words)
    printed = "".join(capsys.readouterr())
    assert "evil" in printed
    assert not set(printed) & set("\x1b\x07\x9b\u202e\u200f")


def test_prune_removes_nothing_when_the_figures_cannot_be_kept(reports, capsys):
    """A broken store is to be made again first."""
    write_session(reports, 1)
    write_session(reports, 2)
    history_file().write_text("broken " * 500)

    assert main(["prune", "--keep", "1"]) == 4
    assert "history --rebuild" in told(capsys)
    assert len(list(reports.iterdir())) == 2


def test_prune_never_touches_evidence(monkeypatch, capsys):
    """It is committed, and not for a command to remove."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(project_folder() / "reports" / "evidence" / "h200"))

    assert main(["prune", "--keep", "1"]) == 4
    assert "committed evidence is never pruned" in told(capsys)


def test_the_page_draws_each_figure_over_the_sessions(reports):
    """With what is usual and where worse begins; titles, words and tables as every chart has them."""
    report, folder = write_session(reports, 20)
    past(folder, report)
    made = with_history(report, folder)
    page = Page(page_html(made, folder))
    drawn = trends(made, made.runs[0], on_cpu(healthy()), folder)[0]

    assert [chart.title for chart in drawn] == [
        f"{name} by session"
        for name in ("Throughput", "Live tensors", "Resident memory", "Probe loss", "Held-out loss")
    ]
    assert all(len(chart.series[0].points) == 10 and chart.limits for chart in drawn)
    drawings = [attributes for attributes in page.named("svg") if attributes.get("role") == "img"]
    assert len(drawings) == len(page.named("desc")) == len(page.named("figure"))
    assert "5 figures within the baseline (median of 9 sessions)" in page.text
    assert "REGRESSION" not in page.text


def test_the_page_of_a_first_session_says_that_there_is_no_baseline(reports):
    """No trend is drawn of one point."""
    report, folder = write_session(reports, 20)
    page = Page(page_html(with_history(report, folder), folder))

    assert "No baseline: this is the first session" in page.text
    assert "by session" not in page.text


def test_the_page_of_a_session_without_a_finished_run_is_honest(reports):
    """No figures, no trend, no claim about previous sessions."""
    cut = on_cpu(healthy())
    first = dataclasses.replace(cut.attempts[0], end=None)
    report, folder = write_session(reports, 20, dataclasses.replace(cut, attempts=(first,)))
    page = Page(page_html(with_history(report, folder), folder))

    assert with_history(report, folder).figure_comparisons == ()
    assert "was cut off with its session" in page.text
    assert "No baseline" not in page.text
    assert "by session" not in page.text


def test_ten_runs_with_a_history_stay_small(reports):
    """Each of them on a card, with thirty sessions behind it."""
    report, folder = write_session(reports, 28, *[leaking(1000)] * 10)
    now = history_entry(report.runs[0], on_cpu(leaking(1000)), session=folder.name, started_at=report.started_at)
    Store(history_file()).add(
        dataclasses.replace(now, session=f"s{at}", started_at=f"2026-10-{at:02}T01:30:00+00:00") for at in range(1, 31)
    )
    html = page_html(with_history(report, folder), folder)

    assert html.count("by session</title>") >= 30
    assert len(html.encode()) < MOST_BYTES


def test_a_session_that_cannot_be_removed_is_named(reports, capsys, monkeypatch):
    """Its figures are kept by then."""
    write_session(reports, 1)
    write_session(reports, 2)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tunecheck.history.remember.shutil.rmtree", refuse)
    assert main(["prune", "--keep", "1"]) == 4
    assert "cannot be removed: Permission denied; its figures are in the history" in told(capsys)


def test_a_baseline_file_that_is_not_there_is_named(tmp_path):
    """No traceback for a wrong path."""
    with pytest.raises(HistoryError, match=r"cannot be read as JSON: .*No such file"):
        read_baseline(tmp_path / "none.json")
