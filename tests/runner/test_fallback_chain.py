"""The fallback chain: what each step changes, which losses stay the same, and a run that takes every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpuless import gpu_that_runs_out
from tiny_runs import STEPS, run_with

from tunecheck import assets as models
from tunecheck.checks import asked_of
from tunecheck.config.schema import FALLBACK_STEPS, Run
from tunecheck.core.errors import ConfigError
from tunecheck.core.evidence import Evaluation, ForwardReference, ProbeFailed, Released, Step, TrainerState
from tunecheck.core.finding import Status
from tunecheck.core.log import on_terminal
from tunecheck.probes import PROBES
from tunecheck.probes.evaluation import EvaluationProbe, GenerationProbe
from tunecheck.results import summarize
from tunecheck.runner import Runner
from tunecheck.runner.fallback_chain import FALLBACK_CHAIN, tries, variant
from tunecheck.training import native, placement
from tunecheck.training.events import Probes
from tunecheck.training.session import Session

PLAIN = ("lora=null", "quantization=null", "strategy=adapter_layers", "training.learning_rate=2e-3")


def trained(run: Run, kinds: object = ()) -> tuple[list[float], list[object], Session]:
    """Train in fp32; the loss of every step, the evidence of these probes, and the session."""
    run = variant(run, {"training.precision": "fp32"})
    found = models.resolve(run.model, allow_random=True)
    records: list[object] = []
    session = native.build(run, found.path, torch.device("cpu"))
    probes = Probes(kinds, lambda *seen: records.extend(seen))
    probes.start(session)
    probes.evaluate(session, 0)
    native.train(session, probes, range(STEPS), records.append)
    probes.evaluate(session, STEPS)
    probes.end(session)
    return [record.loss for record in records if isinstance(record, Step)], records, session


# The table and the walk.


def test_the_table_has_every_step_of_the_configuration_in_its_order():
    """The two agree, and each says where it trains."""
    assert tuple(FALLBACK_CHAIN) == FALLBACK_STEPS
    assert all(step.device in ("cuda", "cpu") for step in FALLBACK_CHAIN.values())


def walk(*settings: str) -> list[tuple[str, str, dict[str, object]]]:
    """Every try of the run with these settings on a machine with a GPU."""
    return [(t.fallback_step, t.device, t.changes) for t in tries(run_with(*settings), "cuda")]


LEAN = {
    "training.gradient_checkpointing": True,
    "training.loss_chunk_tokens": 32,
    "lora.adapter_dtype": "mixed",
    "training.micro_batch_size": 1,
    "training.gradient_accumulation_steps": 4,
}


def test_steps_add_up_on_the_gpu_and_start_over_on_the_cpu():
    """4-bit weights are evaluated where they are packed, so that step is skipped and the next one says so."""
    attempts = list(tries(run_with("fallback=[lean, offload, evaluate_on_gpu, cpu]"), "cuda"))

    assert [(t.fallback_step, t.device, t.changes) for t in attempts] == [
        ("", "cuda", {}),
        ("lean", "cuda", LEAN),
        ("offload", "cuda", {**LEAN, "training.offload": "activations"}),
        ("cpu", "cpu", {}),
    ]
    assert attempts[-1].skipped_steps == ("evaluate_on_gpu: 4-bit weights are packed for one device",)


def test_steps_that_do_not_apply_or_change_nothing_are_skipped_and_reported():
    """Nothing is trained twice alike."""
    lean = ["profile=lean", "training.micro_batch_size=1"]
    on_cpu = list(tries(run_with("fallback=[lean, cpu]"), "cpu"))
    already = list(tries(run_with("fallback=[lean, cpu]", *lean), "cuda"))
    fp16 = list(tries(run_with(*PLAIN, "fallback=[offload, cpu]", "training.precision=fp16"), "cuda"))

    assert [t.fallback_step for t in on_cpu] == [""]
    assert [(t.fallback_step, t.skipped_steps) for t in already] == [
        ("", ()),
        ("cpu", ("lean: it changes nothing",)),
    ]
    assert fp16[1].skipped_steps == ("offload: fp16's gradient scaler cannot follow gradients to the CPU",)


def test_a_canary_keeps_its_micro_batches():
    """It takes a place of each of them, so other splits are other data."""
    canary = "data.canary={instruction: Where is the cup?, response: On the shelf.}"

    assert "training.micro_batch_size" not in walk("fallback=lean", canary)[-1][2]


@pytest.mark.parametrize(
    ("given", "chain"),
    [
        ("none", []),
        ("[]", []),
        ("cpu", ["cpu"]),
        ("lean", ["lean"]),
        ("[lean, offload, evaluate_on_gpu, cpu]", list(FALLBACK_STEPS)),
    ],
)
def test_one_form_of_the_key(given, chain):
    """A word is a chain of one step, none an empty one."""
    assert run_with(f"fallback={given}").fallback == chain


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["fallback=gpu"], "fallback.0: should be 'lean', 'offload', 'evaluate_on_gpu' or 'cpu' (got 'gpu')"),
        (["fallback=[cpu, lean]"], "fallback: should name each fallback step once, in the order lean, offload"),
        (["fallback=[cpu, cpu]"], "(got cpu, cpu)"),
        (
            ["training.offload=parameters"],
            "should be activations with adapters: parameters is for training base weights",
        ),
        ([*PLAIN, "training.offload=parameters", "training.precision=fp16"], "gradient scaler cannot follow"),
        (["evaluation.device=cuda", "device=cpu"], "4-bit weights are packed for one device"),
        ([*PLAIN, "evaluation.device=cuda"], "it needs device cpu (got device auto)"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(settings, words):
    """Before anything is trained."""
    with pytest.raises(ConfigError) as caught:
        run_with(*settings)
    assert words in str(caught.value)


# The same losses. Each session is trained once.


@pytest.fixture(scope="module")
def plain():
    """The run as asked, all probes listening."""
    return trained(run_with(*PLAIN, "probes.generate=true"), PROBES)


@pytest.fixture(scope="module")
def offloaded():
    """The same with FSDP2's CPU offloading: one rank, whose computing device is the CPU too."""
    return trained(run_with(*PLAIN, "probes.generate=true", "training.offload=parameters"), PROBES)


