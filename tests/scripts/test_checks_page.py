"""docs/checks.md is what scripts/checks-page.py writes."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys

import pytest

from tunecheck.checks import CHECKS
from tunecheck.core.paths import checkout_folder

PAGE = checkout_folder() / "docs" / "checks.md"


@pytest.fixture(scope="module")
def script():
    """Load the script as a module."""
    spec = importlib.util.spec_from_file_location("checks_page", checkout_folder() / "scripts" / "checks-page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh(script, tmp_path):
    """Nobody edits it by hand, and nobody forgets it."""
    script.main([str(tmp_path / "checks.md")])

    assert PAGE.read_text() == (tmp_path / "checks.md").read_text(), "run scripts/checks-page.py"


def test_every_check_has_a_section_with_all_its_limits():
    """In the order of the table, which is that of a training."""
    sections = {part.partition("\n")[0]: part for part in PAGE.read_text().split("\n## ")[1:]}

    assert list(sections) == list(CHECKS)
    for name, check in CHECKS.items():
        assert [line for line in sections[name].splitlines() if line.startswith("- **A failure usually means**")]
        assert all(f"`{field.name}: " in sections[name] for field in dataclasses.fields(check))


def test_every_feature_of_a_run_has_its_words(script):
    """A feature that no check asks for has none."""
    assert set(script.FEATURES) == {feature for check in CHECKS.values() for feature in check.applies_to}
