"""Trainers behind one protocol: transformers' trains as the native loop does, and its real bugs are named."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from fake_machine import machine
from in_process import train_here
from transformers import TrainerCallback

from tunecheck import assets as models
from tunecheck.config import find_run, load_run
from tunecheck.config.schema import Run
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.errors import ConfigError, Unsupported, WeightsDamaged
from tunecheck.core.evidence import AttemptEnd, Census, Phase, Setup, Step, TrainerState
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Trace
from tunecheck.session.admission import obstacle
from tunecheck.training import trainer_of
from tunecheck.training.events import Probes
from tunecheck.training.session import Session

MOVING = ["training.learning_rate=2e-3", "training.weight_decay=0"]
FULL = ["strategy=full", "lora=null", "quantization=null", "training.gradient_checkpointing=true"]
LORA = ["strategy=lora", "quantization=null"]
IN_BF16 = ["training.precision=bf16", "lora.adapter_dtype=model"]
"""What SFTTrainer makes of the adapters of a quantised base."""
NEEDS_TRL = pytest.mark.skipif(bool(TRAINERS["trl"].lacks), reason=f"trainer trl {TRAINERS['trl'].lacks}")
EVERYTHING = [
    "probes.resume_from=2",
    "probes.repeat_steps=2",
    "probes.read_back=true",
    "probes.merge=true",
    "evaluation.at=[2]",
]
"""What a run may ask for besides its training."""


def run_with(*settings: str) -> Run:
    """The quick run on a tiny model, evaluated as both trainers can."""
    return load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, "evaluation.batch_size=2", *settings])


def session_of(run: Run) -> Session:
    """A session on the CPU, ready for its first step."""
    found = models.resolve(run.model, allow_random=True)
    return trainer_of(run).build(run, found.path, torch.device("cpu"))


def steps_of(trainer: str, *settings: str) -> list[Step]:
    """Every step of a tiny run as this trainer reports it, unprobed."""
    run, steps = run_with(f"trainer={trainer}", *settings), []
    trainer_of(run).train(
        session_of(run), Probes((), lambda *records: None), range(run.training.max_steps), steps.append
    )
    return steps


def trained(folder: Any, *settings: str, bug: Any = None) -> tuple[Run, Trace]:
    """A tiny run in this process, with transformers' Trainer where the settings name no other, and its trace."""
    run = run_with("trainer=transformers", *settings)
    return run, train_here(run, folder, *filter(None, [bug]))


def findings(run: Run, trace: Trace) -> list[Finding]:
    """Every check's answer."""
    return [check(trace) for check in run.resolved_checks().values()]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A healthy run that asks for everything."""
    return trained(tmp_path_factory.mktemp("healthy"), *EVERYTHING)


def test_the_trainer_is_part_of_the_fingerprint():
    """Two trainers are two trainings; runs that were recorded before there was a choice keep theirs."""
    native = run_with("trainer=native").fingerprint

    assert run_with("trainer=transformers").fingerprint != native == run_with().fingerprint


def test_the_rows_of_a_run_are_those_of_its_windows():
    """In their order, as many as the steps take, and no more."""
    session = session_of(run_with())
    rows = session.batches.in_order()

    windows = [batch.keys for step in range(5) for batch in session.batches.window(step)]
    assert [row.key for row in rows] == [key for keys in windows for key in keys]
    assert len(rows) == 20


@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        pytest.param("transformers", [], id="transformers, qlora"),
        pytest.param("transformers", FULL, id="transformers, full with checkpointing"),
        pytest.param("trl", LORA, marks=NEEDS_TRL, id="trl, lora"),
        pytest.param("trl", FULL, marks=NEEDS_TRL, id="trl, full with checkpointing"),
    ],
)
def test_a_trainer_trains_as_the_native_loop_does(trainer, settings):
    """Step by step the same rows, rates, losses and gradient norms: measured 1.7e-7 and 4e-7 of the loss."""
    ours, theirs = (steps_of(name, *MOVING, *settings) for name in ("native", trainer))

    for name, tolerance in (("loss", 1e-5), ("gradient_norm", 1e-3), ("learning_rate", 1e-12)):
        wanted = [getattr(step, name) for step in ours]
        assert [getattr(step, name) for step in theirs] == pytest.approx(wanted, rel=tolerance, abs=1e-12)
    assert [(s.step, s.supervised_tokens, s.tokens, s.applied) for s in theirs] == [
        (s.step, s.supervised_tokens, s.tokens, s.applied) for s in ours
    ]
    assert ours[-1].loss < ours[0].loss


def test_a_healthy_run_of_transformers_passes(healthy):
    """Saved, read back, merged, repeated and resumed, nothing is accused and nothing unexpectedly unjudged."""
    run, trace = healthy

    assert [str(f) for f in findings(run, trace) if not f.passed and not f.expected] == []
    assert {attempt.start.purpose for attempt in trace.attempts} == {
        "train", "repeat", "resume", "read back", "merge"
    }  # fmt: skip
    assert all(end.outcome == "finished" for attempt in trace.attempts for end in attempt.all(AttemptEnd))


def test_a_healthy_run_of_transformers_in_bf16_passes(tmp_path):
    """The precision of every GPU; the tiny settings are fp32's."""
    run, trace = trained(tmp_path, *EVERYTHING, "training.precision=bf16")

    assert trace.one(Setup).precision == "bf16"
    assert [str(f) for f in findings(run, trace) if not f.passed and not f.expected] == []
    assert all(end.outcome == "finished" for attempt in trace.attempts for end in attempt.all(AttemptEnd))


