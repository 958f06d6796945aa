"""Configuration: every file on disk loads, and every mistake is named with its place and the way out."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import shipped
from pydantic_core.core_schema import ErrorType
from ruamel.yaml import YAML

from tunecheck.checks import CHECKS
from tunecheck.config import (
    TIERS,
    RunFile,
    find_run,
    load_data,
    load_model,
    load_run,
    mentions,
    read_runs,
    run_files,
    run_sources,
    with_limits,
)
from tunecheck.config.__main__ import json_schema
from tunecheck.config.comparisons import VARIED
from tunecheck.config.problems import WORDS
from tunecheck.config.schema import Run, Training
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import shipped_folder
from tunecheck.core.units import parse_bytes, parse_seconds
from tunecheck.models.shapes import tensor_shapes
from tunecheck.plugin import checks_of_tier
from tunecheck.strategies import STRATEGIES, trained_shapes

CONFIGS = shipped_folder() / "configs"
MODELS = sorted(path.stem for path in (CONFIGS / "models").glob("*.yaml"))
DATA_SETS = sorted(path.stem for path in (CONFIGS / "data").glob("*.yaml"))
BASE = """\
model: smollm2-135m
data: rust-python-facts
strategy: qlora
quantization: {}
lora: {target_modules: [q_proj, v_proj]}
training:
  max_steps: 10
  micro_batch_size: 2
  learning_rate: 2e-4
"""


def write(folder: Path, text: str | bytes = BASE, tier: str = "quick") -> Path:
    """A run's file of this text in a folder of its tier's name."""
    path = folder / tier / "run.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(folder: Path, text: str | bytes = BASE, *overrides: str, tier: str = "quick") -> list[str]:
    """What is wrong with a run's file of this text, the folder left out."""
    path = write(folder, text, tier)
    with pytest.raises(ConfigError) as caught:
        load_run(path, overrides)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


# What is on disk.


@pytest.mark.parametrize("source", run_sources(), ids=lambda source: source.name)
def test_every_run_on_disk_loads_and_is_asked_something(source):
    """The file's folder is the tier, its name the id, and there are checks to judge it by."""
    run = load_run(source)

    assert (run.tier, run.id) == (source.path.parent.name, source.id)
    assert run.name == f"{run.tier}/{run.id}"
    assert len(run.resolved_checks()) >= 18


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_has_runs_with_unique_ids(tier):
    """A tier without a run would prove nothing; equal ids would overwrite each other's reports."""
    runs = shipped.load_runs(tier)

    assert runs
    assert len({run.stem for run in runs}) == len(runs) == len(run_sources(tier))


def test_tiers_are_those_of_the_schema():
    """The table of tiers and the type of Run.tier name the same."""
    assert list(TIERS) == list(get_args(Run.model_fields["tier"].annotation))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_on_disk_loads(name):
    """Its name is the file's, and its heads divide its width."""
    model = load_model(name)

    assert model.name == name
    assert model.architecture.hidden_size % model.architecture.num_attention_heads == 0


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_data_set_on_disk_loads_and_its_files_exist(name):
    """Data.file gives files that are there, the resolved names do not depend on the machine."""
    data = load_data(name)

    assert data.name == name
    assert all(data.file(split).is_file() for split in ("train", "heldout"))
    below_data = [Path(file) for file in (data.train, data.heldout) if not Path(file).is_absolute()]
    assert all(file.parts[0] == "data" for file in below_data)


@pytest.mark.parametrize(("name", "folder"), shipped.DATA_SETS.items())
def test_shipped_rows_have_the_same_name_on_every_machine(name, folder):
    """Relative to configs/, so that the fingerprint is the same too."""
    data = load_data(name)

    assert (data.train, data.heldout) == (f"data/{folder}/train.jsonl", f"data/{folder}/heldout.jsonl")


def test_find_run_takes_a_name_or_an_id_of_one_tier():
    """quick/smollm2-135m-qlora, or llama-7b-qlora alone."""
    assert find_run("quick/smollm2-135m-qlora").path == CONFIGS / "quick" / "smollm2-135m-qlora.yaml"
    assert find_run("llama-7b-qlora").path == CONFIGS / "full" / "llama-7b-qlora.yaml"


def test_find_run_names_the_nearest():
    """A misspelt name is answered with the one that was meant, any other with three."""
    with pytest.raises(ConfigError) as caught:
        find_run("quick/smolm2-135m-qlora")

    assert str(caught.value) == "no run is called 'quick/smolm2-135m-qlora' (did you mean 'quick/smollm2-135m-qlora'?)"
    shown = r"no run is called '\w+'; nearest: \S+, \S+, \S+; `tunecheck list` shows all \d\d$"
    with pytest.raises(ConfigError, match=shown):
        find_run("xyz")
    with pytest.raises(ConfigError, match=shown) as caught:
        find_run("smol")
    assert str(caught.value).count("smol") == 4


def test_find_run_does_not_choose_between_tiers():
    """An id of several tiers is refused with their names."""
    with pytest.raises(ConfigError, match="is in several tiers: name quick/smollm2-135m-qlora or convergence/"):
        find_run("smollm2-135m-qlora")


# A file of several runs.

SEVERAL = BASE.replace(
    "strategy: qlora\n", "compare: {lora: {}, dora: {strategy: lora, lora.use_dora: true}, full: {}}\n"
)


def of_file(folder, text, overrides=()):
    """Entry to run of this file."""
    path = write(folder, text)
    return {entry: load_run(RunFile(path, entry), overrides) for entry in ("lora", "dora", "full")}


def test_an_entry_is_a_run_with_what_it_sets(tmp_path):
    """Its strategy is its name unless it says otherwise; sections that the strategy does not use are left out."""
    runs = of_file(tmp_path, SEVERAL)

    assert [run.strategy for run in runs.values()] == ["lora", "lora", "full"]
    assert [run.lora and run.lora.use_dora for run in runs.values()] == [False, True, None]
    assert {run.quantization for run in runs.values()} == {None}
    assert {run.comparison for run in runs.values()} == {"quick/run"}
    assert [(run.id, run.entry) for run in runs.values()] == [(f"run-{name}", name) for name in runs]
    assert len({run.fingerprint for run in runs.values()}) == 3


def test_an_override_goes_to_every_run_that_uses_it(tmp_path):
    """So that --set lora.r=4 can be said of a whole tier."""
    runs = of_file(tmp_path, SEVERAL, ["lora.r=4", "training.seed=3"])

    assert [run.lora and run.lora.r for run in runs.values()] == [4, 4, None]
    assert {run.training.seed for run in runs.values()} == {3}


