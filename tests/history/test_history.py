"""The history: the rule, the store, and what a session does with both."""

from __future__ import annotations

import dataclasses
import math
import random
import sqlite3
import subprocess
import sys

import pytest
import tiny
from fake_machine import CARD
from history_entries import KEY, RUN, entry, on_cpu, write_session
from metered import metered
from tier_sessions import run_on_shared_server
from traces import adding, healthy, with_record

from tunecheck.config import find_run, load_run
from tunecheck.core import evidence as e
from tunecheck.core.errors import HistoryDamaged, HistoryError, TraceError
from tunecheck.core.paths import project_folder
from tunecheck.core.trace import Attempt
from tunecheck.hardware import probe
from tunecheck.history.remember import compare_figures, rebuild, remember, with_history
from tunecheck.history.store import LIBRARIES, Key, Store, changed, history_entry, history_file, needed_bytes
from tunecheck.memory import need_of
from tunecheck.report.files import summary_markdown, workflow_commands
from tunecheck.results import exit_code
from tunecheck.results.baseline import FIGURES, MOST_SESSIONS, FigureBaseline, baseline_of, compare_to_baseline
from tunecheck.results.stored import VERDICTS, write_verdict
from tunecheck.session import TierSession
from tunecheck.session import written as write_files
from tunecheck.session.admission import shortage

SPEED, MEMORY, RESIDENT = FIGURES["tokens_per_second"], FIGURES["live_tensor_bytes"], FIGURES["resident_bytes"]
PACES = (4122.0, 2251.0, 1932.0, 1870.0, 2592.0, 2165.0, 2336.0, 2956.0, 3082.0)
"""Tokens/s of nine sessions of the tiny run on a 2-core machine where others computed, 2026-11-21."""
HEALTHY_TOO, SLOWED = 3335.0, (904.7, 911.1)
"""The session after them, and two with a quarter of a second in every loss and 32 MiB more on the model."""
LIVE_BYTES, GROWN_BYTES = 683360.0, 34237792.0
RESIDENT_BYTES = (366.5e6, 368.8e6, 372.1e6, 368.9e6, 369.1e6, 370.8e6, 365.1e6, 368.1e6, 368.9e6)


def recorded():
    """The nine sessions as they were."""
    figures = zip(PACES, RESIDENT_BYTES, strict=True)
    return [
        entry(number, tokens_per_second=pace, live_tensor_bytes=LIVE_BYTES, resident_bytes=resident)
        for number, (pace, resident) in enumerate(figures, start=1)
    ]


def statuses(last, before):
    """Of the last session's figures, those that are not steady."""
    standings = compare_figures(last, before, None)
    return {standing.figure: standing.status for standing in standings if standing.status != "steady"}


def test_a_session_without_a_change_accuses_nothing():
    """Nor does the next: real figures, on a machine whose pace swings by a factor of two."""
    after = entry(10, tokens_per_second=HEALTHY_TOO, live_tensor_bytes=LIVE_BYTES, resident_bytes=367.6e6)

    assert statuses(after, recorded()) == {}
    assert statuses(recorded()[-1], recorded()[:-1]) == {}


def test_a_memory_growth_and_a_slowdown_are_named_and_nothing_else():
    """As they were injected: the memory at once, the pace when it is slow a second time."""
    first, second = (
        entry(at, tokens_per_second=pace, live_tensor_bytes=GROWN_BYTES, resident_bytes=403e6)
        for at, pace in zip((10, 11), SLOWED, strict=True)
    )

    assert statuses(first, recorded()) == {"tokens_per_second": "suspect", "live_tensor_bytes": "worse"}
    assert statuses(second, [*recorded(), first]) == {"tokens_per_second": "worse", "live_tensor_bytes": "worse"}


