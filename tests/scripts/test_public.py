"""The page of public scripts: scores before and now, in words, from facts alone."""

from __future__ import annotations

from benchmarks.scripts.public import page

PASS = {"outcome": "pass", "failed": [], "suspected": []}
FAIL = {"outcome": "fail", "failed": ["finite"], "suspected": ["rows_whole"]}
HEALTHY = {
    "repository": "one/repository",
    "commit": "0123abcd",
    "script": "train.py",
    "shrunk": "arguments",
    "note": "",
}
MISTAKE = {"repository": "one/repository", "script": "train.py", "mistake": "a rate of 0"}
SET = {
    "set": "Z",
    "where": "One core",
    "frozen": "2026-01-01",
    "run": "2026-01-02",
    "healthy": [{**HEALTHY, "first": FAIL, "now": PASS}, {**HEALTHY, "first": PASS, "now": None}],
    "mistakes": [
        {**MISTAKE, "first": {"told": "missed", "checks": []}, "now": {"told": "violated", "checks": ["finite"]}}
    ],
    "notes": ["A note."],
}


def test_the_page_counts_what_was_run():
    """A script that was not run again counts at first alone."""
    text = page([SET])

    assert "| healthy scripts | 2 | 1 |" in text
    assert "| with a failed check | 1 | 0 |" in text
    assert "| questions | 1 | 0 |" in text
    assert "| told: violated | 0 | 1 |" in text
    assert "| told: missed | 1 | 0 |" in text


def test_the_page_says_what_changed():
    """By the names of the checks."""
    text = page([SET])

    assert "fail; failed finite; asked rows_whole | pass |" in text
    assert "pass | not run |" in text
    assert "a rate of 0 | missed: nothing | violated: finite |" in text
    assert text.endswith("- A note.\n")