def test_a_file_of_several_runs_is_asked_for_by_entry(tmp_path):
    """The message names them."""
    assert problems(tmp_path, SEVERAL) == [
        "run.yaml: compares several runs, name one of them: quick/run-lora, quick/run-dora, quick/run-full"
    ]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("", "run.yaml:3:1: compare: should be a section with an entry for each run"),
        ("{}", "run.yaml:3:1: compare: should be a section with an entry for each run"),
        ("3", "run.yaml:3:1: compare: should be a section with an entry for each run"),
        ("{lora: 3}", "run.yaml:3:11: compare.lora: should be a section with what this run sets, or {} (got 3)"),
        ("{Lo/ra: {}}", "run.yaml:3:11: compare.Lo/ra: becomes a part of file names"),
        ("{lora: {model: x}}", "run.yaml:3:18: compare.lora.model: model applies to all runs of a comparison"),
        ("{lora: {trainig.seed: 1}}", "an entry may set: strategy, profile, lora, quantization, training, "),
        ("{lora: {trainig.seed: 1}}", " (did you mean 'training'?)"),
        ("{lora: {training.max_step: 3}}", "training.max_step: unknown key (did you mean 'max_steps'?)"),
        ("{lara: {}}", "run.yaml:3:11: strategy: should be 'full', "),
    ],
)
def test_a_wrong_comparison_is_named_with_its_place(tmp_path, entries, expected):
    """Before anything is trained."""
    text = BASE.replace("strategy: qlora\n", f"compare: {entries}\n")
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_run(RunFile(path, entries.strip("{").partition(":")[0] if ":" in entries else ""))

    assert expected in str(caught.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("{checks.finite: off}", "checks.finite"),
        ("{checks: {loss_falls: {min_fall: -1e9}}}", "checks"),
        ("{checks: {}}", "checks"),
        ("{checks.loss_falls.min_fall: -1e9}", "checks.loss_falls.min_fall"),
        ("{data.heldout: rust-python-facts/train.jsonl}", "data.heldout"),
        ("{data.train_rows: 1}", "data.train_rows"),
        ("{data: seven-rust-facts}", "data"),
        ("{model.architecture.num_hidden_layers: 1}", "model.architecture.num_hidden_layers"),
        ("{model.parameters: 5}", "model.parameters"),
        ("{evaluation.rows: 1}", "evaluation.rows"),
        ("{probes.oracle_steps: []}", "probes.oracle_steps"),
        ("{device: cpu}", "device"),
        ("{allow_random_weights: true}", "allow_random_weights"),
        ("{training.max_steps: 1}", "training.max_steps"),
        ("{training: {max_steps: 1, learning_rate: 1e-3}}", "training.max_steps"),
        ("{'': 1}", ""),
    ],
)
def test_an_entry_cannot_loosen_its_own_judge(tmp_path, entry, named):
    """Limits, data, model, evaluation and the number of steps are those of the whole comparison."""
    path = write(tmp_path, BASE.replace("strategy: qlora\n", f"compare: {{lora: {entry}, full: {{}}}}\n"))
    with pytest.raises(ConfigError) as caught:
        load_run(RunFile(path, "lora"))

    [problem] = caught.value.problems
    assert f": {named} applies to all runs of a comparison: write it next to compare; an entry may set: " in problem


def test_an_entry_may_set_what_a_comparison_varies(tmp_path):
    """Whole sections, single keys below them, and what the run needs of the machine."""
    entry = "{strategy: full, training.precision: fp32, fallback: cpu, vram: 4GiB, deadline: 5min}"
    path = write(
        tmp_path, BASE.replace("strategy: qlora\n", f"compare: {{a: {entry}, b: {{trainer: transformers}}}}\n")
    )
    run = load_run(RunFile(path, "a"))

    assert (run.training.precision, run.fallback, run.vram, run.deadline) == ("fp32", ["cpu"], 4 * 2**30, 300)


def test_find_run_takes_an_entry_of_a_comparison():
    """By the name that a report shows."""
    found = find_run("convergence/strategies-seven-facts-dora")

    assert (found.path.stem, found.entry) == ("strategies-seven-facts", "dora")
    assert load_run(found).lora.use_dora


@pytest.mark.parametrize("name", ["strategies-seven-facts", "strategies-instructions", "smollm2-135m-strategies"])
def test_comparisons_go_from_the_lightest_to_the_heaviest(name):
    """By what each trains of its model."""
    runs = [run for tier in TIERS for run in shipped.load_runs(tier) if run.comparison.endswith(f"/{name}")]
    shapes = tensor_shapes(runs[0].model.architecture)
    trained = [sum(map(math.prod, trained_shapes(run, shapes))) for run in runs]

    assert len(runs) >= 3
    assert trained == sorted(trained)


def test_only_runs_of_the_tier_that_is_asked_for_are_collected():
    """A run that is `also_in` that tier is; most of a collection's time would go into the others."""

    def collected(asked: str) -> set[str]:
        options = SimpleNamespace(markexpr=asked, run=[], set=[], card=None)
        return {parameters.values[0].comparison for parameters in checks_of_tier("convergence", options)}

    assert collected("") == collected("convergence") == {run.comparison for run in shipped.load_runs("convergence")}
    assert collected("quick") == set()
    assert collected("extended") == {"convergence/strategies-seven-facts"}


def test_a_file_is_of_another_tier_only_where_also_in_says_so(tmp_path):
    """Not where the tier's name is a strategy's, or stands in a comment."""
    path = tmp_path / "run.yaml"
    path.write_text("also_in: [extended] # not memory\ncompare: {full: {}}\n")
    assert [tier for tier in TIERS if mentions(path, tier)] == ["extended"]
    path.write_text("also_in:\n  - extended\n  - full\ncompare: {memory: {}}\n")
    assert [tier for tier in TIERS if mentions(path, tier)] == ["extended", "full"]


# Fingerprint and features.

ALTERED: dict[str, object] = {
    "max_steps": 11,
    "loss_chunk_tokens": 64,
    "deterministic": True,
    "micro_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "learning_rate": 3e-4,
    "lr_scheduler": "linear",
    "warmup_ratio": 0.5,
    "weight_decay": 0.1,
    "weight_decay_on": "all_but_norms_and_biases",
    "adam_beta1": 0.8,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-6,
    "max_grad_norm": "null",
    "precision": "fp32",
    "gradient_checkpointing": "true",
    "attention": "eager",
    "cudnn_attention": "false",
    "offload": "activations",
    "seed": 1,
    "threads": 1,
}


def test_every_training_key_has_an_altered_value():
    """A new key of `training` must come to the test below."""
    assert set(ALTERED) == set(Training.model_fields)


@pytest.mark.parametrize(
    "override",
    [
        *(f"training.{key}={value}" for key, value in ALTERED.items()),
        "lora.r=4",
        "quantization.quant_type=fp4",
        "data=rust-python-facts-canary",
        "data.max_length=64",
        "model=tinyllama-1.1b",
        "model.architecture.num_hidden_layers=2",
        "probes.repeat_steps=1",
        "evaluation.rows=2",
    ],
)
def test_the_fingerprint_changes_with_what_is_trained(tmp_path, override):
    """Equal fingerprints train the same thing."""
    path = write(tmp_path)

    assert load_run(path, [override]).fingerprint != load_run(path).fingerprint


@pytest.mark.parametrize("override", ["deadline=1h", "checks.loss_falls.min_fall=0.5", "checks.finite=off"])
def test_the_fingerprint_is_blind_to_limits_and_deadline(tmp_path, override):
    """Judging with other limits does not make it another training."""
    path = write(tmp_path)

    assert re.fullmatch("[0-9a-f]{16}", load_run(path).fingerprint)
    assert load_run(path, [override]).fingerprint == load_run(path).fingerprint


