"""Every tier from end to end on the CPU: the YAML's own run, steps and checks on a random model of two layers."""

from __future__ import annotations

import pytest
import tiny

from tunecheck.assets.folder import parameter_count
from tunecheck.config import TIERS, find_run, load_run, mentions, read_runs, run_sources
from tunecheck.core.errors import ConfigError
from tunecheck.core.finding import Status
from tunecheck.core.paths import shipped_folder
from tunecheck.runner import Runner

STEPS = {
    "full/llama-7b-qlora": 300,
    "extended/tinyllama-1.1b-qlora": 260,
    "convergence/smollm2-135m-qlora": 100,
    "memory/tinyllama-1.1b-qlora": 50,
    "memory/smollm2-135m-lean": 50,
    "memory/smollm2-135m-order": 10,
    "extended/smollm2-135m-parallel": 10,
    "quick/smollm2-135m-qlora": 10,
}
"""Steps of every shipped run but those of comparisons, which are in test_comparisons.py; one's own are not trained. The
longest first: two workers end at about the same time."""
PLAIN = (
    *("training.gradient_accumulation_steps=1", "training.gradient_checkpointing=false"),
    *("data.pad_to_sequence_len=false", "data.hub=null"),
)
"""Half of the time without accumulation, which the other tiers keep, and a fraction without padding and without
checkpointing, which the memory tier keeps, as it does a loss in chunks; on the shipped rows, whether or not there is a
network."""
CHEAPER: dict[str, tuple[str, ...]] = {
    "full/llama-7b-qlora": (
        *(*PLAIN, "training.loss_chunk_tokens=null", "training.max_steps=300", "evaluation.at=[100, 200]"),
        *("probes.oracle_steps=[0, 151]", "probes.resume_from=250"),
    ),
    "extended/tinyllama-1.1b-qlora": (*PLAIN, "training.max_steps=260", "evaluation.at=[100, 200]"),
    "extended/smollm2-135m-parallel": (*PLAIN, "probes.rescale_to=[1]"),  # four cannot share two micro-batches
    "memory/smollm2-135m-lean": ("data.pad_to_sequence_len=false",),
}
"""What the long runs do without: steps beyond some hundreds would show the same again."""
RANDOM = {
    *("first_loss_below_uniform", "loss_falls", "loss_keeps_falling", "heldout_improves", "canary_learned"),
    "text_is_language",
}
NEEDS_A_CARD = {
    *("hardware_healthy", "vram_ceiling", "throughput_steady", "memory_order", "model_flops_utilization"),
    *("card_returns_to_baseline", "fallback_starts_fresh", "fallback_equals_reference"),
}


def shrunk(name):
    """This run on the two-layer model, in fp32: gradient_matches_loss is unjudged in bf16."""
    return load_run(find_run(name), [*tiny.SHRUNK, "training.precision=fp32", *CHEAPER.get(name, ())])


def test_every_tier_has_a_run():
    """And the table has no other than those on disk."""
    assert {name.partition("/")[0] for name in STEPS} == set(TIERS)
    assert STEPS.keys() <= {source.name for source in run_sources()}


@pytest.mark.parametrize("name", STEPS)
def test_the_run_trains_its_steps_and_every_check_is_good(name, tmp_path):
    """What depends on learning is unjudged, since the weights are random, and what needs a card; nothing else is."""
    run = shrunk(name)

    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run)

    assert [attempt.end.outcome for attempt in trace.attempts] == ["finished"] * len(trace.attempts)
    assert len(trace.steps) == STEPS[name] == run.training.max_steps
    findings = [check(trace) for check in run.resolved_checks().values()]
    assert len(findings) > 30
    assert [str(finding) for finding in findings if not finding.passed and not finding.expected] == []
    assert {finding.check for finding in findings if finding.status is Status.UNJUDGED} <= RANDOM | NEEDS_A_CARD


def test_a_wrong_number_of_parameters_names_the_right_one(tmp_path):
    """Whoever shrinks another architecture reads off what to set."""
    run = load_run(find_run("full/llama-7b-qlora"), [*tiny.SHRUNK, "model.architecture.num_hidden_layers=1"])

    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run)

    assert trace.main.end.outcome == "misconfigured"
    assert "model.parameters: should be 69824, as model.architecture has it (got 106816)" in trace.main.end.detail


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.architecture.num_hidden_layers=0", "model.architecture.num_hidden_layers: should be greater than 0"),
        ("model.architecture.num_hidden_layers.x=2", "model.architecture.num_hidden_layers is not a section"),
        ("model.architectur.hidden_size=2", "did you mean 'architecture'"),
        ("model.name=other", "cannot be written"),
        ("model.sources=[{kind: rando}]", "did you mean 'random'"),
    ],
)
def test_a_wrong_key_inside_the_model_is_named(setting, words):
    """As precisely as one of the run's own."""
    with pytest.raises(ConfigError, match=f"--set {setting.partition('=')[0]}.*{words}".replace("[", r"\[")):
        load_run(find_run("full/llama-7b-qlora"), [setting])


def test_the_recipe_is_the_documented_one():
    """What a person copies is what is tested."""
    page = " ".join((shipped_folder() / "docs" / "troubleshooting.md").read_text().split())

    assert all(setting in page for setting in tiny.SHRUNK)


@pytest.mark.parametrize("tier", ["memory", "full"])
def test_the_recipe_stops_at_no_other_tiers_run(tier):
    """A strategy that the model does not take is another tier's matter."""
    _, unusable = read_runs("convergence", tiny.SHRUNK)
    assert not [file.name for file in unusable if mentions(file.path, tier)]


def test_the_number_of_parameters_is_counted(tmp_path):
    """The recipe's is that of the folder that was drawn."""
    from tunecheck import assets as models

    model = shrunk("quick/smollm2-135m-qlora").model
    folder = models.resolve(model, allow_random=True).path

    assert parameter_count(folder, tied=True) == model.parameters