def test_offloaded_parameters_give_the_same_losses_to_the_last_bit(plain, offloaded):
    """And the parameters really are in FSDP2's hands."""
    assert offloaded[0] == plain[0]
    assert len(set(plain[0])) == STEPS
    assert all(hasattr(parameter, "to_local") for parameter in offloaded[2].model.parameters())


def test_every_probe_sees_through_the_offloading(plain, offloaded):
    """The same evidence, but for times, live tensors and the relations that need a forward which ends in its middle."""
    others = ("Step", "StepTimes", "ProbeTimes", "LiveTensors", "ForwardReference", "Continuity", "WeightGradient")

    def evidence(records):
        seen = [record for record in records if type(record).__name__ not in others]
        return [replace(r, model_repeats=None) if hasattr(r, "model_repeats") else r for r in seen]

    assert [record for record in (*plain[1], *offloaded[1]) if isinstance(record, ProbeFailed)] == []
    assert evidence(offloaded[1]) == evidence(plain[1])
    (reference,) = (record for record in offloaded[1] if isinstance(record, ForwardReference))
    assert reference.relations > 20
    assert reference.error < 1e-5


def test_what_was_trained_offloaded_is_saved_whole(plain, offloaded, tmp_path):
    """The file is that of the plain run."""
    from safetensors.torch import load_file

    for name, (_, _, session) in (("plain", plain), ("offloaded", offloaded)):
        session.save_adapter(session, tmp_path / name)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "offloaded"))

    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_offloaded_checkpoint_goes_on_where_it_was(offloaded, tmp_path):
    """Moments come back as what FSDP2's optimizer step wants."""
    from tunecheck.training.checkpoint import load_checkpoint, save_checkpoint

    save_checkpoint(offloaded[2], STEPS, tmp_path)
    fresh = native.build(offloaded[2].run, offloaded[2].folder, torch.device("cpu"))

    assert load_checkpoint(fresh, tmp_path) == STEPS
    lines: list[Step] = []
    native.train(fresh, Probes((), lambda *seen: None), range(1), lines.append)
    assert lines[0].applied


LEAN_4_BIT = ("training.gradient_checkpointing=true", "training.loss_chunk_tokens=32", "lora.adapter_dtype=mixed")