@NEEDS_TRL
@pytest.mark.parametrize(
    "settings", [[*EVERYTHING, *LORA], IN_BF16, [*FULL, "training.weight_decay=0"]], ids=["lora", "qlora", "full"]
)
def test_a_healthy_run_of_trl_passes(tmp_path, settings):
    """SFTTrainer's own preparation, collator, fused loss and evaluation; every check of transformers' is judged."""
    run, trace = trained(tmp_path, "trainer=trl", *settings)

    assert [str(f) for f in findings(run, trace) if not f.passed and not f.expected] == []
    assert all(end.outcome == "finished" for attempt in trace.attempts for end in attempt.all(AttemptEnd))


@NEEDS_TRL
def test_a_bug_of_trl_is_named(tmp_path):
    """Labels of every token, as where `completion_only_loss` is lost on the way."""

    def learns_prompts(session: Session) -> None:
        held = session.trainer.train_dataset
        session.trainer.train_dataset = held.map(lambda row: {"labels": row["input_ids"]})

    run, trace = trained(tmp_path, "trainer=trl", *LORA, bug=learns_prompts)

    assert "supervised_tokens" in {f.check for f in findings(run, trace) if f.status is Status.FAILED}


def test_a_trainer_that_is_not_installed_is_told(monkeypatch, tmp_path):
    """With the way out: a skip at admission, an error where nobody asked for admission."""
    monkeypatch.setattr("tunecheck.config.trainers.find_spec", lambda name: None)
    run, told = run_with("trainer=trl", *LORA), "needs the package trl, which is not installed: pip install 'tunecheck"

    assert obstacle(run, machine()).startswith(told)
    with pytest.raises(Unsupported, match=f"trainer trl {told}"):
        trainer_of(run)
    end = trained(tmp_path, "trainer=trl", *LORA)[1].main.end
    assert (end.outcome, f"trainer trl {told}" in end.detail) == ("failed", True)


def test_the_trainer_resumes_from_its_own_checkpoint(healthy):
    """With its optimizer's state, and the rest of the steps alone."""
    _, trace = healthy
    resumed = trace.last("resume")

    assert resumed.all(TrainerState) == trace.main.all(TrainerState)
    assert [step.step for step in resumed.all(Step)] == [2, 3, 4]


def test_one_call_of_train_has_the_phases_of_the_run(healthy):
    """The trainer is called once; a checkpoint between two steps is a phase of its own."""
    _, trace = healthy

    assert [phase.name for phase in trace.main.all(Phase)] == [
        "load", "evaluation", "first step", "steady", "save", "steady", "evaluation", "save"
    ]  # fmt: skip


def means_of_micro_batches(session: Session) -> None:
    """The loss of transformers before October 2024: each micro-batch's own mean, averaged (issue 34191)."""
    session.trainer.model_accepts_loss_kwargs = False


def padding_is_supervised(session: Session) -> None:
    """A collator that takes the token ids for labels, those of the padding too."""
    collate = session.trainer.data_collator

    def careless(rows: Any) -> dict[str, torch.Tensor]:
        columns = collate(rows)
        return {**columns, "labels": columns["labels"].where(columns["attention_mask"] == 1, columns["input_ids"])}

    session.trainer.data_collator = careless


class StepsTheSchedule(TrainerCallback):
    """A callback from the time before the Trainer did so itself."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Once more."""
        kwargs["lr_scheduler"].step()


def schedule_stepped_twice(session: Session) -> None:
    """The schedule is over after half of the steps."""
    session.trainer.add_callback(StepsTheSchedule)


