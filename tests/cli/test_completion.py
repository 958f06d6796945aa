"""`tunecheck completion`: a script for a shell, and what bash completes with it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tunecheck.cli import main
from tunecheck.cli.commands import SHELLS


def test_without_its_library_the_command_says_what_to_install(capsys, monkeypatch):
    """The status is that of a wrong request."""
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert main(["completion", "bash"]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "needs the package shtab, which is not installed; run: pip install 'tunecheck[completion]'" in printed.err


@pytest.fixture
def script(capsys):
    """Return a function that prints the script of a shell."""
    pytest.importorskip("shtab")

    def printed(shell: str) -> str:
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_commands_options_and_runs(script, shell):
    """The shell itself reads the script, where it is installed."""
    text = script(shell)

    assert all(words in text for words in ("fail-on-regression", "baseline", "quick/smollm2-135m-qlora"))
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=text, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("wa", "watch"),
        ("baseline ac", "accept"),
        ("run --fail", "--fail-on-regression"),
        ("run qui", "quick quick/smollm2-135m-qlora"),
        ("show quick/", "quick/smollm2-135m-qlora"),
        ("page /et", "/etc"),
        ("list --tier mem", "memory"),
    ],
)
def test_bash_completes(script, line, completed):
    """Commands, options, tiers, runs and files."""
    asked = f"COMP_WORDS=(tunecheck {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()"
    program = f'{script("bash")}\n{asked}\n_shtab_tunecheck\necho "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash"], input=program, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == completed
