"""What users may rely on: the exported names and every command's options. A change here changes the interface."""

from __future__ import annotations

import argparse
import inspect
import typing
from pathlib import Path

import tunecheck
from tunecheck.cli.commands import parser

OPTIONS = Path(__file__).with_name("options.txt")


def test_the_exported_names_are_these():
    """Each can be imported."""
    assert [*tunecheck.__all__] == sorted(tunecheck.__all__)
    assert set(tunecheck.__all__) == {
        *(
            "Check",
            "Finding",
            "MissingEvidence",
            "NotApplicable",
            "Probe",
            "Record",
            "Run",
            "Status",
            "SuiteError",
            "Trace",
            "Verdict",
            "Watch",
        ),
        *("judge", "load_run", "read_trace", "train", "watch"),
    }
    assert all(getattr(tunecheck, name) is not None for name in tunecheck.__all__)


def test_the_typed_face_of_watch_is_its_contexts():
    """Each overload takes what the class behind it takes, with the same defaults."""
    loop = typing.get_overloads(tunecheck.watch)[1]
    face, context = (dict(inspect.signature(one).parameters) for one in (loop, tunecheck.Watch))
    assert [(name, one.default, one.kind) for name, one in face.items()] == [
        (name, one.default, one.kind) for name, one in context.items()
    ]


def lines(command: argparse.ArgumentParser, name: str):
    """Yield a line for each option of this command and those below it."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, held in action.choices.items():
                yield from lines(held, f"{name} {below}")
        elif action.help != argparse.SUPPRESS:
            yield f"{name}: {' '.join(action.option_strings) or action.metavar or action.dest}"


def test_the_command_line_is_frozen():
    """tests/options.txt lists it; whoever changes an option changes that file, and the CHANGELOG."""
    assert "\n".join(lines(parser(), "tunecheck")) + "\n" == OPTIONS.read_text(encoding="utf-8")
