"""pytest as a user calls it, on the tiny model: outcomes, exit statuses, files, interruption."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
import xml.etree.ElementTree as ET

import psutil
import pytest
import tiny
from tier_sessions import COMMAND, environment, run_on_shared_server, run_pytest, session_folder

from tunecheck.core.paths import project_folder
from tunecheck.core.trace import read
from tunecheck.hardware import probe

TINY_OPTIONS = [argument for setting in tiny.SETTINGS for argument in ("--set", setting)]


ONE_RUN = ["--run", "quick/smollm2-135m-qlora"]
"""Options that leave out whatever runs of one's own the quick tier has."""


def test_a_bare_call_is_the_quick_tier_and_says_so(tmp_path):
    """One run, one verdict, four kinds of files; no process leaves a semaphore behind, nor does the one that merges.

    What depends on learning, which random weights cannot show, is a skip with its reason.
    """
    done = run_pytest(tmp_path, *TINY_OPTIONS, "--set", "probes.merge=true", "-rs")

    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, "a leak is told there by multiprocessing's resource tracker"
    assert "without -m, this runs the quick tier" in done.stdout
    assert "verdict: PASS" in done.stdout
    assert "unjudged: the weights are random, so learning is not judged" in done.stdout
    folder = session_folder(tmp_path)
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["verdict"] == "pass"
    assert len(verdict["runs"][0]["findings"]) >= 18
    assert ET.parse(folder / "junit.xml").getroot().get("failures") == "0"
    assert "PASS" in (folder / "summary.md").read_text().upper()
    assert len(read(folder / "quick-smollm2-135m-qlora.jsonl").steps) == 5


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_failed_check_is_shown_once_as_the_suites_own_block(ci, tmp_path):
    """In the terminal and in pytest's own JUnit file: measured, limit and what to do, no repr and no traceback.

    Where $CI is set, pytest's short summary has whole messages instead of their first lines.
    """
    junit = tmp_path / "pytest.xml"
    impossible = [*ONE_RUN, "--set", "checks.adapters_applied.min_difference=1e9", "-k", "adapters_applied"]
    done = run_on_shared_server(tmp_path / "reports", *TINY_OPTIONS, *impossible, "--junitxml", junit, CI=ci)
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]

    assert done.returncode == 1
    for label in ("measured ", "detail ", "usually means ", "what to do "):
        assert done.stdout.count(f"  {label}") == 1
    for noise in ("assert False", "+  where", "Finding(", "Traceback"):
        assert noise not in done.stdout
    assert "verdict: FAIL" in done.stdout
    assert failed.startswith("FAILED tiers/test_quick.py::test_what_fine_tuning_rests_on_holds[smollm2-135m-qlora-")
    assert len(failed) < 160
    (failure,) = ET.parse(junit).getroot().iter("failure")
    assert failure.text.splitlines()[0] == "adapters_applied"
    assert failure.text.splitlines()[1].startswith("  rule           ")
    (measured,) = [line for line in failure.text.splitlines() if line.startswith("  measured       ")]
    assert measured.endswith(", limit above 1e+09")
    assert not list(ET.parse(junit).getroot().iter("property"))


def test_without_pytests_own_section_the_report_has_the_failed_checks(tmp_path):
    """--tb=no leaves that section out."""
    impossible = [*ONE_RUN, "--set", "checks.adapters_applied.min_difference=1e9", "-k", "adapters_applied"]
    done = run_on_shared_server(tmp_path, *TINY_OPTIONS, *impossible, "--tb=no")

    assert done.returncode == 1
    assert "FAILED quick/smollm2-135m-qlora: adapters_applied" in done.stdout
    assert done.stdout.count("  usually means  ") == 1


def test_a_crash_in_the_trainer_is_an_error_with_its_file_and_line(tmp_path):
    """No check's remedy is shown for it; the steps before the crash stay judged."""
    plugin = [*ONE_RUN, "-p", "changed_training"]
    done = run_on_shared_server(tmp_path, *TINY_OPTIONS, *plugin, CHANGED_TRAINING="crash")

    assert done.returncode == 6
    assert done.stdout.count("failed: RuntimeError: expected scalar type Float (tests/changed_training.py:") == 2
    assert "use bf16" not in done.stdout
    assert "what to do" not in done.stdout
    assert "1 run with an error" in done.stdout


def test_a_key_that_the_data_rules_out_is_a_wrong_configuration(tmp_path):
    """Found by the tokenizer in the training process, and told like any other: exit status 4."""
    done = run_on_shared_server(
        tmp_path, *TINY_OPTIONS, "--set", "data.max_length=16", *ONE_RUN, "-k", "trainable_set or finite"
    )

    assert done.returncode == 4
    assert "1 skipped" in done.stdout, "one problem is one message"
    assert "1 error " in done.stdout
    assert "misconfigured: --set data.max_length=16: data.max_length: should be at least " in done.stdout
    assert "no weights or data" not in done.stdout
    assert "verdict: INCONCLUSIVE" in done.stdout