def test_the_fingerprint_is_blind_to_the_name(tmp_path):
    """The same text under another id and tier trains the same."""
    other = tmp_path / "extended" / "another.yaml"
    other.parent.mkdir()
    other.write_text(BASE)

    assert load_run(other).fingerprint == load_run(write(tmp_path)).fingerprint


def test_the_fingerprint_is_the_same_in_every_checkout(tmp_path, monkeypatch):
    """No path of this machine is in the resolved run."""
    here = load_run(find_run("quick/smollm2-135m-qlora"))
    shutil.copytree(CONFIGS, tmp_path / "configs")
    monkeypatch.setattr("tunecheck.core.paths.project_folder", lambda: tmp_path)
    there = load_run(find_run("quick/smollm2-135m-qlora"))

    assert there.data.file("train").is_relative_to(tmp_path)
    assert (there, there.fingerprint) == (here, here.fingerprint)


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        (["strategy=lora", "quantization=null"], {"quantized"}),
        (["strategy=full", "quantization=null", "lora=null"], {"quantized", "adapters", "frozen", "trains_base"}),
        (
            ["model=qwen2-0.5b", "strategy=bitfit", "quantization=null", "lora=null"],
            {"quantized", "adapters", "trains_base"},
        ),
        (["training.max_steps=4"], {"several_steps"}),
        (["training.max_steps=50"], {"many_steps"}),
        (["training.max_steps=100"], {"many_steps", "long_run"}),
        (["probes.oracle_steps=[]"], {"oracle"}),
        (["lora.dropout=0.1"], {"oracle", "dropout"}),
        (["probes.directional_gradient=true"], {"directional"}),
        (["probes.directional_gradient=true", "lora.dropout=0.1"], {"oracle", "dropout"}),
        (["probes.repeat_steps=1"], {"repeat"}),
        (["probes.resume_from=1"], {"resume"}),
        (["probes.generate=true"], {"generate"}),
        (["probes.read_back=true"], {"read_back"}),
        (["probes.merge=true"], {"merge"}),
        (["data=rust-python-facts-canary"], set()),
        (["data=rust-python-facts-canary", "probes.generate=true"], {"generate", "canary"}),
    ],
)
def test_features_follow_the_settings(tmp_path, overrides, changed):
    """The words by which checks say what they apply to; `changed` are those that come or go."""
    path = write(tmp_path)

    assert load_run(path).features == {
        "suite_rows",
        "own_clock",
        "adapters",
        "frozen",
        "quantized",
        "oracle",
        "several_steps",
    }
    assert load_run(path, overrides).features ^ load_run(path).features == changed


def test_every_feature_a_check_asks_for_is_one_that_a_run_can_have(tmp_path):
    """A misspelt feature would leave the check out of every run."""
    overrides = [
        *(
            "data=rust-python-facts-canary",
            "probes={repeat_steps: 1, resume_from: 2, generate: true, memory_order: true, read_back: true, "
            "merge: true, directional_gradient: true, reference: true}",
            "fallback=[lean, cpu]",
        ),
        "training.gradient_checkpointing=true",
        "training.max_steps=100",
    ]

    path = write(tmp_path)
    base_learns = ["strategy=full", "quantization=null", "lora=null"]
    several = ["device=cpu", "parallel={engine: fsdp, processes: 2}", "probes={resume_from: 2, rescale_to: [1]}"]
    others = (["lora.dropout=0.1"], base_learns, several)
    possible = load_run(path, overrides).features.union(*(load_run(path, other).features for other in others))

    watched = {
        "user_code",
        "unknown_rows",
        "evaluates",
        "expectations",
        "resume_declared",
        "pairs",
    }  # of trainings that are not ours

    assert frozenset().union(*(check.features() - {"named"} for check in CHECKS.values())) <= possible | watched


def test_a_loaded_run_cannot_be_changed(tmp_path):
    """What was checked stays what it was."""
    run = load_run(write(tmp_path))

    with pytest.raises(ValueError, match="frozen"):
        run.training.max_steps = 3


# Mistakes in a file: the whole message, place first.


