"""Every run on disk goes through every command that takes a run, by its name and by its path."""

from __future__ import annotations

import json
from itertools import count

import pytest

from tunecheck.cli import main
from tunecheck.config import RunFile, find_run, load_run, run_files, run_sources
from tunecheck.config.schema import Run
from tunecheck.hardware import probe
from tunecheck.memory import prediction

SOURCES = run_sources()
FILES = run_files()
HARDWARE = probe()

REST = {"remainder_bytes": 0, "between_steps": {}, "at_peak": {}, "peak_operation": "aten.mm"}


@pytest.fixture(autouse=True)
def _simulated(monkeypatch, tmp_path):
    """Answer simulations at once, after reading the run as the simulating process reads it."""
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path / "reports"))
    sizes = count(10**9, 10**6)

    def answer(run: Run) -> dict[str, object]:
        assert Run.model_validate_json(run.model_dump_json()).fingerprint == run.fingerprint
        figures = dict.fromkeys(("loaded_bytes", "first_step_bytes", "steady_bytes", "evaluation_bytes"), next(sizes))
        return {**figures, "remainder_bytes": 0, "between_steps": {}, "at_peak": {}, "peak_operation": "aten.mm"}

    monkeypatch.setattr(prediction, "_simulate", answer)
    monkeypatch.setattr("tunecheck.cli.runs.probe", lambda: HARDWARE)  # it starts git three times


def ways_to_name(source: RunFile) -> list[str]:
    """Return the words by which this run can be named: tier and id, the id alone where unique, and the file."""
    alone = [source.id] if sum(source.id == other.id for other in SOURCES) == 1 else []
    return [source.name, *alone, *([] if source.entry else [str(source.path)])]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize(
    "command",
    [("show",), ("show", "--json"), ("estimate",), ("estimate", "--fallback"), ("history",), ("baseline", "show")],
    ids=" ".join,
)
def test_every_command_takes_every_run_however_it_is_named(capsys, source, command):
    """Status 0, the same output for name, id and path, and no error or traceback in it."""
    printed = []
    for word in ways_to_name(source):
        options = [part for part in command if part.startswith("--")]
        assert main([*(part for part in command if part not in options), word, *options]) == 0
        printed.append(capsys.readouterr().out)

    assert len(set(printed)) == 1
    assert printed[0].strip()
    if command == ("show", "--json"):
        assert json.loads(printed[0])["fingerprint"] == load_run(source).fingerprint
    elif command != ("show",):
        assert source.name in printed[0]


@pytest.mark.parametrize("options", [(), ("--needs",), ("--json",)], ids=" ".join)
def test_list_has_every_run(capsys, options):
    """Grouped by tier, with what each needs, and as JSON."""
    assert main(["list", *options]) == 0
    printed = capsys.readouterr().out

    assert all((source.name if options else source.id) in printed for source in SOURCES)


@pytest.mark.parametrize("path", [path for path in FILES if RunFile(path) not in SOURCES], ids=lambda path: path.stem)
@pytest.mark.parametrize("command", [["show"], ["estimate"], ["history"], ["baseline", "show"]], ids=" ".join)
def test_a_comparison_is_no_single_run(capsys, path, command):
    """The message names the runs to choose from, whether the file is given by name, id or path."""
    for word in (find_run(str(path)).name, path.stem, str(path)):
        status = main([*command, word])
        out, error = capsys.readouterr()
        if command == ["baseline", "show"] and word.count("/") == 1:  # a past run needs no configuration any more
            assert (status, "no baseline" in out) == (0, True)
        else:
            assert (status, "compares several runs, name one of them: " in error) == (4, True)
