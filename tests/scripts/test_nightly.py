"""The nightly kit: what a night does in which order, what a push asks for, and what the workflow allows itself."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess

import pytest
from ruamel.yaml import YAML

from tunecheck.config import TIERS
from tunecheck.core.paths import project_folder

PROJECT = project_folder()
NIGHTLY = PROJECT / "scripts" / "nightly.sh"
PRE_PUSH = PROJECT / "kit" / "pre-push"
WORKFLOW = PROJECT / "kit" / "github" / "tunecheck-nightly.yml"
STUB = r"""#!/usr/bin/env bash
# In the place of Python: writes down what it is asked, answers as the test wants.
echo "${HF_HUB_OFFLINE:-online} $*" | head -n 1 >>"$CALLS"
case "$*" in
  *doctor*) exit "${DOCTOR:-0}" ;;
  *fetch*) exit "${FETCH:-0}" ;;
  -c*) echo "first second" ;;
  *pytest*) sleep "${SLEEP:-0}"; [[ $* == *"$BAD_TIER"* ]] && exit "${STATUS:-0}"; exit 0 ;;
esac
"""


@pytest.fixture
def night(tmp_path):
    """Call the script with a made-up Python; returns its process and the calls it made."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    wanted = b"".join((PROJECT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    (tmp_path / "venv" / ".tunecheck-installed").write_text(f"{hashlib.sha256(wanted).hexdigest()}  -\n")
    calls = tmp_path / "calls"
    calls.touch()

    def call(*arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {
            "VIRTUAL_ENV": str(tmp_path / "venv"),
            "TUNECHECK_REPORTS": str(tmp_path / "reports"),
            "CALLS": str(calls),
            "BAD_TIER": "-m none",
            **variables,
        }
        done = subprocess.run([NIGHTLY, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done, calls.read_text().splitlines()

    return call


def test_a_night_asks_the_doctor_fetches_and_goes_offline(night):
    """In this order, with every tier where none is named."""
    done, calls = night()

    assert done.returncode == 0, done.stderr
    assert calls[0] == "online -m tunecheck.cli doctor"
    assert calls[2:4] == ["online -m tunecheck.cli fetch first", "online -m tunecheck.cli fetch second"]
    tiers = [call for call in calls if "pytest" in call]
    assert [re.search(r"pytest tiers -m (.+) -q", call)[1].split(" and not ") for call in tiers] == [
        [tier, *list(TIERS)[:number]] for number, tier in enumerate(TIERS)
    ]  # what is in two tiers runs once
    assert all(call.startswith("1 ") for call in tiers)


def test_the_status_is_that_of_the_worst_tier(night):
    """And the tiers after it run all the same."""
    done, calls = night("--require-gpu", "quick", "memory", BAD_TIER="-m quick", STATUS="1")

    assert done.returncode == 1
    assert [call for call in calls if "-m memory and not quick" in call and "--require-gpu" in call]


def test_a_night_ends_beside_those_before_it(night):
    """Then old sessions make room, if that is asked for; neither changes the status."""
    done, calls = night("--offline", "--keep", "7", "--fail-on-regression", "quick")

    assert done.returncode == 0, done.stderr
    assert [call.partition("tunecheck.cli ")[2] for call in calls[-2:]] == ["history", "prune --keep 7"]
    assert [call for call in calls if "pytest" in call and "--fail-on-regression" in call]


def test_a_sick_machine_trains_nothing(night):
    """It could not be judged."""
    done, calls = night("quick", DOCTOR="1")

    assert done.returncode == 6
    assert "the doctor found an error: nothing was run" in done.stderr
    assert len(calls) == 1


def test_a_model_that_is_not_to_be_had_leaves_the_others(night):
    """Its tier names it."""
    done, calls = night("quick", FETCH="1")

    assert done.returncode == 0
    assert "first was not fetched; going on" in done.stderr
    assert [call for call in calls if "pytest" in call]


def test_fetching_and_running_can_be_apart(night):
    """So that a token is only where something is fetched."""
    _, fetching = night("--fetch-only", "quick")
    assert not [call for call in fetching if "pytest" in call]

    _, calls = night("--offline", "quick")
    assert not [call for call in calls[len(fetching) :] if "fetch" in call]


def test_a_night_without_end_is_stopped(night):
    """And says so; Ctrl-C is what it gets, as a person would send."""
    done, _ = night("--offline", "--deadline", "1s", "quick", SLEEP="30")

    assert done.returncode == 2
    assert "stopped after 1s" in done.stderr


def test_two_nights_do_not_meet(night, tmp_path):
    """The second gives way."""
    (tmp_path / "reports").mkdir()
    holder = os.open(tmp_path / "reports", os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        done, calls = night("quick")
    finally:
        os.close(holder)

    assert done.returncode == 6
    assert "another night still writes into" in done.stderr
    assert calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fast"], "unknown argument 'fast'"),
        (["--deadline"], "--deadline needs a time"),
        (["--deadline", "soon"], "--deadline needs a time"),
        (["--keep", "none"], "--keep needs a number of sessions"),
        (["--fetch-only", "--offline"], "leave nothing to do"),
    ],
)
def test_wrong_requests_are_named(night, arguments, message):
    """With the status of a wrong request, and nothing done."""
    done, calls = night(*arguments)

    assert (done.returncode, calls) == (4, [])
    assert message in done.stderr


def pushed(tmp_path, lines, status):
    """The hook's process, in a repository whose quick tier ends with this status."""
    script = tmp_path / "scripts" / "gpu-test.sh"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "ran $* ${{GIT_DIR:-clean}}"\nexit {status}\n')
    script.chmod(0o755)
    environment = {**os.environ, "TUNECHECK": str(tmp_path), "GIT_DIR": "/somewhere"}
    return subprocess.run([PRE_PUSH], input=lines, env=environment, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (7, 0), (1, 1), (6, 6)])
def test_a_push_waits_for_the_quick_tier(tmp_path, status, expected):
    """Judged bad and not judged stop it; a machine that is too small does not."""
    done = pushed(tmp_path, "refs/heads/a 1234 refs/heads/a 0000\n", status)

    assert done.returncode == expected
    assert done.stdout == "ran quick clean\n"
    assert ("not pushed" in done.stderr) == bool(expected)


@pytest.mark.parametrize(
    ("quick", "memory", "expected"), [(0, 5, 0), (5, 0, 0), (5, 5, 5), (0, 7, 7), (5, 7, 7), (5, 1, 1), (1, 5, 1)]
)
def test_a_tier_without_the_run_that_k_names_counts_only_if_all_are(tmp_path, quick, memory, expected):
    """Each tier is tried as long as none is bad, and the worst status is the script's."""
    script = tmp_path / "gpu-test.sh"
    script.write_bytes((PROJECT / "scripts" / "gpu-test.sh").read_bytes())
    (tmp_path / "common.sh").write_text(f"set_up() {{ :; }}\nPYTHON={tmp_path}/python\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"-m quick"*) exit {quick} ;; *) exit {memory} ;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", script, "quick", "memory", "-k", "tinyllama"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == expected
    assert ("== memory" in done.stdout) == (quick != 1)


def test_a_push_that_only_deletes_asks_for_nothing(tmp_path):
    """No code goes anywhere."""
    done = pushed(tmp_path, f"(delete) {'0' * 40} refs/heads/a 1234\n", 1)

    assert (done.returncode, done.stdout) == (0, "")


def test_a_hook_without_tunecheck_says_where_it_looked(tmp_path):
    """And how to push anyway."""
    environment = {**os.environ, "TUNECHECK": str(tmp_path)}
    line = "refs/heads/a 1234 refs/heads/a 0000\n"
    done = subprocess.run([PRE_PUSH], input=line, env=environment, capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert f"no tunecheck in {tmp_path}" in done.stderr


@pytest.fixture
def workflow():
    """The parsed workflow. (YAML 1.2: `on` is a word.)"""
    return YAML(typ="safe", pure=True).load(WORKFLOW.read_text(encoding="utf-8"))


def test_the_workflow_runs_by_night_and_by_hand_and_for_no_stranger(workflow):
    """No trigger lets a fork's code onto the runner, and nothing may be written."""
    assert set(workflow["on"]) == {"schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    assert "fork" in workflow["jobs"]["fetch"]["if"]
    assert workflow["jobs"]["tiers"]["needs"] == "fetch"
    assert workflow["concurrency"]["cancel-in-progress"] is False
    assert all(job["timeout-minutes"] > 0 and "self-hosted" in job["runs-on"] for job in workflow["jobs"].values())


def test_the_token_is_only_where_something_is_fetched():
    """One mention in the whole file besides the explanation."""
    text = WORKFLOW.read_text(encoding="utf-8")
    before, _, after = text.partition("  tiers:\n    name")

    assert text.count("secrets.") == 1
    assert "secrets.HF_TOKEN" in before
    assert 'HF_HUB_OFFLINE: "1"' in after


def test_the_workflow_takes_actions_by_commit_and_inputs_by_environment(workflow):
    """A tag can be moved, and an expression in a script is code of whoever wrote the input."""
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]

    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert not [step for step in steps if "${{" in step.get("run", "")]
    assert all(step["with"]["persist-credentials"] is False for step in steps if "checkout" in step.get("uses", ""))


def test_the_reports_are_kept_whatever_happened(workflow):
    """A failed night is the one to look at."""
    last = workflow["jobs"]["tiers"]["steps"][-1]

    assert last["if"] == "${{ always() }}"
    assert "upload-artifact" in last["uses"]


def test_the_workflow_calls_the_script_with_options_that_it_has(workflow):
    """One way to do it, with or without a CI service."""
    calls = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    known = set(re.findall(r"^  (--[\w-]+)", NIGHTLY.read_text(encoding="utf-8"), flags=re.MULTILINE))

    assert len(calls) == 2
    assert {option for call in calls for option in re.findall(r"(--[\w-]+)", call)} <= known


def test_the_pre_commit_hook_calls_a_script_that_exists():
    """At push, where it is short enough."""
    held = YAML(typ="safe", pure=True).load((PROJECT / "kit" / "pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = held["repos"][0]["hooks"]

    assert hook["stages"] == ["pre-push"]
    assert (PROJECT / hook["entry"].split()[0].removeprefix("tunecheck/")).is_file()
