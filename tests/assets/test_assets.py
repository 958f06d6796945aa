"""Models: the four descriptions, random weights from the child process, and fetching ahead."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import (
    ARCHITECTURE,
    RANDOM,
    WEIGHTS,
    as_python,
    cut,
    digest,
    local,
    shelf_of,
    tiny,
    write_folder,
)

from tunecheck.assets import build, is_cached, resolve
from tunecheck.config import load_model
from tunecheck.core.errors import ConfigError, WeightsUnavailable
from tunecheck.core.files import is_disk_full
from tunecheck.core.paths import cache_folder, configs_folders, project_folder, shipped_folder

REFERENCE = {
    "smollm2-135m": 134_515_008,
    "qwen2-0.5b": 494_032_768,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-7b": 6_738_415_616,
}


# Places and descriptions.


def test_the_cache_folder_follows_the_environment(monkeypatch, home):
    """TUNECHECK_CACHE wins, the default is in the home folder, and asking makes nothing."""
    assert cache_folder() == home
    assert not home.exists()

    monkeypatch.delenv("TUNECHECK_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "tunecheck"


def test_a_users_own_configs_go_before_the_shipped_ones(tmp_path, monkeypatch):
    """Those of the current folder, or of $TUNECHECK_CONFIGS; in the checkout there is one folder."""
    shipped = shipped_folder() / "configs"
    monkeypatch.chdir(shipped_folder())
    assert configs_folders() == (shipped,)

    monkeypatch.chdir(tmp_path)
    assert configs_folders() == (shipped,)
    (tmp_path / "configs").mkdir()
    assert configs_folders() == (tmp_path / "configs", shipped)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TUNECHECK_CONFIGS", str(tmp_path / "elsewhere"))
    assert configs_folders() == (tmp_path / "elsewhere", shipped)


def test_the_reference_names_models_that_are_shipped():
    """A model of one's own needs no number here."""
    assert set(REFERENCE) <= {path.stem for path in (shipped_folder() / "configs" / "models").glob("*.yaml")}


@pytest.mark.parametrize("name", REFERENCE)
def test_parameters_follow_from_the_architecture(name):
    """Built on the meta device, every model has the parameters that its YAML and the reference give."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = load_model(name)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model.architecture.model_dump()))

    assert sum(parameter.numel() for parameter in built.parameters()) == model.parameters == REFERENCE[name]
    assert built.config.rope_parameters["rope_theta"] == model.architecture.rope_theta


@pytest.mark.parametrize("name", REFERENCE)
def test_sources_are_asked_in_order_of_trust(name):
    """The user's own folder first, random weights last."""
    kinds = [source.kind for source in load_model(name).sources]

    assert kinds == ["local", "hub", *(["package"] if name == "smollm2-135m" else []), "random"]


def test_the_package_does_not_import_torch():
    """Nor the hub library: both only when they are needed."""
    code = "import sys, tunecheck.assets; print({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=project_folder(), capture_output=True, text=True)

    assert done.stdout.strip() == "set()"


# Random weights.


