"""A machine without network and weights: the shipped runs train on random weights at their shipped lengths."""

from __future__ import annotations

import subprocess
import sys
from math import prod

import pytest
import torch
from rehearsing import slow

from tunecheck.assets.build import PAIR_VOCABULARY, byte_tokenizer, pair_tokenizer
from tunecheck.config import find_run, load_run, run_sources
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import project_folder
from tunecheck.training.data import Batches

RUNS = sorted({source.name for source in run_sources()})
NO_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]


@pytest.fixture(scope="module")
def tokenizer():
    """That of random weights with a real vocabulary."""
    return pair_tokenizer(2048)


def batches(name, tokenizer):
    """The run's rows as they are without network: the shipped ones."""
    run = load_run(find_run(name))
    run = run.model_copy(update={"data": run.data.model_copy(update={"hub": None})})
    return run, Batches(run, tokenizer, torch.device("cpu"))


@pytest.mark.parametrize("name", RUNS)
def test_the_rows_of_every_shipped_run_fit_with_random_weights(name, tokenizer):
    """No row is refused for its length, and there are as many as the run asks for."""
    run, made = batches(name, tokenizer)

    assert run.model.architecture.vocab_size >= PAIR_VOCABULARY
    assert made.train
    assert made.heldout


def test_with_a_token_a_byte_they_do_not():
    """What random weights came with before, so that these runs ended at once."""
    with pytest.raises(ConfigError, match=r"data\.max_length.*should be at least"):
        batches("extended/tinyllama-1.1b-qlora", byte_tokenizer(2048))


def test_the_tokenizer_is_the_same_each_time_and_loses_nothing(tokenizer):
    """Every byte has a token; special tokens are in no text."""
    again = pair_tokenizer(2048)
    text = "für Vec<T>: `let x = 1;`\n\tZwölf Boxkämpfer 🦀"

    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert tokenizer.vocab_size == PAIR_VOCABULARY
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert not set(tokenizer(text).input_ids) & set(tokenizer.all_special_ids)


@slow
@pytest.mark.parametrize(
    "name", ["extended/tinyllama-1.1b-qlora", "extended/strategies-instructions", "full/llama-7b-qlora"]
)
def test_a_tier_trains_in_a_network_namespace_of_its_own(name, tmp_path):
    """Real vocabulary and width, two layers, the shipped length; the rest of the run shortened."""
    if subprocess.run([*NO_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this machine permits no network namespace")
    tier = name.partition("/")[0]
    shorter = ["max_steps=3", "gradient_accumulation_steps=1"]
    settings = [
        *(f"training.{setting}" for setting in shorter),
        *("model.architecture.num_hidden_layers=2", "device=cpu", "vram=null", "evaluation.at=[]", "evaluation.rows=2"),
        *("probes.oracle_steps=[0]", "probes.resume_from=null", "probes.prompts=[]", "probes.generate=false"),
        *("checks={}", f"model.parameters={parameters(name)}", "allow_random_weights=true"),
    ]
    command = [sys.executable, "-m", "pytest", f"tiers/test_{tier}.py", "-m", tier, "-q", "-p", "no:cacheprovider"]
    command += ["-k", name.partition("/")[2] if "strategies" not in name else "instructions-qlora"]
    command += [part for setting in settings for part in ("--set", setting)]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TUNECHECK_CACHE": str(tmp_path / "cache"),
        "TUNECHECK_REPORTS": str(tmp_path / "reports"),
        "PYTHONPATH": str(project_folder()),
    }
    done = subprocess.run(
        [*NO_NETWORK, *command], cwd=project_folder(), env=environment, capture_output=True, text=True, timeout=550
    )

    assert "should be at least" not in done.stdout, done.stdout[-3000:]
    assert "did not finish" not in done.stdout, done.stdout[-3000:]
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-2000:]


def parameters(name):
    """Of the run's model with two layers."""
    from tunecheck.models.shapes import tensor_shapes

    architecture = load_run(find_run(name if "strategies" not in name else f"{name}-qlora")).model.architecture
    shapes = tensor_shapes(architecture.model_copy(update={"num_hidden_layers": 2}))
    return sum(map(prod, shapes.values()))
