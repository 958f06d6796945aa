"""docs/checks/ is what scripts/checks-page.py writes: an index and a page for each check."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys

import pytest

from tests.checks import test_checks, test_checks_metered, test_checks_parallel, test_checks_watched
from tunecheck.checks import CHECKS, SUBJECTS
from tunecheck.core.paths import checkout_folder
from tunecheck.core.premises import Premise

FOLDER = checkout_folder() / "docs" / "checks"
PAGES = {path.stem: path.read_text() for path in FOLDER.glob("*.md")}


@pytest.fixture(scope="module")
def script():
    """Load the script as a module."""
    spec = importlib.util.spec_from_file_location("checks_page", checkout_folder() / "scripts" / "checks-page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_fresh(script, tmp_path):
    """Nobody edits them by hand, nobody forgets one, and the page of a removed check goes with it."""
    (tmp_path / "removed_check.md").write_text("")
    script.main([str(tmp_path)])

    written = {path.stem: path.read_text() for path in tmp_path.glob("*.md")}
    assert sorted(written) == sorted(PAGES), "run scripts/checks-page.py"
    assert written == PAGES, "run scripts/checks-page.py"


def test_every_check_has_its_page_and_its_line():
    """With its causes, its remedy and all its limits; the index has the order of the table by subject."""
    assert sorted(PAGES) == sorted({"index", *CHECKS})
    listed = [line.split("`")[1] for line in PAGES["index"].splitlines() if line.startswith("| [`")]
    subjects = list(dict.fromkeys(SUBJECTS.values()))
    assert listed == sorted(CHECKS, key=lambda name: subjects.index(SUBJECTS[name]))
    for name, check in CHECKS.items():
        text = " ".join(PAGES[name].split())
        assert " ".join(check.meaning.split()) in text
        assert " ".join(check.remedy.split()) in text
        assert all(f"`{field.name}: " in text for field in dataclasses.fields(check))


def test_every_check_with_a_table_of_faults_shows_one(script):
    """The first fault of its table in tests/checks that fails, and what the check prints for it."""
    tables = (test_checks, test_checks_metered, test_checks_parallel, test_checks_watched)
    shown = {name for name, text in PAGES.items() if "\n## Example\n" in text}
    assert shown == {name for table in tables for name in table.FAULTS}


def test_every_feature_premise_and_subject_has_its_words(script):
    """A feature that no check asks for has none."""
    assert set(script.FEATURES) == {feature for check in CHECKS.values() for feature in check.features()}
    assert set(script.WHY) == set(SUBJECTS.values())
    assert all(script.explained(Premise)[premise.name] for premise in Premise)