@pytest.mark.parametrize(
    ("figure", "value", "status"),
    [
        (MEMORY, 100e6, "steady"),
        (MEMORY, 101.0e6, "steady"),
        (MEMORY, 101.1e6, "worse"),
        (MEMORY, 98e6, "better"),
        (MEMORY, math.nan, "worse"),
        (MEMORY, math.inf, "worse"),
        (SPEED, 95e6, "steady"),
        (SPEED, 90e6, "suspect"),
        (SPEED, 120e6, "better"),
        (SPEED, math.nan, "worse"),
    ],
)
def test_direction_floor_and_nan(figure, value, status):
    """Figures that never scatter are held to their floors; what is no number is worse at once."""
    floored = dataclasses.replace(figure, floor=1e6 + 1)

    assert compare_to_baseline(RUN, floored, value, [100e6] * 8).status == status


@pytest.mark.parametrize(("count", "status"), [(0, "no baseline"), (7, "no baseline"), (8, "worse")])
def test_a_baseline_takes_eight_sessions(count, status):
    """No baseline is a status, and says how far it has come."""
    standing = compare_to_baseline(RUN, MEMORY, 1e9, [1e6] * count)

    assert (standing.status, standing.sessions) == (status, count)
    assert standing.previous == (1e6 if count else None)


def test_one_slow_session_is_no_regression_and_two_in_a_row_are():
    """A slow session in between makes nothing certain either."""
    steady = [100.0, 101, 99, 100, 102, 98, 100, 101]

    assert compare_to_baseline(RUN, SPEED, 50.0, steady).status == "suspect"
    assert compare_to_baseline(RUN, SPEED, 50.0, [*steady, 50.0]).status == "worse"
    assert compare_to_baseline(RUN, SPEED, 50.0, [*steady, 50.0, 100.0]).status == "suspect"


def test_healthy_scatter_is_hardly_ever_accused():
    """Of 3,000 sessions with a scatter of 10 %, each after ten others: at most one in 300."""
    rng = random.Random(6)
    accused = 0
    for _ in range(3000):
        paces = [100 * math.exp(rng.gauss(0, 0.1)) for _ in range(12)]
        accused += compare_to_baseline(RUN, SPEED, paces[-1], paces[:-1]).status == "worse"

    assert accused <= 10


def test_only_the_last_sessions_count():
    """A machine that changed for good becomes the usual one."""
    assert baseline_of([1.0] * 40 + [2.0] * MOST_SESSIONS) == FigureBaseline(
        median=2.0, deviation=0.0, sessions=MOST_SESSIONS
    )


def test_sessions_of_another_outcome_or_key_are_not_usual(tmp_path):
    """What failed is no measure, and another card, configuration or major version starts anew."""
    report, folder = write_session(tmp_path, 20)
    ours = history_entry(report.runs[0], on_cpu(healthy()), session=folder.name, started_at=report.started_at)
    others = [{"fingerprint": "other"}, {"device": "another CPU"}, {"majors": "torch 3"}]
    entries = [entry(at, key=ours.key, outcome="fail") for at in range(1, 10)]
    entries += [entry(at + 9, key=dataclasses.replace(ours.key, **changed)) for at, changed in enumerate(others)]
    Store(history_file()).add(entries)

    standings = with_history(report, folder).figure_comparisons
    assert {standing.figure for standing in standings} >= {"tokens_per_second", "live_tensor_bytes", "probe_loss"}
    assert {(standing.status, standing.sessions) for standing in standings} == {("no baseline", 0)}


def test_figures_of_a_cpu_and_of_a_card(tmp_path):
    """Where an allocator counts, its peak is the memory, and what the probes took is in what a card must hold."""
    on_card = with_record(metered(), e.Phase, 2, probes_peak_allocated_bytes=2000 * 2**20)
    on_card = with_record(on_card, e.Setup, cuda={"total_bytes": 16 * 2**30}, device_name="NVIDIA T4")
    cpu, _ = write_session(tmp_path / "cpu", 1)
    card, _ = write_session(tmp_path / "card", 1, on_card)
    there = history_entry(cpu.runs[0], on_cpu(healthy()), session="s", started_at="")
    here = history_entry(card.runs[0], on_card, session="s", started_at="")

    assert {"live_tensor_bytes", "resident_bytes"} <= there.figures.keys()
    assert (there.key.device, there.card, there.needed_bytes) == ("made up, 2 cores", "", None)
    assert here.figures["peak_allocated_bytes"] == card.runs[0].peak_bytes == 1200 * 2**20
    assert not {"live_tensor_bytes", "resident_bytes"} & here.figures.keys()
    assert (here.key.device, here.card, here.needed_bytes) == ("NVIDIA T4, 16 GiB", "NVIDIA T4", 2000 * 2**20)


