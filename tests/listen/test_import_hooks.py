"""Where a training's Python cannot run tunecheck, it is told so, and trains as ever."""

from __future__ import annotations

import json

import pytest

from tunecheck.listen import imports
from tunecheck.listen.problems import PROBLEMS


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_newer_pythons_are_listened_to(version):
    """From the lowest one that the package asks for."""
    assert imports.unusable(version) == ""


def test_an_older_python_is_told():
    """With its version, and the one that is needed."""
    assert "Python 3.10, but watch needs 3.11 or newer" in imports.unusable((3, 10))


def test_an_environment_without_tunecheck_is_told(monkeypatch):
    """By its interpreter, which is not the one that watch was called in."""
    monkeypatch.setattr(imports.importlib.util, "find_spec", lambda name: None)

    assert "is not installed for" in imports.unusable((3, 11))


def test_what_went_wrong_reaches_the_verdicts_folder(tmp_path, monkeypatch, capsys):
    """And standard error; without a folder that alone."""
    monkeypatch.setenv("TUNECHECK_WATCH", json.dumps({"folder": str(tmp_path)}))
    imports.say("a reason")
    monkeypatch.delenv("TUNECHECK_WATCH")
    imports.say("another")

    assert (tmp_path / PROBLEMS).read_text() == "a reason\n"
    assert capsys.readouterr().err == "tunecheck: a reason\ntunecheck: another\n"
