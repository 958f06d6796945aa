"""The tutorial's commands, run from an empty folder, print what its page says. CPU, fp32."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tunecheck.core.paths import checkout_folder

PAGE = checkout_folder() / "docs" / "tutorial.md"
BLOCK = re.compile(r"```(python|console|toml)\n(.*?)```", re.DOTALL)
STATUS = {"FAIL": 1, "PASS": 0}


def words(line: str) -> str:
    """The line with single spaces, as a terminal of any width has it."""
    return " ".join(line.split())


def held(page: str, printed: str) -> str:
    """Return the first line of the page's output that was not printed, in its order; "" where all were."""
    rest = words(printed)
    for line in filter(None, (words(part) for text in page.splitlines() for part in text.split("..."))):
        _, found, rest = rest.partition(line)
        if not found:
            return line
    return ""


def commands(block: str) -> list[tuple[str, str]]:
    """Return each command of a console block with the output that follows it."""
    return [(command, output) for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]


@pytest.fixture
def environment(tmp_path):
    """The commands' environment: tunecheck and python are those of the tests."""
    own = tmp_path / "bin"
    own.mkdir()
    for name, call in (("tunecheck", "-m tunecheck.cli "), ("python", "")):
        (own / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call}"$@"\n')
        (own / name).chmod(0o755)
    return {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100", "GITHUB_ACTIONS": ""}


@pytest.mark.slow
def test_each_command_prints_what_the_page_says(tmp_path, environment):
    """With the exit status of its verdict."""
    folder = tmp_path / "empty"
    folder.mkdir()
    files = {"python": "train.py", "toml": "tunecheck.toml"}
    ran = 0
    for kind, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind in files:
            (folder / files[kind]).write_text(block, encoding="utf-8")
            continue
        for command, output in commands(block):
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            ran += 1
            # of a training that goes on when its window ends, the findings come before its last words, on stderr
            assert held(output, done.stdout + done.stderr + done.stdout) == "", (
                f"{command}\n{done.stdout}\n{done.stderr}"
            )
            verdict = re.search(r"verdict: (\w+)", output)
            assert done.returncode == (STATUS[verdict[1]] if verdict else 0)
    assert ran == 8


def test_output_that_differs_is_seen():
    """A line that is missing, or in another place."""
    assert held("...\nb ... d\n", "a\n b c\nd") == ""
    assert held("b\na\n", "a\nb") == "a"
    assert commands("$ one\n1\n$ two\n") == [("one", "1\n"), ("two", "")]
    assert Path(PAGE).is_file()
