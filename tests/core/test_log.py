"""The logger `tunecheck`: where its records go, and how much of them a command shows."""

import logging

import pytest

from tunecheck.cli import main
from tunecheck.core.log import log, on_terminal


def test_the_innermost_terminal_has_the_records_alone(caplog):
    """A session of pytest within a command; afterwards all is as before."""
    outer, inner = [], []
    with on_terminal(outer.append):
        log.info("one")
        with on_terminal(inner.append):
            log.info("two")
        log.info("three")

    assert (outer, inner) == (["one", "three"], ["two"])
    assert caplog.messages == []
    assert (log.filters, log.level) == ([], logging.NOTSET)


def test_errors_go_to_standard_error_with_a_name_and_without_secrets(capsys):
    """And without what would colour or clear a terminal."""
    lines = []
    with on_terminal(lines.append):
        log.error("no access: password=hunter22xyz \x1b[2J%s")

    assert lines == []
    assert capsys.readouterr().err == "tunecheck: no access: password=REDACTED %s\n"


def test_a_program_with_its_own_logging_gets_the_records(caplog):
    """tunecheck as a library adds no handler."""
    with caplog.at_level("INFO", "tunecheck"):
        log.info("fetching")

    assert caplog.messages == ["fetching"]


@pytest.mark.parametrize(
    ("options", "shown"), [([], ["note", "progress"]), (["-q"], ["note"]), (["-v"], ["note", "progress", "detail"])]
)
def test_a_command_shows_as_much_as_is_asked(monkeypatch, capsys, options, shown):
    """On standard error: the result alone is on standard output."""

    def listed(asked):
        log.warning("note")
        log.info("progress")
        log.debug("detail")
        print("result")
        return 0

    monkeypatch.setattr("tunecheck.cli.runs._list", listed)

    assert main(["list", *options]) == 0
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("result\n", shown)
