"""The console command, called as a user does; judging needs no torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import traces
from fake_machine import CARD, machine
from sessions import write_trace

from tunecheck.checks import CHECKS
from tunecheck.cli import main
from tunecheck.config import TIERS, find_run, load_run
from tunecheck.core.paths import project_folder


@pytest.fixture
def trace_file(tmp_path):
    """A healthy trace on disk."""
    path = tmp_path / "trace.jsonl"
    write_trace(path, traces.healthy())
    return path


def test_list_names_every_tier_and_run(capsys):
    """With what each run needs."""
    assert main(["list"]) == 0

    printed = capsys.readouterr().out
    assert all(f"{tier}: " in printed for tier in TIERS)
    assert "smollm2-135m-qlora: qlora, 10 steps" in printed
    assert "llama-7b-qlora: qlora, 1000 steps" in printed


def test_list_as_json_has_the_names(capsys):
    """Machine-readable."""
    assert main(["list", "--json"]) == 0
    assert "quick/smollm2-135m-qlora" in json.loads(capsys.readouterr().out)["quick"]


def test_list_needs_says_once_why_there_is_no_gpu(capsys, monkeypatch):
    """Above the table, with what to do; the lines of the runs say what each needs."""
    driverless = dataclasses.replace(
        machine(),
        nvml_problem="no NVIDIA driver is installed",
        nvml_remedy="none is needed to run on the CPU",
    )
    monkeypatch.setattr("tunecheck.cli.runs.probe", lambda: driverless)
    assert main(["list", "--needs"]) == 0

    printed = capsys.readouterr().out
    assert printed.count("none is needed to run on the CPU") == 1
    assert "full/llama-7b-qlora: needs a GPU with " in printed
    assert ", and this machine shows none" in printed


def test_list_needs_says_what_this_machine_cannot_hold(capsys):
    """A line for every run, or for those of the tiers that are named."""
    assert main(["list", "--needs"]) == 0
    printed = capsys.readouterr().out
    assert "quick/smollm2-135m-qlora: can run here" in printed
    assert "full/llama-7b-qlora" in printed

    assert main(["list", "--needs", "--tier", "quick"]) == 0
    printed = capsys.readouterr().out
    assert "quick/smollm2-135m-qlora: can run here" in printed
    assert "full/llama-7b-qlora" not in printed


def test_list_needs_believes_the_cap(capsys, monkeypatch):
    """A card of 141 GiB under --vram-cap 8GiB holds no LLaMA-7B, and is not called a small one."""
    monkeypatch.setattr("tunecheck.cli.runs.probe", lambda: machine(CARD))
    assert main(["list", "--needs"]) == 0
    assert "full/llama-7b-qlora: can run here" in capsys.readouterr().out

    assert main(["list", "--needs", "--vram-cap", "2GiB"]) == 0
    printed = capsys.readouterr().out
    assert "2.0 GiB free of 2.0 GiB on NVIDIA H200 under --vram-cap 2.0 GiB (the card itself: 140.0 GiB free" in printed
    assert "full/llama-7b-qlora: needs " in printed


def test_a_cap_without_a_unit_is_a_usage_error(capsys):
    """The value and the units."""
    with pytest.raises(SystemExit):
        main(["list", "--needs", "--vram-cap", "8"])
    assert "'8' should be a number with a unit, such as 256MiB or 8GiB" in capsys.readouterr().err


def test_show_prints_the_resolved_run_and_its_checks(capsys):
    """Overrides are in it."""
    assert main(["show", "quick/smollm2-135m-qlora", "--set", "training.seed=7"]) == 0

    printed = capsys.readouterr().out
    assert "seed: 7" in printed
    assert "fingerprint: " in printed
    assert "base_untouched: Every frozen tensor" in printed


def test_show_prints_the_whole_first_sentence_of_a_check(capsys):
    """A docstring may break a line wherever it likes, after a colon too."""
    assert main(["show", "quick/smollm2-135m-qlora"]) == 0

    shown = capsys.readouterr().out
    assert "row_order: Each optimizer step trains on the rows that the seed and the step number prescribe." in shown
    for check in load_run(find_run("quick/smollm2-135m-qlora")).resolved_checks().values():
        assert f"{check.key()}: {check.question}" in shown
    questions = [check.question for check in load_run(find_run("quick/smollm2-135m-qlora")).resolved_checks().values()]
    assert all(question.endswith((".", "?")) for question in questions)


def test_show_leaves_out_a_limit_that_is_not_set(capsys):
    """Its other limits are there."""
    assert main(["show", "extended/tinyllama-1.1b-qlora"]) == 0

    assert "(warm_up_steps=20, max_change=0.03, confidence=0.999)" in capsys.readouterr().out


def test_show_as_json_has_the_limits(capsys):
    """Machine-readable."""
    assert main(["show", "quick/smollm2-135m-qlora", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checks"]["first_loss_below_uniform"] == {"max_share": 0.8}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "quick/smollm2"], "did you mean"),
        (["show", "quick/smollm2-135m-qlora", "--set", "lora.rank=8"], "unknown key"),
        (["fetch", "smollm"], "did you mean 'smollm2-135m'"),
    ],
)
def test_a_wrong_request_is_a_message_and_status_4(capsys, arguments, words):
    """No traceback."""
    assert main(arguments) == 4
    assert words in capsys.readouterr().err


def test_without_a_command_all_of_them_are_told(capsys):
    """A wrong request still, with what would be a right one."""
    assert main([]) == 4
    assert "diagnose this machine, with a remedy for each problem" in " ".join(capsys.readouterr().err.split())


def test_judge_repeats_the_verdict(capsys, trace_file):
    """Status 0 for a healthy trace."""
    assert main(["judge", str(trace_file)]) == 0
    assert "verdict: PASS" in capsys.readouterr().out


def test_judge_takes_other_limits(capsys, trace_file):
    """With one that nothing can meet the same trace fails."""
    assert main(["judge", str(trace_file), "--set", "checks.adapters_applied.min_difference=1e9"]) == 1

    printed = capsys.readouterr().out
    assert "verdict: FAIL" in printed
    assert "adapters_applied" in printed


def test_judge_as_json_is_a_verdict(capsys, trace_file):
    """The same fields as verdict.json."""
    assert main(["judge", str(trace_file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "pass"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.seed=1", "only limits can be set"),
        ("checks.adapters_applied.min_differenc=1", "min_differenc"),
        ("checks.no_such_check={}", "no check is called"),
    ],
)
def test_judge_refuses_what_a_trace_cannot_answer(capsys, trace_file, setting, words):
    """A trace is what happened."""
    assert main(["judge", str(trace_file), "--set", setting]) == 4
    assert words in capsys.readouterr().err


def test_judge_of_something_else_is_a_message(capsys, tmp_path):
    """An unreadable or foreign file."""
    assert main(["judge", str(tmp_path / "none.jsonl")]) == 4
    assert "cannot be read" in capsys.readouterr().err


def test_judge_does_not_import_torch(trace_file):
    """Offline, on any machine."""
    code = (
        "import sys; from tunecheck.cli import main; "
        f"status = main(['judge', {str(trace_file)!r}]); print('torch' in sys.modules, status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project_folder(), capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "False 0"


def test_doctor_has_a_line_for_every_topic(capsys, monkeypatch):
    """As text and as JSON; offline it does not ask the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["doctor"]) in (0, 1)
    assert "torch" in capsys.readouterr().out

    assert main(["doctor", "--json"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    assert {"level", "topic", "found", "remedy"} == answer["diagnoses"][0].keys()
    assert answer["hardware"]["cpu"]["usable_cores"] >= 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("watch --stopp -- python x.py", ["usage: tunecheck watch", "--stopp (did you mean '--stop'?)"]),
        ("list --tire quick", ["usage: tunecheck list", "--tire quick (did you mean '--tier'?)"]),
        ("wacth -- python x.py", ["usage: tunecheck [-h]", "invalid choice: 'wacth' (did you mean 'watch'?)"]),
        ("fleet quick --engine slrm", ["'slrm' (did you mean 'slurm'?); choose from local, slurm, ray"]),
        ("compare", ["required: a, b\nexample: tunecheck compare reports/runs/BEFORE"]),
        ("watch --steps ten -- python x.py", ["usage: tunecheck watch", "'ten' should be a whole number of 1 or more"]),
    ],
)
def test_a_wrong_option_is_answered_by_its_command(capsys, words, told):
    """With its usage and the nearest option, not with the usage of all commands."""
    with pytest.raises(SystemExit) as ended:
        main(words.split())

    assert ended.value.code == 4
    shown = capsys.readouterr().err
    assert all(part in shown for part in told), shown