def test_scientific_notation_is_a_number(tmp_path):
    """PyYAML would read 2e-4 as text."""
    assert load_run(write(tmp_path)).training.learning_rate == 2e-4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "training:",
            "profile: [lean]\ntraining:",
            "run.yaml:6:1: profile: should be 'plain' or 'lean' (got ['lean']) (did you mean 'lean'?)",
        ),
        ("2e-4", "-2e-4", "run.yaml:9:3: training.learning_rate: should be greater than 0 (got -0.0002)"),
        ("2e-4", ".nan", "run.yaml:9:3: training.learning_rate: should be a finite number (got nan)"),
        ("2e-4", ".inf", "run.yaml:9:3: training.learning_rate: should be a finite number (got inf)"),
        ("2e-4", "fast", "run.yaml:9:3: training.learning_rate: should be a valid number (got 'fast')"),
        (": 10", ": 10.0", "run.yaml:7:3: training.max_steps: should be a valid integer (got 10.0)"),
        (": 10", ": '10'", "run.yaml:7:3: training.max_steps: should be a valid integer (got '10')"),
        (": 10", ": yes", "run.yaml:7:3: training.max_steps: should be a valid integer (got 'yes')"),
        (": 10", ": 2026-11-21", "run.yaml:7:3: training.max_steps: should be a valid integer (got '2026-11-21')"),
        (
            "strategy: qlora",
            "strategy: qlorra",
            f"run.yaml:3:1: strategy: should be {', '.join(map(repr, list(STRATEGIES)[:-1]))} "
            "or 'qlora' (got 'qlorra') (did you mean 'qlora'?)",
        ),
        (
            "[q_proj, v_proj]",
            "q_proj",
            "run.yaml:5:8: lora.target_modules: should be a list, such as [a, b] (got 'q_proj')",
        ),
        ("q_proj,", "1,", "run.yaml:5:25: lora.target_modules.0: should be a valid string (got 1)"),
        (
            "{target_modules: [q_proj, v_proj]}",
            "8",
            "run.yaml:5:1: lora: should be a section, that is a mapping of keys to values (got 8)",
        ),
        ("  max_steps: 10\n", "", "run.yaml:6:1: training.max_steps: is missing"),
        ("strategy: qlora\n", "", "run.yaml:1:1: strategy: is missing"),
        ("model: smollm2-135m\n", "", "run.yaml:1:1: model: is missing"),
        (
            "lora: {target_modules: [q_proj, v_proj]}\n",
            "",
            "run.yaml:1:1: lora: is missing: strategy qlora needs this section",
        ),
        (
            "strategy: qlora",
            "strategy: lora",
            "run.yaml:4:1: quantization: strategy lora does not use this section: remove it, or change strategy",
        ),
        (
            "training:",
            "id: x\ntraining:",
            "run.yaml:6:1: id: cannot be written: it follows from the file's name and folder ('run')",
        ),
        (
            "training:",
            "tier: full\ntraining:",
            "run.yaml:6:1: tier: should be that of the file's folder, 'quick': leave it out (got 'full')",
        ),
        ("training:", "1: 2\ntraining:", "run.yaml:6:1: 1: Keys should be strings (got 1)"),
        (
            "smollm2-135m",
            "smollm2-135",
            "run.yaml:1:1: model: configs/models has no 'smollm2-135' (did you mean 'smollm2-135m'?); "
            f"known: {', '.join(MODELS)}",
        ),
        ("smollm2-135m", "7", f"run.yaml:1:1: model: configs/models has no 7; known: {', '.join(MODELS)}"),
        (
            "smollm2-135m",
            "../data/rust-python-facts",
            f"run.yaml:1:1: model: configs/models has no '../data/rust-python-facts'; known: {', '.join(MODELS)}",
        ),
        (
            "rust-python-facts",
            "rust-python",
            "run.yaml:2:1: data: configs/data has no 'rust-python' (did you mean 'rust-python-facts'?); "
            f"known: {', '.join(DATA_SETS)}",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place(tmp_path, old, new, expected):
    """File, line, column, dotted key, rule and value; one line, with nothing that only follows from it."""
    assert BASE.count(old) >= 1

    [found] = problems(tmp_path, BASE.replace(old, new, 1))
    assert found.startswith(expected)
    assert found == expected


def test_gradients_that_the_scaler_cannot_unscale_are_refused(tmp_path):
    """torch's GradScaler raises on the gradients of fp16 parameters."""
    overrides = ["training.precision=fp16", "lora.adapter_dtype=model"]
    with pytest.raises(ConfigError, match="torch's GradScaler unscales no gradients in fp16"):
        load_run(write(tmp_path), overrides)
    assert load_run(write(tmp_path), overrides[:1]).training.precision == "fp16"


def test_an_unknown_key_is_answered_with_the_nearest_and_the_known(tmp_path):
    """Keys that the file's name gives are not offered."""
    [found] = problems(tmp_path, BASE + "dead_line: 10min\n")

    assert found == (
        "run.yaml:10:1: dead_line: unknown key (did you mean 'deadline'?); known keys: allow_random_weights, "
        "also_in, checks, data, deadline, device, evaluation, fallback, ignore, lora, model, parallel, probes, "
        "profile, quantization, strategy, trainer, training, vram"
    )


def test_a_duplicate_key_is_a_problem_beside_the_others(tmp_path):
    """Both places are named, and the rest of the file is read all the same."""
    text = BASE.replace("2e-4", "-1").replace("  micro", "  max_steps: 20\n  micro")

    assert problems(tmp_path, text) == [
        "run.yaml:8:3: training.max_steps: given twice, first at run.yaml:7:3: keep one of them",
        "run.yaml:10:3: training.learning_rate: should be greater than 0 (got -1)",
    ]


def test_a_section_given_twice_is_one_problem(tmp_path):
    """Its keys are not accused of being given twice as well."""
    assert problems(tmp_path, BASE + "lora: {target_modules: [k_proj]}\n") == [
        "run.yaml:10:1: lora: given twice, first at run.yaml:5:1: keep one of them"
    ]


def test_all_problems_come_in_one_message(tmp_path):
    """References, keys, values, limits and overrides together."""
    text = BASE.replace("smollm2-135m", "smol").replace("facts", "fax").replace("2e-4", "-1")
    text += "checks: {loss_falls: {min_fall: a lot}, los: off}\n"
    found = problems(tmp_path, text, "training.max_steps=x", "lora.rank=3", "nonsense")

    keys = ["model", "data", "training.learning_rate", "checks.loss_falls.min_fall", "checks.los", "training.max_steps"]
    assert len(found) == len(keys) + 2
    for key in keys:
        assert any(f": {key}: " in problem for problem in found), key
    assert any(problem.startswith("--set lora.rank=3: lora.rank: unknown key") for problem in found)
    assert "--set nonsense: write it as section.key=value" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE + "probes: [1,\n", "run.yaml:11:1: not valid YAML: expected the node content, but found '<stream end>'"),
        (BASE + "\tdevice: cpu\n", "run.yaml:10:1: not valid YAML: found character '\\t' that cannot start any token"),
        (BASE + "---\na: 1\n", "run.yaml:10:1: not valid YAML: but found another document"),
        (
            BASE + "vram: !!python/name:os.system x\n",
            "run.yaml:10:7: not valid YAML: tag !!python/name:os.system: write only sections, lists, texts, numbers",
        ),
        (
            BASE + "checks: !!set {}\n",
            "run.yaml:10:9: not valid YAML: tag !!set: write only sections, lists, texts, numbers",
        ),
        (BASE + 'device: "\\ud83e"\n', "run.yaml:10:9: not valid YAML: '\\ud83e' is half of a surrogate pair"),
        (BASE + "lora: \x00\n", "run.yaml: not valid YAML: unacceptable character #x0000"),
        ("[" * 1000, "run.yaml: not valid YAML: nested more than 40 levels deep"),
        ("", "run.yaml:1:1: a mapping of keys to values is expected"),
        ("# nothing\n", "run.yaml:1:1: a mapping of keys to values is expected"),
        ("- a\n- b\n", "run.yaml:1:1: a mapping of keys to values is expected"),
        (
            "training: &again {inner: *again}\n",
            "run.yaml:1:1: training.inner is an alias of a section that contains it",
        ),
        (b"model: \xff\n", "run.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff in position 7"),
    ],
    ids=[
        *(
            "open bracket",
            "tab",
            "two documents",
            "tag",
            "set",
            "half a character",
            "control character",
            "too deep",
            "empty",
            "comment",
        ),
        *("list", "circle", "not UTF-8"),
    ],
)
def test_what_is_no_mapping_of_keys_is_one_problem(tmp_path, text, expected):
    """Broken YAML stops at the place where it breaks; nothing is said of the keys that are then missing."""
    [found] = problems(tmp_path, text)

    assert found.startswith(expected)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A folder in a file's place, and nothing at all."""
    (tmp_path / "quick" / "run.yaml").mkdir(parents=True)

    with pytest.raises(ConfigError, match=r"run\.yaml: cannot be read: Is a directory$"):
        load_run(tmp_path / "quick" / "run.yaml")
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file or directory$"):
        load_run(tmp_path / "quick" / "absent.yaml")


@pytest.mark.parametrize("tier", ["", "tier: fast\n", "tier: [quick]\n"])
def test_a_run_outside_a_tiers_folder_needs_a_tier(tmp_path, tier):
    """Neither folder nor file names one: what to write is said, by every command that takes a file."""
    path = write(tmp_path, tier + BASE, "slow")
    words = f"tier: should be one of {', '.join(TIERS)}; write `tier: quick` into the file"
    for load in (load_run, lambda path: find_run(str(path))):
        with pytest.raises(ConfigError, match=re.escape(words)):
            load(path)