@pytest.mark.parametrize(("outcome", "needed"), [("finished", 3000), ("out_of_memory", 2000)])
def test_a_variant_that_takes_more_is_in_what_a_card_must_hold(outcome, needed):
    """Unless it ran out of memory: then it says how large the card was."""
    trace = metered()
    peak = next(dataclasses.replace(phase, peak_allocated_bytes=3000 * 2**20) for phase in trace.main.all(e.Phase))
    start = dataclasses.replace(trace.main.start, purpose=e.AttemptPurpose.COMPARE, variant=e.MemoryVariant.FULL)
    end = dataclasses.replace(trace.main.end, outcome=outcome)
    both = dataclasses.replace(trace, attempts=(*trace.attempts, Attempt(start, (peak,), end)))
    assert needed_bytes(both) == needed * 2**20


def test_a_pace_that_others_slowed_down_is_no_figure(tmp_path):
    """Of a session beside somebody else's work; its memory and its losses are its own."""
    entries = []
    for day, share in enumerate((0.6, 0.05), start=1):
        trace = adding(healthy(), e.Phase(name="steady", seconds=5.0, process_bytes=2**30, others_busy_share=share))
        report, _ = write_session(tmp_path, day, trace)
        entries.append(history_entry(report.runs[0], on_cpu(trace), session="s", started_at=""))

    assert entries[1].figures.keys() - entries[0].figures.keys() == {"tokens_per_second"}


def test_a_capped_card_is_another_device(tmp_path):
    """And its peak does not speak for the whole card."""
    trace = with_record(metered(), e.Setup, vram_cap_bytes=8 * 2**30, device_name="NVIDIA T4")
    report, _ = write_session(tmp_path, 1, trace)
    capped = history_entry(report.runs[0], trace, session="s", started_at="")

    assert capped.key.device == "NVIDIA T4, capped at 8.0 GiB"
    assert capped.card == ""


def test_what_changed_between_two_sessions_is_named():
    """Versions and commit, the same ones not."""
    after = dataclasses.replace(entry(2), versions={"torch": "2.13.1", "commit": "abc"})

    assert changed(entry(1), after) == "torch 2.13.0 → 2.13.1, commit none → abc"
    assert changed(entry(1), entry(2)) == ""


def test_the_store_gives_back_what_it_was_given():
    """By run, by key, before a time; the oldest first; a session that is told twice is there once."""
    store = Store(history_file())
    other = entry(3, key=dataclasses.replace(KEY, device="another"))
    store.add([entry(2), other, entry(1, tokens_per_second=100.0)])
    store.add([entry(2, outcome="fail")])

    assert store.entries(run=RUN) == [entry(1, tokens_per_second=100.0), entry(2, outcome="fail"), other]
    assert [held.session for held in store.entries(key=KEY, before=entry(2).started_at)] == [entry(1).session]
    assert store.entries(run="quick/none") == []


def test_the_last_entries_are_found_without_reading_the_others():
    """A fleet adds ten thousand in one session: each question has an index of its own."""
    store = Store(history_file())
    assert store.runs() == []
    store.add([*(entry(number) for number in range(1, 9)), entry(9, outcome="fail")])

    assert [held.started_at[8:10] for held in store.entries(run=RUN, last=2)] == ["08", "09"]
    assert [held.started_at[8:10] for held in store.entries(key=KEY, outcome="pass", last=2)] == ["07", "08"]
    assert store.runs() == [RUN]
    with sqlite3.connect(store.path) as connection:
        asked = {
            "entries_by_run": "run = ? ORDER BY started_at DESC LIMIT 2",
            "entries_by_key": "fingerprint = ? AND device = ? AND majors = ? AND outcome = ? ORDER BY started_at DESC",
            "entries_by_card": "fingerprint = ? AND card != '' GROUP BY card, started_at",
        }
        for index, condition in asked.items():
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT * FROM entries WHERE {condition}", ["x"] * condition.count("?")
            ).fetchall()
            assert index in str(plan)
            assert "TEMP B-TREE" not in str(plan)


