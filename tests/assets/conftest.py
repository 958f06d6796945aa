"""A cache of its own for every test of where models and rows come from, and a child process that builds at once."""

from __future__ import annotations

import pytest
from tiny_models import Builder

from tunecheck.assets import build


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A cache of its own for every test."""
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TUNECHECK_MODELS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def builder(monkeypatch):
    """The child process, replaced by a function that writes a folder at once."""
    fake = Builder()
    monkeypatch.setattr(build, "in_child", fake)
    return fake
