"""Fixtures of the suite's own tests."""

from __future__ import annotations

import gc
import itertools
import os
import signal

import pytest

from tunecheck.core.log import on_terminal

# Nothing compiles, but bitsandbytes decorates functions at import: see tunecheck.runner.preload.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has Ctrl-C ignored, and so would every session they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


MOST_SETS = 4
"""Parameter sets of a test that trains which `--some` leaves, evenly spread."""
TRAIN = {"detection", "listen", "memory", "probes", "rehearsal", "runner", "session", "strategies", "tiers", "training"}
"""Folders whose tests train, most of them for each set."""


def pytest_addoption(parser):
    """Nobody waits half an hour before a commit; each night everything runs."""
    parser.addoption("--some", action="store_true", help=f"no slow tests, and {MOST_SETS} sets of a test that trains")


def pytest_configure(config):
    """Tests that take 10 s and more, and hold nothing that a change of another place is likely to break."""
    config.addinivalue_line("markers", "slow: is left out by --some")


def pytest_collection_modifyitems(config, items):
    """Begin with the longest tests: a worker that has no more takes over half of what another one has not begun."""
    items.sort(key=lambda item: not item.path.match("tests/tiers/*"))
    if config.getoption("--some"):
        left = {id(item) for item in some_of(items)}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
        items[:] = [item for item in items if id(item) in left]


def some_of(items):
    """Yield the tests that `--some` leaves."""
    for (path, _), group in itertools.groupby(items, key=lambda item: (item.path, item.originalname)):
        sets = [item for item in group if item.get_closest_marker("slow") is None]
        most = MOST_SETS if path.parent.name in TRAIN else len(sets)
        yield from (sets[at * len(sets) // most] for at in range(most)) if len(sets) > most else sets


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without collecting garbage, and never walk again what is there then: torch, libraries, tests.

    Importing them takes 9 s of processor time instead of 17.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_terminal_colours(monkeypatch):
    """Output is compared as text."""
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def _not_on_ci(monkeypatch):
    """Sessions that a test runs belong into no step summary of CI's own job; pytest prints more where $CI is set."""
    for variable in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def said():
    """The lines of the log."""
    lines: list[str] = []
    with on_terminal(lines.append):
        yield lines


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """Names of files that do not exist. A folder made for each test, by mktemp, took 17 ms of every one of 4000."""
    folder = tmp_path_factory.mktemp("stores")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _no_history_of_other_tests(monkeypatch, stores):
    """Each test begins with an empty store, apart from the sessions' folders that it counts."""
    store = next(stores)
    monkeypatch.setenv("TUNECHECK_HISTORY", f"{store}.sqlite")
    monkeypatch.setenv("TUNECHECK_BASELINES", f"{store}-baselines")


@pytest.fixture
def stated_needs(monkeypatch):
    """The need of a run is what its YAML states: what else is known about it is not the gate's concern."""
    from tunecheck.memory import Need
    from tunecheck.session import admission

    def need_of(run, *, gpu_name, capability=None):
        return None if run.vram is None else Need(bytes=run.vram, known="stated by the run")

    monkeypatch.setattr(admission, "need_of", need_of)