def test_sessions_that_write_at_once_lose_nothing(tmp_path):
    """Two processes, ten sessions each, one file that none of them has made before."""
    code = (
        "import sys\n"
        "from tunecheck.history.store import HistoryEntry, Key\n"
        "from tunecheck.history.store import Store, history_file\n"
        "fields = dict(started_at='', run='quick/tiny', versions={}, outcome='pass', figures={})\n"
        "key = Key(fingerprint='', device='', majors='')\n"
        "for at in range(10):\n"
        "    Store(history_file()).add([HistoryEntry(session=f'{sys.argv[1]}-{at}', key=key, **fields)])\n"
    )
    command = [sys.executable, "-c", code]
    writers = [subprocess.Popen([*command, str(number)], cwd=project_folder()) for number in range(2)]

    assert [writer.wait(timeout=120) for writer in writers] == [0] * 2
    assert len(Store(history_file()).entries()) == 20


def hold(path):
    """A connection that writes and does not end."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    return holder


def broken(path, how):
    """The store in this state, with one session in it before."""
    Store(path).add([entry(1)])
    if how == "text":
        path.write_text("no database at all, but long enough to be read as one" * 20)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:6000])
    elif how == "newer":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 9")
        connection.close()
    return path


@pytest.mark.parametrize(
    ("how", "words"),
    [("text", "damaged"), ("cut", "damaged"), ("newer", "schema 9, this tunecheck reads 2")],
)
def test_a_store_that_is_no_use_is_set_aside_and_made_again(tmp_path, how, words, said):
    """The message says how, and the file is kept: what nobody can read today may be wanted tomorrow."""
    path = broken(history_file(), how)
    write_session(tmp_path, 2)
    with pytest.raises(HistoryDamaged, match=f"{words}.*history --rebuild"):
        Store(path).check()

    made, sessions = rebuild(tmp_path)
    assert (made, sessions) == (path, 1)
    assert [held.session for held in Store(path).entries()] == ["20261102T013000Z-7"]
    assert len(list(path.parent.glob(f"{path.name}.unusable-*"))) == 1
    assert f"set aside as {path.name}.unusable-" in said[0]


def test_a_rebuild_keeps_what_only_the_store_knows(tmp_path, said):
    """Entries of sessions that are pruned."""
    Store(history_file()).add([entry(1)])
    write_session(tmp_path, 2)
    (tmp_path / "20261103T013000Z-7").mkdir()
    (tmp_path / "20261103T013000Z-7" / "quick-x.jsonl").write_text("{}\n")
    (tmp_path / "20261103T013000Z-7" / "verdict.json").write_text('{"schema": 1, "verdict": "", "runs": []}')
    rebuild(tmp_path)

    assert len(Store(history_file()).entries()) == 2
    assert "20261103T013000Z-7 is left out: " in said[0]
    assert "schema 1" in said[0]


def test_a_rebuild_names_the_trace_that_a_killed_session_left_broken(tmp_path, said):
    """It has no verdict either."""
    folder = tmp_path / "20261103T013000Z-7"
    folder.mkdir()
    (folder / "quick-x.jsonl").write_text("{}\n")
    rebuild(tmp_path)

    assert "quick/x is not in the history: " in said[0]


def test_somebody_elses_database_is_left_alone():
    """However it came to that name."""
    path = history_file()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(HistoryError, match="not tunecheck's; name another in TUNECHECK_HISTORY"):
        Store(path).add([entry(1)])
    with pytest.raises(HistoryError, match="not tunecheck's"):
        rebuild(path.parent)
    assert path.read_bytes() == before


def test_a_locked_store_is_given_up_on_and_nothing_is_lost():
    """After a wait; the sentence says how to add it later."""
    Store(history_file()).add([entry(1)])
    holder = hold(history_file())
    with pytest.raises(HistoryError, match=r"writing for 0\.1 s; `tunecheck history --rebuild` adds later"):
        Store(history_file(), wait_seconds=0.1).add([entry(2)])
    holder.close()

    assert len(Store(history_file()).entries()) == 1


def test_a_store_where_nothing_can_be_written_is_named(monkeypatch, tmp_path):
    """With the variable that names another."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUNECHECK_HISTORY", str(tmp_path / "file" / "history.sqlite"))

    with pytest.raises(HistoryError, match=r"cannot be used .* name another file in TUNECHECK_HISTORY"):
        Store(history_file()).add([entry(1)])