def test_random_weights_come_from_a_child_process(home):
    """The whole way: files, manifest, a tokenizer of bytes that adds nothing by itself."""
    from transformers import AutoTokenizer

    found = resolve(tiny(), allow_random=True)
    names = {path.name for path in found.path.iterdir()}
    manifest = json.loads((found.path / "manifest.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(found.path)
    ids = tokenizer("für 2").input_ids

    assert {"config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json", "manifest.json"} <= names
    assert found.weights.sha256 == digest(found.path / WEIGHTS) == manifest["files"][WEIGHTS]["sha256"]
    assert (found.weights.model, found.weights.source, found.weights.revision, found.weights.pretrained) == (
        "tiny",
        "random",
        "seed 0",
        False,
    )
    assert len(ids) == len("für 2".encode())
    assert tokenizer.decode(ids) == "für 2"
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257, 258)
    assert shelf_of(home) == [found.path.name]


def test_a_seed_fixes_the_weights(tmp_path):
    """The same seed gives the same bytes, another seed others."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build.draw_random(architecture=ARCHITECTURE, seed=seed, out=str(tmp_path / name))
    digests = [digest(tmp_path / name / WEIGHTS) for name in "abc"]

    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_seeds_and_architectures_have_their_own_places(builder):
    """Changing either never reuses what was drawn for the other."""
    models = [tiny(), tiny({**RANDOM, "seed": 1}), tiny(rope_theta=5000.0)]
    paths = {resolve(model, allow_random=True).path for model in models}

    assert len(paths) == 3


def test_random_weights_only_where_the_run_allows_them(builder):
    """Otherwise every source's answer is listed, with the ways out."""
    model = tiny({"kind": "local", "path": "$TUNECHECK_MODELS/tiny"}, RANDOM)

    with pytest.raises(WeightsUnavailable, match="no source has the weights") as error:
        resolve(model, allow_random=False)
    assert "local: $TUNECHECK_MODELS/tiny: TUNECHECK_MODELS is not set" in str(error.value)
    assert "random: random weights are not allowed by this run" in str(error.value)
    assert "tunecheck fetch tiny" in str(error.value)
    assert builder.calls == []


def test_a_vocabulary_must_hold_the_byte_tokenizer(builder):
    """259 tokens at least, else it is refused before anything is built."""
    with pytest.raises(ConfigError, match=r"vocab_size: should be at least 259, .* \(got 258\)"):
        resolve(tiny(vocab_size=258), allow_random=True)


def test_earlier_answers_go_into_the_notes(builder, tmp_path):
    """What was passed over, and why, is not lost."""
    found = resolve(tiny({"kind": "local", "path": str(tmp_path / "none")}, RANDOM), allow_random=True)

    assert found.weights.notes == (f"local: {tmp_path / 'none'} does not exist",)


# The child process.


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -9 $$", "the process for the build was killed by SIGKILL (most likely out of memory)"),
        ("echo oops >&2; exit 3", "the process for the build ended with status 3 and without an answer: oops"),
        ("exit 4", "the process for the build ended with status 4 and without an answer"),
        ("""echo '{"error": "ValueError: bad shape"}'; exit 1""", "ValueError: bad shape"),
    ],
)
def test_a_failed_child_is_told_in_one_sentence(monkeypatch, tmp_path, home, script, message):
    """Killed, crashed or failed: the error names the task and the reason, and nothing half-built is left."""
    as_python(monkeypatch, tmp_path, script)

    with pytest.raises(WeightsUnavailable) as error:
        resolve(tiny(), allow_random=True)
    assert f"tiny: the weights could not be built (random): {message}." in str(error.value)
    assert shelf_of(home) == []


def test_a_child_that_hangs_is_ended(monkeypatch, tmp_path):
    """After its time limit, which the message names."""
    as_python(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(build, "BUILD_SECONDS", 0.2)

    with pytest.raises(WeightsUnavailable, match=r"the build did not answer within 0\.2 s and was killed"):
        resolve(tiny(), allow_random=True)


def test_the_child_answers_errors_as_json(monkeypatch):
    """Whatever a library raises becomes the answer, and a full disk is seen in it."""

    def full(**request):
        raise OSError(errno.ENOSPC, "No space left on device")

    for task, disk_full in ((full, True), (lambda: 1 / 0, False)):
        monkeypatch.setitem(build.TASKS, "random", task)
        assert is_disk_full(build.built({"task": "random"})["error"]) is disk_full


# The doctor's question, and fetching ahead.


def test_cached_knows_trained_weights_only(builder, tmp_path):
    """By their sizes; random ones do not count, nor a truncated file."""
    resolve(tiny(), allow_random=True)
    found = resolve(tiny(local(write_folder(tmp_path / "mine")), name="other"), allow_random=False)

    assert [is_cached(name) for name in ("tiny", "other", "unknown")] == [False, True, False]
    cut((found.path / WEIGHTS).resolve())
    assert not is_cached("tiny")
    assert not is_cached("other")
