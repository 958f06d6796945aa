"""Libraries that cannot be imported: said by the training process, in words, and never on the user's terminal."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest

from tunecheck.runner import process, warm


class Broken:
    """A finder by which the libraries that train raise what is no ImportError: of another version, half installed."""

    def find_spec(self, name, path=None, target=None):
        """As importlib's."""
        if name == "tunecheck.runner.preload":
            raise RuntimeError("made up\nat length")


@pytest.fixture
def broken(monkeypatch):
    """No library has been imported, and none can be."""
    monkeypatch.delitem(sys.modules, "tunecheck.runner.preload", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])


def test_the_fork_server_lives_on(broken):
    """It would print the traceback and end, and with it every training."""
    importlib.reload(warm)


def test_the_run_says_so(broken):
    """As an error of this machine, with what to do; the traceback is in the log."""
    end = process.run_here(SimpleNamespace(device="cpu", card=None), print)

    assert (end.outcome, end.cause) == ("failed", "libraries")
    assert end.detail.startswith(
        "the libraries that train cannot be imported: RuntimeError: made up at length. What to"
    )