@pytest.mark.parametrize("how", ["text", "newer"])
def test_a_broken_store_costs_a_session_nothing(tmp_path, caplog, how):
    """Verdict, page and summary are written, and each says what is wrong with the history."""
    broken(history_file(), how)
    report, folder = write_session(tmp_path, 2)
    (folder / "verdict.json").unlink()
    write_files(with_history(report, folder), folder)

    written = VERDICTS.read(folder / "verdict.json")
    assert "is not compared with previous sessions" in written.history_notes[0]
    assert written.verdict == "pass"
    assert "is not in the history yet" in caplog.text
    for name in ("report.html", "summary.md"):
        assert "rebuild" in (folder / name).read_text()


def regressed_session(tmp_path, *, shrink=1.0):
    """The report of a session after nine sessions whose tensors took half of what they take now."""
    report, folder = write_session(tmp_path, 20)
    now = history_entry(report.runs[0], on_cpu(healthy()), session=folder.name, started_at=report.started_at)
    half = {**now.figures, "live_tensor_bytes": now.figures["live_tensor_bytes"] / 2}
    before = [
        dataclasses.replace(now, session=entry(at).session, started_at=entry(at).started_at, figures=half)
        for at in range(1, 10)
    ]
    Store(history_file()).add(before)
    return report, folder


def test_a_regression_is_a_warning_everywhere(tmp_path):
    """In the verdict file, the headline, the summary, the page and GitHub; the verdict itself stays."""
    report, folder = regressed_session(tmp_path)
    made = with_history(report, folder)
    write_verdict(made, folder)
    write_files(made, folder)

    assert VERDICTS.read(folder / "verdict.json") == made
    assert (made.verdict, exit_code(made)) == ("pass", 0)
    assert [standing.figure for standing in made.regressions] == ["live_tensor_bytes"]
    assert "1 figure worse than the baseline" in made.headline
    assert "**REGRESSION convergence/two-layers-qlora: live tensors" in summary_markdown(made)
    (warning,) = workflow_commands(made, {"GITHUB_ACTIONS": "true"})
    assert warning.startswith("::warning title=REGRESSION convergence/two-layers-qlora%3A live tensors::17.5 MiB")
    page = (folder / "report.html").read_text()
    assert page.count(">REGRESSION ") == 1
    assert "Live tensors by session" in page


@pytest.mark.parametrize(("asked", "verdict", "status"), [(True, "fail", 1), (False, "pass", 0)])
def test_a_regression_fails_the_session_where_that_is_asked_for(tmp_path, asked, verdict, status):
    """--fail-on-regression; the file says so too."""
    report, folder = regressed_session(tmp_path)
    session = TierSession(command="", folder=folder, fail_on_regression=asked)
    made = session._compared(report)

    assert (made.verdict, exit_code(made)) == (verdict, status)


def test_a_session_joins_the_history_when_it_ends(tmp_path):
    """And finds no baseline in itself."""
    report, folder = write_session(tmp_path, 2)
    write_files(with_history(report, folder), folder)
    remember(report, folder)

    (held,) = Store(history_file()).entries(run="convergence/two-layers-qlora")
    assert (held.session, held.outcome) == (folder.name, "pass")
    assert {standing.sessions for standing in with_history(report, folder).figure_comparisons} == {0}