@pytest.mark.parametrize(("text", "words"), [("", "a mapping"), ("- a", "a mapping"), ("a: [", "not valid YAML")])
def test_a_broken_file_outside_a_tiers_folder_is_named_as_broken(tmp_path, text, words):
    """Its tier cannot be read: that it lacks one would send the reader to the wrong line."""
    (tmp_path / "mine.yaml").write_text(text)

    with pytest.raises(ConfigError, match=words):
        find_run(str(tmp_path / "mine.yaml"))


def test_a_run_outside_a_tiers_folder_is_of_the_tier_that_its_file_names(tmp_path):
    """In any folder, with the same checks and the same fingerprint as in the tier's folder."""
    file = find_run(str(write(tmp_path, "tier: convergence\n" + BASE, "anywhere")))
    (run,), unusable = read_runs("convergence", only=[file])

    assert (run.name, unusable) == ("convergence/run", {})
    assert run == load_run(file)
    assert run.fingerprint == load_run(write(tmp_path, BASE, "convergence")).fingerprint
    with pytest.raises(ConfigError, match="--card 8gb: applies to quick and convergence only"):
        load_run(write(tmp_path, "tier: memory\n" + BASE, "anywhere"), card="8gb")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "probes: {oracle_steps: [-1, 0, 10]}",
            "probes.oracle_steps: should be before training.max_steps, 10 (got 10)",
        ),
        ("evaluation: {at: [3, 12, 40]}", "evaluation.at: should be before training.max_steps, 10 (got 12, 40)"),
        ("probes: {resume_from: 10}", "probes.resume_from: should be before training.max_steps, 10 (got 10)"),
        ("probes: {repeat_steps: 11}", "probes.repeat_steps: should be at most training.max_steps, 10 (got 11)"),
    ],
)
def test_a_step_that_will_not_come_is_refused(tmp_path, line, expected):
    """The evidence would silently be missing. The last step that comes is accepted."""
    [found] = problems(tmp_path, f"{BASE}{line}\n")

    assert re.fullmatch(rf"run\.yaml:10:\d+: {re.escape(expected)}", found)
    assert load_run(write(tmp_path, BASE + "probes: {oracle_steps: [9], resume_from: 9, repeat_steps: 10}\n"))


def test_a_warm_up_that_never_ends_is_refused(tmp_path):
    """One step with warm-up would train at rate 0."""
    [found] = problems(tmp_path, BASE, "training.max_steps=1", "training.warmup_ratio=0.1", "probes.oracle_steps=[0]")

    assert found.endswith("should leave at least one step at the full learning rate (got 0.1 of 1 steps, rounded up)")


@pytest.mark.parametrize("key", ["instruction", "response"])
def test_a_canary_is_not_blank(tmp_path, key):
    """A model that ends at once would have learned it."""
    [found] = problems(tmp_path, BASE, "data=rust-python-facts-canary", f"data.canary.{key}=' '")

    assert f"data.canary.{key}: should match pattern" in found


def test_a_canary_needs_a_neighbour(tmp_path):
    """It would be the only row of every micro-batch."""
    [found] = problems(tmp_path, BASE, "data=rust-python-facts-canary", "training.micro_batch_size=1")

    assert found.startswith(
        "--set training.micro_batch_size=1: training.micro_batch_size: should be at least 2: data.canary"
    )


@pytest.mark.parametrize("kind", WORDS)
def test_own_wording_is_for_errors_that_pydantic_has(kind):
    """A renamed error type would fall back to pydantic's words unnoticed."""
    assert kind in get_args(ErrorType)


# Files that a run names.


def test_a_mistake_in_a_models_file_is_named_there(tmp_path, monkeypatch):
    """Not at the line of the run that names it; a missing key is looked for in its file too."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    monkeypatch.setattr("tunecheck.core.paths.project_folder", lambda: tmp_path)
    model = tmp_path / "configs" / "models" / "smollm2-135m.yaml"
    text = model.read_text()

    model.write_text(text.replace("hidden_size: 576", "hidden_size: wide").replace("parameters:", "name: x\nparams:"))
    with pytest.raises(ConfigError) as caught:
        load_run(find_run("quick/smollm2-135m-qlora"))
    first = text.splitlines().index("parameters: 134515008") + 1
    assert len(caught.value.problems) == 4
    assert f"configs/models/smollm2-135m.yaml:{first}:1: model.name: cannot be written" in str(caught.value)
    assert f"configs/models/smollm2-135m.yaml:{first}:1: model.parameters: is missing" in str(caught.value)
    assert "model.architecture.hidden_size: should be a valid integer (got 'wide')" in str(caught.value)
    assert (
        "model.params: unknown key (did you mean 'parameters'?); known keys: architecture, parameters, sources"
        in str(caught.value)
    )

    model.write_text("a: [\n")
    with pytest.raises(ConfigError) as caught:
        load_run(find_run("quick/smollm2-135m-qlora"))
    [found] = caught.value.problems
    assert found.startswith("configs/models/smollm2-135m.yaml:2:1: not valid YAML")
    with pytest.raises(ConfigError, match=r"configs/models/smollm2-135m\.yaml:2:1: not valid YAML"):
        load_model("smollm2-135m")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{kind: torrent}",
            "model.sources.0.kind: should be one of 'local', 'hub', 'package', 'random' (got 'torrent')",
        ),
        ("{kind: locl}", "(got 'locl') (did you mean 'local'?)"),
        ("{path: x}", "model.sources.0.kind: is missing"),
        ("{kind: random, seed: -1}", "model.sources.0.seed: should be greater than or equal to 0 (got -1)"),
        (
            "{kind: random, sed: 1}",
            "model.sources.0.sed: unknown key (did you mean 'seed'?); known keys: kind, seed",
        ),
        ("{kind: local, path: x, hub: y}", "model.sources.0.hub: unknown key; known keys: kind, path"),
        ("{kind: hub, id: a/b, revision: main}", "model.sources.0.revision: should match pattern"),
        ("5", "model.sources.0: should be a section, that is a mapping of keys to values (got 5)"),
    ],
)
def test_a_wrong_source_is_named_without_pydantics_tag(tmp_path, source, expected):
    """The path is the one in the file, the known keys are those of its kind."""
    [found] = problems(tmp_path, BASE, f"model.sources=[{source}]")

    assert expected in found


def test_fallback_ids_are_a_list():
    """In the YAML a list, in the run a tuple."""
    sources = load_model("llama-7b").sources

    assert next(source.fallback_ids for source in sources if source.kind == "hub")[0] == "NousResearch/Llama-2-7b-hf"


@pytest.mark.parametrize("load", [load_model, load_data])
def test_a_name_that_there_is_not_is_answered_with_the_known(load):
    """Without a file there is no place to give."""
    with pytest.raises(ConfigError, match=r"^configs/(models|data) has no 'rust-python-fact'.*; known: "):
        load("rust-python-fact")


def test_a_users_own_data_works(tmp_path):
    """An absolute path, in a run or by --set."""
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"instruction": "a", "response": "b"}\n' * 4)
    run = load_run(write(tmp_path), [f"data.train={rows}"])

    assert run.data.file("train") == rows
    assert run.data.file("heldout") == CONFIGS / "data" / "rust-python-facts" / "heldout.jsonl"


def test_a_data_file_that_is_not_there_is_found_before_training(tmp_path):
    """A relative path starts beside the data set's YAML, whoever wrote it."""
    assert problems(tmp_path, BASE, "data.train=mine.jsonl") == [
        "--set data.train=mine.jsonl: data.train: "
        "there is no file 'mine.jsonl' (a relative path starts at configs/data)"
    ]