@pytest.mark.parametrize("settings", [PLAIN, LEAN_4_BIT], ids=["weights learn", "4 bit, lean"])
def test_activations_on_the_cpu_give_the_same_losses_to_the_last_bit(settings, plain):
    """They are the same bits when they come back, also beside checkpoints that compute layers and logits again."""
    wanted = plain[0] if settings == PLAIN else trained(run_with(*settings))[0]

    assert trained(run_with(*settings, "training.offload=activations"))[0] == wanted


def test_only_what_is_no_weight_goes_to_the_cpu(monkeypatch):
    """A copy of each weight would cost more than it saves; what is copied keeps its strides."""
    model = torch.nn.Linear(3, 3)
    given = torch.ones(2, 4, 3, requires_grad=True)
    copied = []
    real = placement._copied
    monkeypatch.setattr(placement, "_copied", lambda *a, **k: copied.append(real(*a, **k)) or copied[-1])

    with placement.activations_on_cpu(model):
        part = (given * 2)[:, 1:3]
        out = model(part).sum() + part.square().sum()
    there = [(tuple(tensor.size()), tensor.stride()) for tensor in copied]
    out.backward()

    assert ((2, 2, 3), (12, 3, 1)) in there
    assert all(size != (3, 3) for size, _ in there)
    assert len(copied) == 2 * len(there)
    assert given.grad is not None


@pytest.mark.parametrize("settings", [PLAIN, ("lora.adapter_dtype=fp32",)], ids=["weights learn", "4 bit"])
def test_the_lean_step_gives_the_same_losses_where_it_says_so(settings, plain):
    """One row at a time and four of them are the same window; sums are taken in another order."""
    run = run_with(*settings, "fallback=lean")
    lean = list(tries(run, "cuda"))[-1]
    wanted = plain[0] if settings == PLAIN else trained(run_with(*settings))[0]

    assert lean.changes["training.gradient_accumulation_steps"] == 4
    assert trained(variant(run, lean.changes))[0] == pytest.approx(wanted, rel=1e-6)


def test_evaluations_go_to_the_other_device_and_back(monkeypatch, plain):
    """Before and after the training, for evaluation and texts; the training does not notice."""
    moves: list[str] = []
    monkeypatch.setattr(placement, "resolve_device", lambda asked: torch.device(asked.replace("cuda", "cpu")))
    real = placement._move
    monkeypatch.setattr(placement, "_move", lambda session, device: moves.append(device.type) or real(session, device))

    run = variant(run_with(*PLAIN, "probes.generate=true"), FALLBACK_CHAIN["evaluate_on_gpu"].changes(run_with()))
    losses, records, session = trained(run, (EvaluationProbe, GenerationProbe))

    assert len(moves) == 2 * 4
    assert losses == plain[0]
    assert [r for r in records if isinstance(r, Evaluation)] == [r for r in plain[1] if isinstance(r, Evaluation)]
    assert session.device == session.batches.device == torch.device("cpu")


# All the way down.


@pytest.fixture(scope="module")
def fallen(tmp_path_factory):
    """Out of memory as asked, lean and offloaded, each time at another step; and what was said about it."""
    run = run_with("fallback=[lean, offload, cpu]", "probes.reference=true", "probes.resume_from=2")
    said: list[str] = []
    folder = tmp_path_factory.mktemp("fallen")
    with pytest.MonkeyPatch.context() as patch, on_terminal(said.append):
        gpu_that_runs_out(patch, 2, 1, 0)
        trace = Runner(folder=folder, environment={}, gpu=True, cards=("GPU-1",)).execute(run)
    return run, trace, said


@pytest.mark.slow
def test_a_run_takes_the_whole_fallback_chain_and_ends_on_the_cpu(fallen):
    """Every attempt is in the trace: device, fallback step, settings, the steps it took, and what made it necessary."""
    _, trace, said = fallen
    trainings = [a for a in trace.attempts if a.start.purpose == "train"]

    assert [(a.start.fallback_step, a.start.device, a.end.outcome) for a in trainings] == [
        ("", "cuda:0", "out_of_memory"),
        ("lean", "cuda:0", "out_of_memory"),
        ("offload", "cuda:0", "out_of_memory"),
        ("cpu", "cpu", "finished"),
    ]
    assert [len(a.all(Step)) for a in trainings] == [2, 1, 0, STEPS]
    assert [a.start.changes for a in trainings][1:] == [LEAN, {**LEAN, "training.offload": "activations"}, {}]
    assert all("CUDA out of memory. Tried to allocate" in a.start.explanation for a in trainings[1:])
    assert [line for line in said if "again in a fresh process" in line] == [
        "quick/smollm2-135m-qlora: out of memory on the GPU; again in a fresh process on cuda:0 (lean)",
        "quick/smollm2-135m-qlora: out of memory on the GPU; again in a fresh process on cuda:0 (offload)",
        "quick/smollm2-135m-qlora: out of memory on the GPU; again in a fresh process on the CPU",
    ]