def rows_at_random(session: Session) -> None:
    """The Trainer's default sampler, which shuffles rows that are in their order already."""
    session.trainer.args.train_sampling_strategy = "random"


def clipped_after_the_step(session: Session) -> None:
    """max_grad_norm is lost on the way to the arguments."""
    session.trainer.args.max_grad_norm = 1e9


@pytest.mark.parametrize(
    ("bug", "named"),
    [
        (means_of_micro_batches, {"loss_oracle", "accumulation_oracle"}),
        (padding_is_supervised, {"tokens_match_template", "supervised_tokens"}),
        (schedule_stepped_twice, {"learning_rate_trace"}),
        (rows_at_random, {"row_order"}),
        (clipped_after_the_step, {"updates_match_adamw"}),
    ],
)
def test_a_bug_of_a_trainer_is_named(tmp_path, bug, named):
    """Put into transformers' Trainer, not into our loop, it fails the check that names its cause."""
    failed = {
        f.check for f in findings(*trained(tmp_path, "training.max_steps=4", bug=bug)) if f.status is Status.FAILED
    }

    assert failed >= named


@pytest.mark.parametrize("trainer", ["native", "transformers", pytest.param("trl", marks=[NEEDS_TRL])])
def test_a_run_says_which_tensors_decay_and_is_held_to_it(tmp_path, trainer):
    """Norms and biases apart, as transformers' Trainer has it; the same run judged as one whose every tensor decays."""
    settings = [*FULL, "training.weight_decay=0.1", "training.weight_decay_on=all_but_norms_and_biases"]
    run, trace = trained(tmp_path, *settings, f"trainer={trainer}")

    assert [str(f) for f in findings(run, trace) if f.status is Status.FAILED] == []
    apart = trace.all(Census)[0].undecayed
    assert len(apart) == 2 * run.model.architecture.num_hidden_layers + 1
    assert all("norm" in name for name in apart)

    trace.header.run["training"]["weight_decay_on"] = "all"
    assert "optimizer_coverage" in {f.check for f in findings(run, trace) if f.status is Status.FAILED}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["training.loss_chunk_tokens=32"], "loss_chunk_tokens: should be null with trainer transformers: it has"),
        (["training.offload=activations"], "offload: should be none with trainer transformers (got activations)"),
        (["training.precision=fp16"], "precision: should be bf16 or fp32 with trainer transformers: its fp16 puts"),
        ([*FULL, "training.weight_decay=0.1"], "weight_decay_on: should be all_but_norms_and_biases"),
        (["evaluation.batch_size=1"], "evaluation.batch_size: should be at least evaluation.rows, 2, with trainer"),
        (["evaluation.device=cuda", *FULL, "training.weight_decay=0"], "device: should be training with trainer"),
        (["fallback=[lean, cpu]"], "fallback: should be cpu or none with trainer transformers (got lean)"),
        (["probes.rungs=true"], "probes.rungs: should be false with trainer transformers: it has one fallback step"),
        (["profile=lean"], "loss_chunk_tokens: should be null with trainer transformers"),
        (["trainer=trl", "fallback=[lean, cpu]"], "fallback: should be cpu or none with trainer trl (got lean)"),
        (["trainer=trl"], "lora.adapter_dtype: should be model with trainer trl on a quantised base"),
        (["trainer=trl", "lora.use_dora=true"], "lora.use_dora: should be false with trainer trl on a quantised"),
        (["trainer=trl"], "training.precision: should be bf16 or auto with trainer trl on a quantised base"),
        (["trainer=axolotl"], "trainer: should be"),
        (
            ["parallel={processes: 2, engine: fsdp}"],
            "parallel.engine: should be ddp with trainer transformers: accelerate",
        ),
        (
            ["parallel={processes: 2}", "evaluation.rows=3"],
            "evaluation.rows: should be a multiple of 2, the processes, with trainer tra",
        ),
        (
            ["parallel={processes: 2}", "evaluation.rows=8"],
            "should be at least evaluation.rows by the processes, 4, with",
        ),
    ],
)
def test_what_the_trainer_cannot_do_is_refused(settings, told):
    """When the run is read, not passed over in silence."""
    with pytest.raises(ConfigError) as refused:
        run_with("trainer=transformers", *settings)

    assert told in str(refused.value)


def test_a_damaged_checkpoint_of_the_trainer_is_told(tmp_path):
    """Before anything is trained."""
    (tmp_path / "trainer_state.json").write_text("{")

    with pytest.raises(WeightsDamaged, match=r"the Trainer's checkpoint cannot be read: .*; train again"):
        trainer_of(run_with("trainer=transformers")).load_checkpoint(None, tmp_path)