def test_a_run_that_cannot_be_trained_is_an_error_not_a_failure(tmp_path):
    """Could not be judged: exit status 6."""
    settings = [*TINY_OPTIONS, "--set", "allow_random_weights=false"]
    done = run_pytest(tmp_path, *settings, *ONE_RUN, "-k", "trainable_set or finite")

    assert done.returncode == 6
    assert "1 skipped" in done.stdout, "one problem is one message"
    assert "1 error " in done.stdout
    assert "random weights are not allowed by this run" in done.stdout
    assert "verdict: INCONCLUSIVE" in done.stdout


def test_a_bad_configuration_is_one_message(tmp_path):
    """All problems, exit status 4, no traceback, no folder."""
    done = run_pytest(tmp_path, "--set", "training.max_steps=-1", "--set", "lora.rank=8")

    assert done.returncode == 4
    assert "training.max_steps" in done.stderr
    assert "lora.rank" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_marker_that_does_not_exist_leaves_no_folder(tmp_path):
    """pytest tells of it when everything is collected."""
    done = run_pytest(tmp_path, "-m", "quik")

    assert done.returncode == 4
    assert "Unknown marker(s) in '-m' expression: quik" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chosen", ["qlora", "loss_oracle", "not loss_oracle"])
def test_a_tier_that_cannot_be_read_is_never_left_out_beside_one_that_can(tmp_path, chosen):
    """The quick tier alone would pass; -k must not hide the other, whether it names a run, a check or none."""
    done = run_pytest(
        tmp_path, "--collect-only", "-q", "-m", "quick or convergence", "--set", "training.max_steps=5", "-k", chosen
    )

    assert done.returncode == 4, done.stdout
    assert "the configuration cannot be used" in done.stderr
    assert "probes.resume_from" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_cap_that_is_no_size_is_one_message(tmp_path):
    """As any other wrong request, and with the units."""
    done = run_pytest(tmp_path, "-m", "memory", "--vram-cap", "8G")

    assert done.returncode == 4
    assert "argument --vram-cap: '8G' should be a number with a unit" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(bool(probe().visible_gpus), reason="this machine has a GPU")
def test_without_a_gpu_the_memory_tier_is_skipped_and_never_green(tmp_path):
    """Exit status 7; with --require-gpu 1."""
    skipped = run_pytest(tmp_path / "skip", "-m", "memory", "-rs")
    required = run_pytest(tmp_path / "require", "-m", "memory", "--require-gpu")

    assert skipped.returncode == 7
    assert "needs a GPU with 3.0 GiB of free memory" in skipped.stdout
    assert "verdict: INCONCLUSIVE" in skipped.stdout
    assert required.returncode == 1
    assert "verdict: FAIL" in required.stdout


@pytest.mark.skipif(bool(probe().visible_gpus), reason="this machine has a GPU")
def test_require_gpu_also_fails_what_could_run_on_the_cpu(tmp_path):
    """A nightly run on a GPU runner whose GPU is gone must not be green."""
    done = run_pytest(tmp_path, "-m", "quick", "--require-gpu", *ONE_RUN, "-k", "finite or trainable")

    assert done.returncode == 1
    assert "2 skipped" in done.stdout, "one problem is one message"
    assert "1 error " in done.stdout
    assert "During handling" not in done.stdout
    assert "needs a GPU (--require-gpu), but this machine shows none" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.slow
def test_an_interrupted_session_leaves_a_valid_report_and_no_child(tmp_path, number):
    """Within five seconds, however it is told to stop."""
    arguments = [*COMMAND, *ONE_RUN, *TINY_OPTIONS, "--set", "training.max_steps=5000"]
    with subprocess.Popen(
        arguments, cwd=project_folder(), stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    ) as process:
        for line in process.stdout:
            if "step 1/5000" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        started = time.monotonic()
        process.send_signal(number)
        process.stdout.read()
        status = process.wait(timeout=20)

    assert time.monotonic() - started < 5
    assert status == 2
    folder = session_folder(tmp_path)
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["interrupted"]
    assert verdict["verdict"] == "inconclusive"
    trace = read(folder / "quick-smollm2-135m-qlora.jsonl")
    assert trace.main.end.outcome == "interrupted"
    assert children
    _, left = psutil.wait_procs(children, timeout=max(0.0, started + 5 - time.monotonic()))  # Python's own helpers too
    assert [child.cmdline() for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_self_tests_make_no_session(tmp_path):
    """Only tiers vote: a session folder without a run would look like a pass."""
    done = run_pytest(tmp_path, "tests/results/test_domain.py")

    assert "verdict" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reports_folder_that_cannot_be_written_is_refused_before_anything_is_trained(tmp_path):
    """One message and pytest's status for a wrong request."""
    (blocked := tmp_path / "file").write_text("")
    done = run_pytest(blocked, *TINY_OPTIONS, "-k", "finite")

    assert done.returncode == 4
    assert "no report can be written there" in done.stdout + done.stderr
    assert "set TUNECHECK_REPORTS to a writable folder" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "step 1/" not in done.stdout


def test_the_checks_of_a_run_stand_together(tmp_path):
    """An interruption in the second run leaves the first one judged."""
    done = run_pytest(tmp_path, "-m", "memory", "--collect-only", "-q")
    runs = [line.partition("[")[2].rpartition("-")[0] for line in done.stdout.splitlines() if "[" in line]

    assert len(set(runs)) >= 3
    assert len([1 for before, after in itertools.pairwise(runs) if before != after]) == len(set(runs)) - 1