def test_a_limit_in_an_unknown_section_is_answered_with_the_nearest(capsys):
    """As the name of a check is."""
    assert main(["watch", "--set", "check.rows_whole.max_share=1", "--", "python", "x.py"]) == 4
    assert "(did you mean 'checks'?)" in capsys.readouterr().err


def test_explain_prints_the_page_of_a_check(capsys):
    """In a terminal's columns, or as Markdown in JSON; an unknown name is answered with the nearest."""
    assert main(["explain", "rows_whole"]) == 0
    page = capsys.readouterr().out
    assert main(["explain", "rows_whole", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)

    assert max(map(len, page.splitlines())) <= 80
    for heading in ("Why it matters", "Limits", "Likely causes", "What to do", "Example", "Accept, declare"):
        assert heading in page
        assert f"## {heading}" in held["page"]
    assert main(["explain", "row_whole"]) == 4
    assert "did you mean 'rows_whole'?" in capsys.readouterr().err


def test_without_a_path_the_last_session_is_read(capsys, monkeypatch, tmp_path):
    """By its name, which is its time; without any session the message names the command that makes one."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    assert main(["rows"]) == 4
    assert "tunecheck watch -- python train.py" in capsys.readouterr().err
    for name in ("20261125T074242Z-1", "20261125T084242Z-1", "20261124T084242Z-1"):
        (tmp_path / name).mkdir()
        write_trace(tmp_path / name / "run.jsonl", traces.healthy())

    assert main(["page"]) == 0
    assert Path(capsys.readouterr().out.strip()) == tmp_path / "20261125T084242Z-1" / "report.html"
    for command in ("rows", "judge", "fallback-table"):
        assert main([command]) == 0


def test_explain_of_a_check_of_another_package_gives_its_own_words(capsys, monkeypatch):
    """There is no page of it."""
    monkeypatch.setitem(CHECKS, "rows_whole_too", CHECKS["rows_whole"])

    assert main(["explain", "rows_whole_too"]) == 0
    assert "What to do" in capsys.readouterr().out
