"""Files of the first release: its store, its baselines and its verdicts are still read."""

from __future__ import annotations

import json
import sqlite3

from history_entries import KEY, RUN, entry
from report_rows import PASSED, report, row

from tunecheck.history.baseline import read_baseline
from tunecheck.history.store import APPLICATION, Store, history_file
from tunecheck.results.verdict import read_verdict, verdict_json

COLUMNS = "session, started_at, run, fingerprint, device, majors, versions, outcome, figures, card, needed_bytes"
FIGURES = {"live_tensor_bytes": 683000.0, "probe_loss": 6.245}


def test_the_store_with_its_table_of_nights():
    """Written here as the first release did, column by column."""
    values = (
        *(entry(1).session, entry(1).started_at, RUN, KEY.fingerprint, KEY.device, KEY.majors),
        *(json.dumps({"torch": "2.13.0"}), "pass", json.dumps(FIGURES), "", None),
    )
    with sqlite3.connect(history_file()) as connection:
        connection.execute(f"CREATE TABLE nights ({COLUMNS}, PRIMARY KEY (session, run))")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute(f"INSERT INTO nights VALUES ({', '.join('?' * 11)})", values)
    connection.close()

    Store(history_file()).add([entry(2)])
    assert Store(history_file()).entries(run=RUN) == [entry(1), entry(2)]


def test_a_baseline_file(tmp_path):
    """Of schema 1, with the keys that it had."""
    path = tmp_path / "quick-tiny.amd-epyc-2-cores.json"
    key = {"fingerprint": KEY.fingerprint, "device": KEY.device, "majors": KEY.majors}
    figures = {"probe_loss": {"median": 6.245, "deviation": 0.0, "nights": 9}}
    held = {"schema": 1, "run": RUN, "key": key, "accepted_at": "2026-11-20", "versions": {}, "figures": figures}
    path.write_text(json.dumps(held))
    baseline = read_baseline(path)

    assert (baseline.run, baseline.key) == (RUN, KEY)
    assert baseline.figures["probe_loss"].median == 6.245


def test_a_verdict_of_schema_3(tmp_path):
    """It had no precision, and standings with `nights`."""
    payload = json.loads(verdict_json(report(row(PASSED, device="cpu"))))
    del payload["runs"][0]["precision"], payload["figure_comparisons"]
    figure = {"run": "quick/tiny-qlora", "figure": "probe_loss", "value": 6.2, "status": "steady", "nights": 9}
    figure |= {"median": 6.2, "limit": 6.3, "previous": 6.2, "baseline": "", "changed": ""}
    (path := tmp_path / "verdict.json").write_text(json.dumps({**payload, "schema": 3, "standings": [figure]}))
    read = read_verdict(path)

    assert read.runs[0].precision == ""
    assert read.regressions == []
    assert read.figure_comparisons[0].median == 6.2