def test_the_result_is_that_of_a_run_that_began_on_the_cpu(fallen):
    """By the trace's own reference, and by the checks that are asked of such a run."""
    run, trace, _ = fallen
    wanted = [step.loss for step in trace.last("reference").all(Step)]
    asked = {name: check for name, check in asked_of(run.features, {}).items() if "fallback" in name}
    asked |= {name: run.resolved_checks()[name] for name in ("device_as_configured", "steps_applied", "resume_equals")}

    assert [step.loss for step in trace.steps] == wanted
    assert len(wanted) == STEPS
    assert {name: check(trace).status for name, check in asked.items()} == dict.fromkeys(asked, Status.PASSED)
    assert trace.last("resume").all(TrainerState)
    assert trace.one(Released).bytes >= 0


def test_the_report_shows_every_fallback_step(fallen):
    """A fallback that nobody sees is a silent one."""
    _, trace, _ = fallen
    row = summarize(trace, [], trace_file="", seconds=0.0)

    assert row.retries == [
        "ran out of memory on cuda:0, repeated on cuda:0 (lean)",
        "ran out of memory on cuda:0 (lean), repeated on cuda:0 (offload)",
        "ran out of memory on cuda:0 (offload), repeated on cpu",
    ]


def test_the_checks_find_half_trained_weights(tmp_path, monkeypatch):
    """A fallback that goes on with what the attempt before it left is not one that begins anew."""
    import dataclasses

    from injected import half_trained

    from tunecheck import runner as runner_module

    gpu_that_runs_out(monkeypatch, 1)
    fake = runner_module.run_child

    def run_child(request, **options):
        carried = request.device == "cpu" and request.purpose == "train"
        return fake(dataclasses.replace(request, faults=(half_trained,)) if carried else request, **options)

    monkeypatch.setattr(runner_module, "run_child", run_child)
    run = run_with("fallback=cpu", "probes.reference=true")
    trace = Runner(folder=tmp_path, environment={}, gpu=True).execute(run)
    asked = asked_of(run.features, {})

    assert asked["fallback_starts_fresh"](trace).status is Status.FAILED
    assert asked["fallback_equals_reference"](trace).status is Status.FAILED
    assert asked["fallback_in_order"](trace).passed


def test_after_the_last_fallback_step_an_out_of_memory_error_is_the_end(tmp_path, monkeypatch):
    """The last step's error is the run's; no attempt follows it."""
    gpu_that_runs_out(monkeypatch, 0, 0)
    run = run_with("fallback=lean")

    trace = Runner(folder=tmp_path, environment={}, gpu=True).execute(run)

    assert [(a.start.fallback_step, a.end.outcome) for a in trace.attempts] == [
        ("", "out_of_memory"),
        ("lean", "out_of_memory"),
    ]
    assert summarize(trace, [], trace_file="", seconds=0.0).outcome == "error"


def test_further_attempts_are_made_at_the_fallback_step_where_the_training_finished(tmp_path, monkeypatch):
    """A repeat of other settings would compare two different trainings."""
    asked = gpu_that_runs_out(monkeypatch, 0, None)
    run = run_with("fallback=[lean, cpu]", "probes.repeat_steps=2", "probes.reference=true")

    trace = Runner(folder=tmp_path, environment={}, gpu=True).execute(run)

    assert [(a.start.purpose, a.start.fallback_step) for a in trace.attempts] == [
        ("train", ""),
        ("train", "lean"),
        ("repeat", "lean"),
    ]
    assert [request.run.training.micro_batch_size for request in asked] == [2, 1, 1]
    assert trace.settings["training"]["micro_batch_size"] == 1
    assert run.resolved_checks()["repeat_equals"](trace).passed
