"""What a user answers beforehand: reasons on the command line and in files. No training, no precision."""

from __future__ import annotations

import re

import pytest

from tunecheck.config.answers import read_ignored, settings_for
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import checkout_folder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rows_whol=titles", "did you mean 'rows_whole'"),
        ("lables=weights", r"did you mean 'labels_as_configured'\?"),
        ("nothing_like_it=x", "`tunecheck explain` lists all"),
        ("rows_whole", "lacks a reason"),
        ("rows_whole=  ", "lacks a reason"),
        ("=x", "no check is called"),
    ],
)
def test_an_answer_names_a_check_and_a_reason(words, told):
    """Else it is a usage error that says what is wrong."""
    assert read_ignored(["rows_whole=titles = short"]) == {"rows_whole": "titles = short"}
    with pytest.raises(ConfigError, match=told):
        read_ignored([words])


def test_the_docs_example_is_read(tmp_path):
    """The settings that docs/watch.md shows, word for word."""
    (example,) = re.findall(r"```toml\n(.*?)```", (checkout_folder() / "docs" / "watch.md").read_text(), re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(example)
    shown = settings_for("a_weighted_run.py", tmp_path)
    assert (shown.steps, shown.strict, shown.expect) == (10, True, {"accumulation": 4})
    assert shown.ignore.keys() == {"rows_whole", "rows_come_once"}


UNREADABLE = {"no toml": "[tool", "no table": "[tool]\ntunecheck = 3", "too deep": "a = " + "[" * 9999}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_project_file_that_cannot_be_read_is_not_passed_over(tmp_path, text):
    """It may hold answers that would be lost without a word."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        settings_for("train.py", tmp_path)


def test_the_nearest_file_counts_and_a_scripts_section_comes_after(tmp_path):
    """pyproject.toml above the folder is found; tunecheck.toml goes before it; globs match the script."""
    below = tmp_path / "experiments"
    below.mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tunecheck]\nsteps = 5\nstrict = true\n[tool.tunecheck.ignore]\nrows_whole = "titles only"\n'
        '[tool.tunecheck.scripts."*toy*.py"]\nstrict = false\nexpect = {accumulation = 4}\n'
        'ignore = {rows_come_once = "by weight"}\n'
    )
    common = settings_for("train.py", below)
    assert (common.steps, common.strict, common.expect) == (5, True, {})
    assert common.ignore == {"rows_whole": "titles only"}
    toy = settings_for("src/a_toy_run.py", below)
    assert (toy.steps, toy.strict, toy.expect) == (5, False, {"accumulation": 4})
    assert toy.ignore == {"rows_whole": "titles only", "rows_come_once": "by weight"}
    (below / "pyproject.toml").write_text('[project]\nname = "other"\n')  # says nothing of tunecheck
    assert settings_for("train.py", below).steps == 5
    (below / "pyproject.toml").write_text("tool = 1\n")  # nor does this
    assert settings_for("train.py", below).steps == 5
    (below / "tunecheck.toml").write_text("steps = 7\n")
    assert settings_for("train.py", below).steps == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stepps = 3", r"did you mean 'steps'\?\); known keys: expect, ignore, scripts, steps, strict"),
        ("steps = true", "steps: should be a valid integer"),
        ("strict = 1", "strict: should be a valid boolean"),
        ('ignore = "x"', "ignore: should be a section"),
        ("ignore = {rows_whole = 3}", "ignore.rows_whole: should be a valid string"),
        ('ignore = {rows_whole = " "}', "ignore.rows_whole: lacks a reason"),
        ('[scripts."*.py".ignore]\nrows_whol = "x"', r"scripts.\*.py.ignore.rows_whol: no check is called"),
        ("scripts = 3", "scripts: should be a section"),
        ('[scripts."*.py"]\nsteps = "5"', "steps: should be a valid integer"),
        ("steps = ", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_a_usage_error(tmp_path, text, told):
    """With the file, the key and the rule."""
    (tmp_path / "tunecheck.toml").write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        settings_for("train.py", tmp_path)
    assert "tunecheck.toml" in str(caught.value)


def test_a_file_that_is_no_toml_is_named_with_its_place_and_the_way_out(tmp_path):
    """An unquoted word, as it is often written."""
    (tmp_path / "tunecheck.toml").write_text("strict = yess\n")

    with pytest.raises(
        ConfigError, match=r"tunecheck.toml: not valid TOML: .*line 1, column 10.*quote texts, but not true and false"
    ):
        settings_for("train.py", tmp_path)