def test_a_run_whose_trace_is_lost_is_left_out_with_a_note(tmp_path):
    """It has no figures."""
    report, folder = write_session(tmp_path, 2)
    (folder / "run-0.jsonl").write_text("{}\n")

    made = with_history(report, folder)
    assert made.figure_comparisons == ()
    assert "convergence/two-layers-qlora is not in the history" in made.history_notes[0]


def test_a_finished_session_is_not_touched_again(tmp_path):
    """Two containers that share a folder may share a process id too."""
    _, folder = write_session(tmp_path, 2)
    before = (folder / "verdict.json").read_bytes()
    session = TierSession(command="")
    session.folder = folder

    with pytest.raises(TraceError, match="holds a finished session"):
        session.open()
    assert (folder / "verdict.json").read_bytes() == before


def test_a_crash_after_the_verdict_leaves_it_whole(tmp_path, monkeypatch, caplog):
    """Whatever comes after it may break; nothing half-written is left."""
    report, folder = write_session(tmp_path, 2)
    before = (folder / "verdict.json").read_bytes()

    def crash(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunecheck.core.files.os.replace", crash)
    write_files(dataclasses.replace(report, verdict="fail"), folder)

    assert (folder / "verdict.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["run-0.jsonl", "verdict.json"]
    assert "No space left on device" in caplog.text


def test_the_last_measured_peak_feeds_the_gate(tmp_path, monkeypatch):
    """Of this configuration on such a card, also when its session is pruned; a crash or another card tells nothing."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    run = load_run(find_run("memory/tinyllama-1.1b-qlora"))
    card = dataclasses.replace(CARD, total_bytes=16 * 2**30, free_bytes=4 * 2**30)
    key = dataclasses.replace(KEY, fingerprint=run.fingerprint)
    assert shortage(run, card) is None, "the YAML states 3 GiB"

    store = Store(history_file())
    store.add([entry(1, key=key, card=card.name, needed=9 * 2**30)])
    store.add([entry(2, key=key, card=card.name, needed=5 * 2**30, outcome="fail")])
    store.add([entry(3, key=key, card=card.name, needed=2**30, outcome="error")])
    store.add([entry(4, key=key, card="NVIDIA other", needed=2**30)])

    need = need_of(run, gpu_name=card.name)
    assert need.known == "measured 2026-11-02"
    assert 5 * 2**30 < need.bytes < 6 * 2**30
    assert "(measured 2026-11-02)" in shortage(run, card)
    history_file().write_text("broken " * 500)
    assert need_of(run, gpu_name=card.name).known == "stated by the run"


def test_pytest_fails_on_a_regression_where_that_is_asked_for(tmp_path):
    """From end to end: eight sessions whose loss was 1, then a real session of the tiny run."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), tiny.SETTINGS)
    hardware = probe()
    key = Key(
        fingerprint=run.fingerprint,
        device=f"{hardware.cpu.model}, {hardware.cpu.usable_cores} cores",
        majors=", ".join(f"{name} {str(hardware.versions[name]).partition('.')[0]}" for name in LIBRARIES),
    )
    Store(history_file()).add([entry(at, key=key, probe_loss=1.0) for at in range(1, 9)])
    options = [argument for setting in tiny.SETTINGS for argument in ("--set", setting)]
    chosen = ["--run", "quick/smollm2-135m-qlora", "-k", "finite"]
    done = run_on_shared_server(tmp_path, "--fail-on-regression", *options, *chosen)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "REGRESSION quick/smollm2-135m-qlora: probe loss" in done.stdout
    assert "verdict: FAIL — 1 check passed, 0 failed, 0 unjudged; 1 figure worse than the baseline" in done.stdout
    assert len(Store(history_file()).entries(key=key)) == 9


def test_a_store_that_cannot_be_set_aside_says_so(monkeypatch):
    """Then a person must move it."""
    path = broken(history_file(), "text")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    with pytest.raises(HistoryError, match="cannot be set aside: Permission denied; move it away yourself"):
        Store(path).set_aside()
