"""`tunecheck bench`: what takes part, in which order, and a real session of two trainers."""

from __future__ import annotations

import json

import pytest
import tiny
from in_process import forget_earlier_trainings

from tunecheck.cli import main
from tunecheck.cli.run import carry_out, plan
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.errors import ConfigError
from tunecheck.results.comparison import plain_benchmarks
from tunecheck.results.stored import VERDICTS
from tunecheck.session import TierSession

RUN = "quick/smollm2-135m-qlora"
SETTINGS = [*tiny.TRAINED, "strategy=lora", "quantization=null", "evaluation.batch_size=2", "training.max_steps=4"]
BOTH = ["native", "transformers"]


def test_trainers_take_turns_and_none_is_always_the_last():
    """Every second turn goes backwards; each run has a name of its own and the fingerprint of its training."""
    runs, _ = plan(RUN, BOTH, turns=3, overrides=SETTINGS)

    assert [(run.entry, run.turn) for run in runs] == [
        ("native", 1), ("transformers", 1), ("transformers", 2), ("native", 2), ("native", 3), ("transformers", 3)
    ]  # fmt: skip
    assert len({run.name for run in runs}) == 6
    assert len({run.fingerprint for run in runs}) == 2
    assert {run.comparison for run in runs} == {RUN}


def test_what_cannot_take_part_is_left_out_with_the_reason(monkeypatch):
    """Without a choice; what is not installed as well as what the trainer refuses."""
    monkeypatch.setattr("tunecheck.config.trainers.find_spec", lambda name: None)
    missing = plan(RUN, [], turns=1, overrides=SETTINGS)[1]
    monkeypatch.undo()
    refused = plan(RUN, [], turns=1, overrides=["evaluation.batch_size=2"])[1]

    assert list(missing) == ["trl"]
    assert missing["trl"].startswith("needs the package trl, which is not installed")
    assert "lora.adapter_dtype: should be model with trainer trl" in refused["trl"]


@pytest.mark.parametrize(
    ("trainers", "settings", "told"),
    [
        (["native", "transformers"], [], "evaluation.batch_size: should be at least evaluation.rows, 2, with trainer"),
        (["native"], SETTINGS, f"bench: name two trainers or more, of {', '.join(TRAINERS)} (got native)"),
        (["native", "axolotl"], SETTINGS, "should be 'native' or 'transformers'"),
        ([], ["training.max_steps=0"], "training.max_steps: should be"),
    ],
)
def test_a_benchmark_that_cannot_be_made_is_a_usage_error(trainers, settings, told):
    """Every problem at once, before anything is trained."""
    with pytest.raises(ConfigError) as refused:
        plan(RUN, trainers, turns=1, overrides=settings)

    assert told in str(refused.value)


def test_the_command_ends_with_a_usage_error(capsys):
    """4, and a sentence."""
    assert main(["bench", "no-such-run"]) == 4
    assert "no run is called 'no-such-run'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="4"):
        main(["bench", RUN, "--turns", "0"])


def test_two_trainers_side_by_side(tmp_path, monkeypatch, capsys):
    """Trained and judged like runs of a tier: files, verdict, the same losses to six digits."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    forget_earlier_trainings()
    session = TierSession(command="tunecheck bench", in_process=True)

    report = carry_out(plan(RUN, BOTH, turns=1, overrides=SETTINGS)[0], session)

    assert [str(finding) for run in report.runs for finding in run.failed] == []
    assert report.verdict == "pass"
    stored = VERDICTS.read(session.folder / "verdict.json").runs
    monkeypatch.setattr("tunecheck.cli.run.carry_out", lambda runs, session: report)
    capsys.readouterr()
    settings = [word for key in SETTINGS for word in ("--set", key)]
    command = ["bench", RUN, "--trainer", "native", "--trainer", "transformers", *settings]
    assert main([*command, "-q"]) == 0
    assert "report: " in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    assert [plain] == json.loads(json.dumps(plain_benchmarks(stored)))
    assert [one["trainer"] for one in plain["trainers"]] == BOTH
    assert plain["trainers"][1]["loss_difference"] < 1e-5
    assert all(one["tokens_per_second"] > 0 and one["peak_bytes"] > 0 for one in plain["trainers"])
    assert "trainers of quick/smollm2-135m-qlora" in (session.folder / "report.html").read_text()


def test_an_interrupt_leaves_a_report_on_what_was_trained(tmp_path, monkeypatch):
    """Of a turn that was not reached there is no row."""
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))
    session = TierSession(command="tunecheck bench", in_process=True)

    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "train", interrupted)

    assert carry_out(plan(RUN, BOTH, turns=1, overrides=SETTINGS)[0], session) is None
    assert list(tmp_path.iterdir()) == []