# Checks.


def test_off_is_text_and_leaves_a_check_out(tmp_path):
    """YAML 1.2 reads off as a word; a check with limits is asked with them."""
    run = load_run(write(tmp_path, BASE + "checks: {finite: off, loss_falls: {min_fall: 0.25}}\n"))

    assert run.checks["finite"] == "off"
    assert "finite" not in run.resolved_checks()
    assert run.resolved_checks()["loss_falls"].min_fall == 0.25


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("los_falls: off", "10:10: checks.los_falls: no check is called 'los_falls' (did you mean 'loss_falls'?)"),
        ("1: off", "10:10: checks.1: no check is called '1'; `tunecheck explain` lists all"),
        ("loss_falls: {min_fall: x}", "10:23: checks.loss_falls.min_fall: should be a valid number (got 'x')"),
        ("loss_falls: {min_fall: true}", "10:23: checks.loss_falls.min_fall: should be a valid number (got True)"),
        (
            "loss_falls: {min_fall: 2026-11-21}",
            "10:23: checks.loss_falls.min_fall: should be a valid number (got '2026",
        ),
        ("loss_falls: {min_fall: .inf}", "10:23: checks.loss_falls.min_fall: should be a finite number (got inf); off"),
        ("loss_falls: {}", "10:10: checks.loss_falls.min_fall: is missing"),
        (
            "heldout_improves: {min_fal: 0.1}",
            "10:29: checks.heldout_improves.min_fal: unknown limit (did you mean 'min_fall'?); known limits: min_fall",
        ),
        ("finite: {most: 1}", "10:19: checks.finite.most: unknown limit; known limits: none"),
        (
            "finite: false",
            "10:10: checks.finite: should be a section with its limits, {} for its defaults, or off (got False)",
        ),
        (
            "finite: null",
            "10:10: checks.finite: should be a section with its limits, {} for its defaults, or off (got None)",
        ),
        (
            "canary_learned: {}",
            "10:10: checks.canary_learned: check 'canary_learned' does not apply to this run: it has no",
        ),
    ],
)
def test_a_wrong_limit_is_named_with_its_place(tmp_path, checks, expected):
    """Unknown check, unknown, mistyped or missing limit, and a check without evidence."""
    [found] = problems(tmp_path, f"{BASE}checks: {{{checks}}}\n")

    assert found.startswith(f"run.yaml:{expected}")


def test_checks_are_a_section(tmp_path):
    """A list of names is not enough."""
    [found] = problems(tmp_path, BASE + "checks: [finite]\n")

    assert found.startswith("run.yaml:10:1: checks: should be a section")


def test_with_limits_changes_only_what_is_said():
    """The trace's own limits stay, and stay untouched."""
    recorded = {"loss_falls": {"min_fall": 0.3}, "finite": "off"}
    changed = with_limits(recorded, ["checks.loss_falls.min_fall=0.5"], {"adapters"})

    assert changed == {"loss_falls": {"min_fall": 0.5}, "finite": "off"}
    assert recorded["loss_falls"] == {"min_fall": 0.3}


def test_with_limits_names_every_problem():
    """Another key than checks.*, a wrong type, an unknown check, one that the run has no evidence for."""
    overrides = ["training.max_steps=3", "checks.loss_falls.min_fall=x", "checks.nope=off", "checks.canary_learned={}"]
    with pytest.raises(ConfigError) as caught:
        with_limits({}, overrides, {"adapters"})

    training, loss, unknown, canary = caught.value.problems
    assert training == ("--set training.max_steps=3: only limits can be set here, as checks.NAME.LIMIT=VALUE")
    assert loss == (
        "--set checks.loss_falls.min_fall=x: checks.loss_falls.min_fall: should be a valid number (got 'x')"
    )
    assert unknown.startswith("--set checks.nope=off: checks.nope: no check is called 'nope'")
    assert canary.endswith("check 'canary_learned' does not apply to this run: it has no canary")


# --set.


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("training.max_steps=3", lambda run: run.training.max_steps, 3),
        ("training.learning_rate=1e-3", lambda run: run.training.learning_rate, 1e-3),
        ("training.max_grad_norm=null", lambda run: run.training.max_grad_norm, None),
        ("training.max_grad_norm=", lambda run: run.training.max_grad_norm, None),
        ("lora.target_modules=[k_proj]", lambda run: run.lora.target_modules, ["k_proj"]),
        ("evaluation.at=[1, 2]", lambda run: run.evaluation.at, [1, 2]),
        ("probes={generate: true}", lambda run: run.probes.generate, True),
        ("device=cpu", lambda run: run.device, "cpu"),
        ("deadline=2min", lambda run: run.deadline, 120),
        ("vram=2GiB", lambda run: run.vram, 2 * 1024**3),
        ("model=tinyllama-1.1b", lambda run: run.model.architecture.num_hidden_layers, 22),
        ("model.architecture.num_hidden_layers=2", lambda run: run.model.architecture.num_hidden_layers, 2),
        ("model.architecture.attention_bias=true", lambda run: run.model.architecture.attention_bias, True),
        ("data=rust-python-facts-canary", lambda run: run.data.canary is not None, True),
        ("data.max_length=64", lambda run: run.data.max_length, 64),
        ("data.canary={instruction: a, response: b=c}", lambda run: run.data.canary.response, "b=c"),
        ("checks.loss_falls.min_fall=0.5", lambda run: run.checks, {"loss_falls": {"min_fall": 0.5}}),
    ],
    ids=lambda value: value if isinstance(value, str) and "=" in value else "",
)
def test_a_key_can_be_set(tmp_path, override, read, expected):
    """Nested values, lists, sections that the file lacks, and the files that it names."""
    assert read(load_run(write(tmp_path), [override])) == expected


