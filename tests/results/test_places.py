"""Which line of a script a finding points to, and what of it is quoted."""

from __future__ import annotations

import re

import pytest
from traces import adding, healthy

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.results.domain import ABOUT, places_of

SCRIPT = e.UserCode(
    role="script",
    name="<module>",
    file="/x/train.py",
    line=13,
    first_line=10,
    source=(
        "labels = ids.clone()",
        "labels[:, :-1] = ids[:, 1:]",
        "# labels stay",
        "loss = model(ids)",
        "optimizer.zero_grad()",
    ),
)
COLLATOR = e.UserCode(
    role="data_collator",
    name="Collator",
    file="/x/rows.py",
    line=4,
    first_line=3,
    source=(
        "@dataclass",
        "class Collator:",
        "    def __call__(self, rows):",
        "        batch['labels'] = batch['input_ids']",
    ),
)


BRANCHES = """\
def unused(ids):
    labels = ids
def used(ids):
    if shifted:
        labels = ids[1:]
    labels = ids
if shifted: labels = ids[1:]
for ids in rows:
    if copied:
        labels = ids.clone()
    else:
        loss = model(used(ids))
        labels = 0
"""


@pytest.mark.parametrize(
    ("seen", "left", "line"),
    [
        (12, "", 6),  # neither what no line calls, nor a condition that may not have held
        (12, "    labels = ids\n", 13),  # a line of the branch that ran
        (10, "    labels = ids\n", 10),
        (2, "", 2),
    ],
)
def test_a_line_that_may_never_have_run_is_not_quoted(seen, left, line):
    """Of a condition that the line seen to run is not under, or of a function that no other line names."""
    source = tuple(BRANCHES.replace(left, "\n", 2 * bool(left)).splitlines())
    code = e.UserCode(role="script", name="<module>", file="/x/train.py", line=seen, first_line=1, source=source)
    assert [place.line for place in places_of(adding(healthy(), code), "labels_as_configured")] == [line]


@pytest.mark.parametrize(
    ("written", "check", "line", "quoted"),
    [
        (
            [SCRIPT],
            "labels_as_configured",
            11,
            "labels[:, :-1] = ids[:, 1:]",
        ),  # the last one before the model is called
        ([SCRIPT], "gradients_cleared", 14, "optimizer.zero_grad()"),  # behind it, where there is none before
        ([SCRIPT], "randomness_varies", 13, "loss = model(ids)"),  # where the script trains, without such a line
        ([SCRIPT, COLLATOR], "labels_as_configured", 6, "batch['labels'] = batch['input_ids']"),
        ([SCRIPT, COLLATOR], "answers_end", 4, "class Collator:"),
    ],
)
def test_a_finding_points_to_the_line_it_is_about(written, check, line, quoted):
    """In the part of the script that it is about, else where the script trains."""
    (place, *_) = places_of(adding(healthy(), *written), check)
    assert (place.line, place.quoted) == (line, quoted)
    assert str(place).endswith(f":{line}: {quoted}")


def test_code_without_a_source_points_to_its_line():
    """Nothing is quoted."""
    bare = e.UserCode(role="script", name="main", file="/x/train.py", line=7)
    assert [str(place) for place in places_of(adding(healthy(), bare), "loss_oracle")] == ["script at /x/train.py:7"]


def test_the_table_names_checks_and_expressions():
    """Each expression compiles."""
    assert ABOUT.keys() <= CHECKS.keys()
    assert all(re.compile(expression) for _, expression in ABOUT.values())
