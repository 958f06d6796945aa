"""Fixtures of the suite's own tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_terminal_colours(monkeypatch):
    """Output is compared as text."""
    monkeypatch.setenv("NO_COLOR", "1")