def test_the_last_override_wins_and_a_file_is_named_before_its_keys_are_set(tmp_path):
    """Whatever their order on the line."""
    overrides = ["model.architecture.num_hidden_layers=3", "model=tinyllama-1.1b", "training.seed=1", "training.seed=2"]
    run = load_run(write(tmp_path), overrides)

    assert (run.model.name, run.model.architecture.num_hidden_layers, run.training.seed) == ("tinyllama-1.1b", 3, 2)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.max_steps=ten", "training.max_steps: should be a valid integer (got 'ten')"),
        ("lora.target_modules=q_proj", "lora.target_modules: should be a list, such as [a, b] (got 'q_proj')"),
        ("training.max_steps.x=3", "training.max_steps is not a section, nothing can be set in it"),
        ("lora.target_modules.0=k_proj", "lora.target_modules is not a section, nothing can be set in it"),
        ("lora", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("lora..r=3", "write it as section.key=value"),
        ("lora.r=[1,", "'[1,' is not a YAML value: expected the node content, but found '<stream end>'"),
        ("lora={r: 1, r: 2}", "'{r: 1, r: 2}' is not a YAML value: value:1:8: r: given twice, first at value:1:2"),
        ("lora=&a {x: *a}", "'&a {x: *a}' is not a YAML value: value: x is an alias of a section that contains it"),
        ("device=2026-13-45", "device: should be 'auto', 'cuda' or 'cpu' (got '2026-13-45')"),
        ("training.lr=3", "training.lr: unknown key (did you mean 'learning_rate'?); known keys: adam_beta1, "),
        ("trainig.lr=3", "trainig: unknown key (did you mean 'training'?); known keys: allow_random_weights, "),
        ("id=other", "id: cannot be written: it follows from the file's name and folder ('run')"),
        (
            "model.name=other",
            "model.name: cannot be written: it follows from the file's name and folder ('smollm2-135m')",
        ),
        (
            "model=tinylama-1.1b",
            "model: configs/models has no 'tinylama-1.1b' (did you mean 'tinyllama-1.1b'?); known: ",
        ),
        ("model={name: x}", "model: configs/models has no {'name': 'x'}; known: "),
    ],
)
def test_a_wrong_override_is_named_as_it_was_written(tmp_path, override, expected):
    """One line, beginning with --set and the text."""
    [found] = problems(tmp_path, BASE, override)

    assert found.startswith(f"--set {override}: {expected}")


def test_one_override_is_wrong_once_for_a_whole_tier(monkeypatch, tmp_path):
    """Two runs of a tier do not say the same twice; what is wrong in one file only is said too."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    monkeypatch.setattr("tunecheck.core.paths.project_folder", lambda: tmp_path)
    (tmp_path / "configs" / "quick" / "second.yaml").write_text(BASE.replace("strategy: qlora", "strategy: q"))
    with pytest.raises(ConfigError) as caught:
        shipped.load_runs("quick", ["lora.rank=3"])

    places = [problem.partition(": ")[0] for problem in caught.value.problems]
    assert sorted(places) == ["--set lora.rank=3", "configs/quick/second.yaml:3:1"]


# Numbers with units.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("8GiB", 8 * 2**30), ("256 MiB", 256 * 2**20), ("1.5KiB", 1536), (" 2GB ", 2 * 10**9), ("1MB", 10**6)),
        *(("3KB", 3000), ("1.0001KB", 1000), (1024, 1024)),
    ],
)
def test_sizes_are_whole_bytes(text, expected):
    """Binary and decimal units; a plain number is bytes."""
    found = parse_bytes(text)

    assert (found, type(found)) == (expected, int)


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("10min", 600), ("2 h", 7200), ("0.5s", 0.5), (7, 7)])
def test_times_are_seconds(text, expected):
    """A plain number is seconds."""
    assert parse_seconds(text) == expected


@pytest.mark.parametrize("text", ["8", "8 gib", "8G", "GiB", "-1GiB", "1e3KB", "8GiB!", ""])
def test_a_size_without_a_known_unit_is_refused(text):
    """A guess at the unit would be a thousandfold error."""
    with pytest.raises(ValueError, match=r"such as 256MiB or 8GiB \(units: KiB, MiB, GiB, KB, MB, GB\)"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "deadline: 10 parsecs",
            "deadline: should be a number with a unit, such as 90s, 10min or 2h (units: s, min, h) (got",
        ),
        ("deadline: 0s", "deadline: should be greater than 0 (got 0.0)"),
        ("deadline: true", "deadline: should be a valid number (got True)"),
        (
            "vram: 8 gigs",
            "vram: should be a number with a unit, such as 256MiB or 8GiB (units: KiB, MiB, GiB, KB, MB, GB)",
        ),
        ("vram: 1.5", "vram: should be a valid integer (got 1.5)"),
    ],
)
def test_a_wrong_unit_is_named_with_its_place(tmp_path, line, expected):
    """The message lists the units."""
    [found] = problems(tmp_path, f"{BASE}{line}\n")

    assert found.startswith(f"run.yaml:10:1: {expected}")


# The schema for editors.


def complaints(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "run") -> list[str]:
    """Where this value does not fit that part of a JSON Schema; knows as much of the standard as ours uses."""
    if "$ref" in schema:
        return complaints(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema:
        tried = [complaints(value, option, root, path) for option in schema["anyOf"]]
        return [] if [] in tried else [bad for option in tried for bad in option]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "null": type(None)}
    kinds["number"] = (int, float)
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return [f"{path} is no {schema['type']}"]
    found = [f"{path} is not among {schema['enum']}"] if value not in schema.get("enum", [value]) else []
    found += [f"{path} is not {schema['const']}"] if value != schema.get("const", value) else []
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found += [f"{path} is too small"] if value <= schema.get("exclusiveMinimum", value - 1) else []
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        found.append(f"{path} does not match {schema['pattern']}")
    if isinstance(value, list):
        found += [bad for item in value for bad in complaints(item, schema["items"], root, f"{path}[]")]
    if isinstance(value, dict):
        if "propertyNames" in schema:
            return [bad for key in value for bad in complaints(key, schema["propertyNames"], root, f"{path}.{key}")]
        known = schema.get("properties", {})
        found += [f"{path}.{key} is missing" for key in schema.get("required", []) if key not in value]
        others = schema.get("additionalProperties", False)
        found += [f"{path}.{key} is unknown" for key in value if key not in known and others is False]
        if isinstance(others, dict):
            known = {**dict.fromkeys(value, others), **known}
        found += [
            bad for key in value if key in known for bad in complaints(value[key], known[key], root, f"{path}.{key}")
        ]
    return found


def test_the_schema_on_disk_is_fresh():
    """Editors read the file; `python -m tunecheck.config > configs/run.schema.json` refreshes it."""
    on_disk = (CONFIGS / "run.schema.json").read_text()

    assert on_disk == json_schema(), "refresh it: python -m tunecheck.config > configs/run.schema.json"


def test_the_command_prints_the_schema():
    """What the message above asks for is what is compared."""
    done = subprocess.run([sys.executable, "-m", "tunecheck.config"], capture_output=True, text=True, check=True)

    assert done.stdout == json_schema()


@pytest.mark.parametrize("path", run_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_run_on_disk_fits_the_schema(path):
    """So that an editor shows no error in it."""
    schema = json.loads(json_schema())

    assert complaints(YAML(typ="safe", pure=True).load(path.read_text()), schema, schema) == []


@pytest.mark.parametrize("name", shipped.RUN_FILES)
def test_every_shipped_run_names_the_schema(name):
    """In its first line, relative to itself."""
    path = CONFIGS / f"{name}.yaml"
    first = path.read_text().splitlines()[0]

    assert path in run_files()
    assert (path.parent / first.removeprefix("# yaml-language-server: $schema=")).resolve().name == "run.schema.json"


@pytest.mark.parametrize(
    "line", ["vram: 12GiB", "vram: 1024", "deadline: 2.5 h", "checks: {finite: off}", "vram: null"]
)
def test_the_schema_takes_what_the_loader_takes(line):
    """Units and off included."""
    schema = json.loads(json_schema())

    assert complaints(YAML(typ="safe", pure=True).load(f"{BASE}{line}\n"), schema, schema) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dedline: 3s", "run.dedline is unknown"),
        ("id: x", "run.id is unknown"),
        ("deadline: 3 parsecs", r"run.deadline does not match ^\s*[0-9]+(?:\.[0-9]+)?\s*(s|min|h)\s*$"),
        ("vram: -1", "run.vram is too small"),
        ("checks: {finit: off}", "run.checks.finit is unknown"),
        ("checks: {finite: false}", "run.checks.finite is no object"),
        ("checks: {loss_falls: {}}", "run.checks.loss_falls.min_fall is missing"),
        (
            "compare: {a: {checks.finite: off}}",
            f"run.compare.a.checks.finite does not match ^({'|'.join(VARIED)})(\\.|$)",
        ),
        ("evaluation: {splits: [test]}", "run.evaluation.splits[] is not among ['probe', 'heldout']"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(tmp_path, line, expected):
    """So that an editor marks it while it is typed."""
    schema = json.loads(json_schema())

    assert expected in complaints(YAML(typ="safe", pure=True).load(f"{BASE}{line}\n"), schema, schema)
    assert problems(tmp_path, f"{BASE}{line}\n")


def test_the_schema_names_every_key_model_and_check():
    """And nothing that the file's name gives; no definition is left over."""
    schema = json.loads(json_schema())
    text = json.dumps([schema["properties"], schema["$defs"]])

    assert set(schema["properties"]) == set(Run.model_fields) - Run.from_path | {"compare", "tier"}
    assert schema["properties"]["model"]["type"] == schema["properties"]["data"]["type"] == "string"
    assert schema["properties"]["trainer"]["enum"] == list(TRAINERS)
    assert set(schema["properties"]["checks"]["properties"]) == set(CHECKS)
    assert all(f"#/$defs/{name}" in text for name in schema["$defs"])


# Imports.


@pytest.mark.parametrize(
    "module", ["tunecheck.config", "tunecheck.checks", "tunecheck.results", "tunecheck.core.trace"]
)
def test_the_light_half_imports_quickly_and_without_torch(module):
    """Loading, judging and reporting take less than a second of CPU, the best of three: 0.1 to 0.4 s measured."""
    code = f"import sys, time, {module}; print('torch' in sys.modules, time.process_time())"

    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        torch, taken = done.stdout.split()
        assert torch == "False"
        return float(taken)

    assert any(seconds() < 1 for _ in range(3))


def test_the_order_of_memory_is_that_of_qlora_and_few_rows(tmp_path):
    """Its variants must be other runs than the one as asked."""
    [found] = problems(tmp_path, BASE, "probes.memory_order=true", "training.micro_batch_size=4")

    assert "needs strategy qlora and fewer than 4 rows, which its variants take more memory than" in found
    assert "training.micro_batch_size 4" in found


def test_only_an_adapter_can_be_merged(tmp_path):
    """A base that learned has nothing to take in."""
    [found] = problems(tmp_path, BASE, "strategy=full", "quantization=null", "lora=null", "probes.merge=true")

    assert "probes.merge: needs adapters: strategy full has none to merge (got true)" in found


# What the model's tensors and the data's rows rule out.


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "lora.target_modules=[v_proj, q_prj]",
            "lora.target_modules.1: 'q_prj' is in no layer (did you mean 'q_proj'?); linear layers here: down_proj, ",
        ),
        ("lora.target_modules=[embed_tokens]", "lora.target_modules.0: 'embed_tokens' is in no layer; linear layers"),
        (
            "evaluation={splits: [heldout], rows: 5000}",
            "evaluation.rows: should be at most 48, the rows of split heldout in heldout.jsonl (got 5000)",
        ),
        ("data.train_rows=9999", "data.train_rows: should be at most 240, all rows in train.jsonl (got 9999)"),
        ("data.max_length=8193", "data.max_length: should be at most 8192, the model's max_position_embeddings"),
    ],
)
def test_what_tensors_and_rows_rule_out_is_found_before_training(tmp_path, override, problem):
    """With value, place and way out, like any other wrong key."""
    (told,) = problems(tmp_path, BASE, override)

    assert told.startswith(f"--set {override}: {problem}")


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("device=gpu", "(got 'gpu') (did you mean 'cuda'?)"),
        ("device=GPU", "(got 'GPU') (did you mean 'cuda'?)"),
        ("device=cpus", "(got 'cpus') (did you mean 'cpu'?)"),
        ("lora.rank=8", "unknown key (did you mean 'r'?)"),
        ("training.precision=bfloat16", "(did you mean 'bf16'?)"),
        ("training.lr=1e-4", "unknown key (did you mean 'learning_rate'?)"),
    ],
)
def test_other_peoples_words_lead_to_ours(tmp_path, override, hint):
    """Where a name that merely looks alike would mean something else."""
    (told,) = problems(tmp_path, BASE, override)

    assert hint in told


def test_a_wrong_target_has_the_place_in_its_list(tmp_path):
    """File, line and column of the item itself."""
    text = BASE.replace("target_modules: [q_proj, v_proj]", "target_modules: [q_proj, v_prj]")
    assert text != BASE
    line = next(number for number, line in enumerate(text.splitlines(), start=1) if "v_prj" in line)
    column = text.splitlines()[line - 1].index("v_prj") + 1

    (told,) = problems(tmp_path, text)

    assert f":{line}:{column}: lora.target_modules.1: 'v_prj' is in no layer (did you mean" in told


def test_only_what_the_hub_section_promises_counts_for_its_rows(tmp_path):
    """The files' own rows are of no account then."""
    found = problems(tmp_path, BASE, "data=alpaca-cleaned", "evaluation.rows=99999")

    assert [problem for problem in found if "evaluation.rows: should be at most" in problem and "data.hub" in problem]


def test_a_limit_whose_name_is_no_text_is_a_message(monkeypatch):
    """Half a character, which JSON cannot hold: it has no place among the limits."""
    with pytest.raises(ConfigError, match=r"checks\.loss_falls"):
        load_run(find_run("quick/smollm2-135m-qlora"), ['checks.loss_falls={"\\ud800": 0.5}'])


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        ("loss_fals: too short", "ignore.loss_fals: no check is called 'loss_fals' (did you mean 'loss_falls'?)"),
        ("loss_falls: ' '", 'ignore.loss_falls: lacks a reason, such as "too few steps to tell"'),
        ("loss_falls: 3", "ignore.loss_falls: "),
    ],
)
def test_an_ignored_check_exists_and_has_a_reason(tmp_path, ignored, message):
    """Whoever reads the file later sees why."""
    [found] = problems(tmp_path, f"{BASE}ignore: {{{ignored}}}\n")
    assert message in found


def test_what_is_ignored_is_no_part_of_the_training(tmp_path):
    """Its sessions stay comparable."""
    plain, ignoring = (load_run(write(tmp_path, BASE + more)) for more in ("", "ignore: {loss_falls: too short}\n"))
    assert ignoring.ignore == {"loss_falls": "too short"}
    assert ignoring.fingerprint == plain.fingerprint
