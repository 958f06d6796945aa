"""Models: the four descriptions, local folders, random weights, and a cache that holds whole files or none."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import ARCHITECTURE, PARAMETERS, RANDOM, WEIGHTS, Builder, digest, tiny, write_folder

from suite.config import load_model
from suite.errors import Unsupported, WeightsDamaged, WeightsUnavailable
from suite.models import build, cache, cached, child, fetch, folder, prefetch, resolve
from suite.models.cache import shelf
from suite.paths import cache_folder, configs_folder, project_folder

REFERENCE = {
    "smollm2-135m": 134_515_008,
    "qwen2-0.5b": 494_032_768,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-7b": 6_738_415_616,
}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A cache of its own for every test."""
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TUNECHECK_MODELS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def builder(monkeypatch):
    """The child process, replaced by a function that writes a folder at once."""
    fake = Builder()
    monkeypatch.setattr(child, "build", fake)
    return fake


@pytest.fixture
def lines():
    """What was said."""
    return []


def shelf_of(home, name="tiny"):
    """Everything on a model's shelf but the lock's two files."""
    return sorted(path.name for path in (home / "models" / name).iterdir() if path.name not in (".lock", ".owner"))


# Places and descriptions.


def test_the_cache_folder_follows_the_environment(monkeypatch, home):
    """TUNECHECK_CACHE wins, the default is in the home folder, and asking makes nothing."""
    assert cache_folder() == home
    assert not home.exists()

    monkeypatch.delenv("TUNECHECK_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "tunecheck"


def test_the_project_folder_holds_the_configs():
    """configs/ is beside the package."""
    assert (project_folder() / "suite" / "paths.py").is_file()
    assert configs_folder() == project_folder() / "configs"


def test_every_model_on_disk_is_in_the_reference():
    """A new YAML needs its number here."""
    assert {path.stem for path in (configs_folder() / "models").glob("*.yaml")} == set(REFERENCE)


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
    code = "import sys, suite.models; print({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
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
    assert found.sha256 == digest(found.path / WEIGHTS) == manifest["files"][WEIGHTS]["sha256"]
    assert (found.model, found.source, found.revision, found.pretrained) == ("tiny", "random", "seed 0", False)
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

    with pytest.raises(WeightsUnavailable, match="no source could deliver") as error:
        resolve(model, allow_random=False)
    assert "local: $TUNECHECK_MODELS/tiny: TUNECHECK_MODELS is not set" in str(error.value)
    assert "random: random weights are not allowed by this run" in str(error.value)
    assert "python -m suite.models.fetch tiny" in str(error.value)
    assert builder.calls == []


def test_a_vocabulary_must_hold_the_byte_tokenizer(builder):
    """259 tokens at least, else it is refused before anything is built."""
    with pytest.raises(Unsupported, match=r"vocab_size 258 is too small .* 259 tokens"):
        resolve(tiny(vocab_size=258), allow_random=True)


def test_earlier_answers_go_into_the_notes(builder, tmp_path):
    """What was passed over, and why, is not lost."""
    found = resolve(tiny({"kind": "local", "path": str(tmp_path / "none")}, RANDOM), allow_random=True)

    assert found.notes == (f"local: {tmp_path / 'none'} does not exist",)


# The child process.


def as_python(monkeypatch, tmp_path, script):
    """Make the parent start this shell script instead of Python."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -9 $$", "ended by SIGKILL (too little memory, most likely)"),
        ("echo oops >&2; exit 3", "exit status 3, oops"),
        ("exit 4", "exit status 4, nothing was printed"),
        ("""echo '{"error": "ValueError: bad shape", "disk_full": false}'; exit 1""", "ValueError: bad shape"),
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
    monkeypatch.setattr(child, "BUILD_SECONDS", 0.2)

    with pytest.raises(WeightsUnavailable, match=r"it was not done after 0\.2 s"):
        resolve(tiny(), allow_random=True)


def test_the_child_answers_errors_as_json(monkeypatch, capsys, tmp_path):
    """Whatever a library raises becomes the last line, a full disk marked as such."""

    def full(**request):
        raise OSError(errno.ENOSPC, "No space left on device")

    for task, disk_full in ((full, True), (lambda: 1 / 0, False)):
        monkeypatch.setitem(build.TASKS, "random", task)
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"task": "random"}'))
        assert build.main() == 1
        assert json.loads(capsys.readouterr().out)["disk_full"] is disk_full


# Damage.


def cut(path):
    """Lose the last byte."""
    os.truncate(path, path.stat().st_size - 1)


def empty(path):
    """Lose everything."""
    os.truncate(path, 0)


def flip(path):
    """Change one byte and put the time of the last change back."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("harm", [cut, empty, flip])
@pytest.mark.parametrize("file", [WEIGHTS, "config.json", "manifest.json"])
def test_a_damaged_cached_file_is_set_aside_and_made_again(builder, home, lines, harm, file):
    """Said aloud, with the file's name, and the new one is whole."""
    first = resolve(tiny(), allow_random=True)
    harm(first.path / file)
    if file == "manifest.json" and harm is flip:
        (first.path / file).write_text("[]")

    second = resolve(tiny(), allow_random=True, say=lines.append)

    assert (second.path, second.sha256) == (first.path, digest(first.path / WEIGHTS))
    assert shelf_of(home) == [f".damaged-{first.path.name}", first.path.name]
    assert any(f"{first.path / file} is damaged" in line and "Renamed to" in line for line in lines)
    assert len(builder.calls) == 2


def test_an_unchanged_file_is_not_hashed_again(builder, monkeypatch):
    """Size, times and inode say that it is the one that was verified."""
    first = resolve(tiny(), allow_random=True)
    monkeypatch.setattr(folder, "_sha256", lambda path: pytest.fail(f"{path} was hashed"))

    assert resolve(tiny(), allow_random=True) == first


def test_a_touched_file_is_hashed_once_more(builder, monkeypatch, lines):
    """Intact, so that nothing is said, and the next time it is not hashed."""
    found = resolve(tiny(), allow_random=True)
    os.utime(found.path / WEIGHTS)
    hashed, real = [], folder._sha256
    monkeypatch.setattr(folder, "_sha256", lambda path: hashed.append(path.name) or real(path))

    assert resolve(tiny(), allow_random=True, say=lines.append) == found
    assert resolve(tiny(), allow_random=True) == found
    assert (hashed, lines) == ([WEIGHTS], [])


def test_a_deleted_file_is_made_again(builder, home):
    """Gone is not damaged: there is nothing to look at, so nothing is set aside."""
    found = resolve(tiny(), allow_random=True)
    (found.path / WEIGHTS).unlink()

    assert resolve(tiny(), allow_random=True) == found
    assert shelf_of(home) == [found.path.name]


# Full disks, locks, leftovers.


def test_a_disk_that_fills_up_leaves_nothing(monkeypatch, home):
    """The bytes needed and free are named, the half-written file is gone."""

    def half(model, request):
        (Path(request["out"]) / WEIGHTS).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(child, "build", half)

    with pytest.raises(WeightsUnavailable, match=rf"about {2 * PARAMETERS:,} bytes are needed, [\d,]+ are free"):
        resolve(tiny(), allow_random=True)
    assert shelf_of(home) == []


def test_a_disk_that_is_too_small_is_seen_before(monkeypatch, builder):
    """Nothing is fetched when it could not be kept."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())

    with pytest.raises(WeightsUnavailable, match=r"1,000 are free\. What to do: .* TUNECHECK_CACHE"):
        resolve(tiny(), allow_random=True)
    assert builder.calls == []


def test_a_full_disk_in_the_child_is_told_as_such(monkeypatch, tmp_path):
    """Also when only the child saw it."""
    as_python(monkeypatch, tmp_path, """echo '{"error": "", "disk_full": true}'; exit 1""")

    with pytest.raises(WeightsUnavailable, match="no space left in"):
        resolve(tiny(), allow_random=True)


def test_an_unusable_cache_is_one_sentence(monkeypatch, tmp_path):
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "file"))

    with pytest.raises(WeightsUnavailable, match="cannot be used: Not a directory.* TUNECHECK_CACHE"):
        resolve(tiny(), allow_random=True)


def test_leftovers_of_dead_processes_are_swept(builder, home):
    """Whoever has the lock knows that nobody builds any more."""
    (home / "models" / "tiny" / ".building-dead" / "model").mkdir(parents=True)
    found = resolve(tiny(), allow_random=True)

    assert shelf_of(home) == [found.path.name]


def test_waiting_for_a_lock_names_the_process(lines):
    """And ends after its time limit, naming the lock's file."""
    with shelf("tiny", lines.append):
        expected = rf"process {os.getpid()} still holds .*\.lock after 0\.1 s"
        with pytest.raises(WeightsUnavailable, match=expected), shelf("tiny", lines.append, lock_seconds=0.1):
            pytest.fail("two at a time")

    assert lines[0].startswith(f"tiny: waiting for process {os.getpid()}")
    assert cache.LOCK_SECONDS > child.BUILD_SECONDS / 2


PARALLEL = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tiny_models import Builder, tiny
from suite.models import child, resolve
class Slow(Builder):
    def __call__(self, model, request):
        time.sleep(0.5)
        print("built", flush=True)
        super().__call__(model, request)
child.build = Slow()
print(resolve(tiny(), allow_random=True).sha256)
"""


def test_parallel_processes_build_once():
    """The second waits and then uses what the first has built."""
    command = [sys.executable, "-c", PARALLEL, str(Path(__file__).parent)]
    both = [subprocess.Popen(command, cwd=project_folder(), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = sorted((process.communicate()[0].split() for process in both), key=len)

    assert len(outputs[0]) == 1
    assert outputs[1] == ["built", *outputs[0]]


def test_a_killed_process_leaves_no_lock(home):
    """The lock goes with the process: the next one builds at once."""
    slow = PARALLEL.replace('print("built", flush=True)', 'print("built", flush=True); time.sleep(60)')
    command = [sys.executable, "-c", slow, str(Path(__file__).parent)]
    with subprocess.Popen(command, cwd=project_folder(), stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)

    assert len(shelf_of(home)) == 1
    with shelf("tiny", pytest.fail):
        assert shelf_of(home) == []


# Local folders.


def local(path):
    """A source."""
    return {"kind": "local", "path": str(path)}


def test_a_local_folder_is_used_where_it_lies(tmp_path, monkeypatch):
    """Through links: nothing is written to it; ~ and $VARIABLES are expanded."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", "mine")
    source = write_folder(tmp_path / "mine")
    before = sorted(source.iterdir())
    found = resolve(tiny(local("~/$WHERE")), allow_random=False)

    assert (found.source, found.identifier, found.pretrained) == ("local", str(source), True)
    assert found.sha256 == digest(source / WEIGHTS)
    assert (found.path / WEIGHTS).resolve() == source / WEIGHTS
    assert (found.path / "manifest.json").is_file()
    assert sorted(source.iterdir()) == before


def test_a_local_folder_may_change(tmp_path):
    """It is the user's: new weights are new weights, with their own digest."""
    source = write_folder(tmp_path / "mine")
    first = resolve(tiny(local(source)), allow_random=False)
    write_folder(source, value=0.25)
    second = resolve(tiny(local(source)), allow_random=False)

    assert first.sha256 != second.sha256 == digest(source / WEIGHTS)


@pytest.mark.parametrize(
    ("harm", "answer"),
    [
        (lambda mine: (mine / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda mine: (mine / "config.json").unlink(), "has no config.json"),
        (lambda mine: (mine / WEIGHTS).unlink(), f"has no {WEIGHTS}"),
        (lambda mine: (mine / WEIGHTS).rename(mine / "pytorch_model.bin"), "pickled weights are refused"),
    ],
)
def test_a_local_folder_that_is_not_whole_is_passed_over(tmp_path, harm, answer):
    """With what it lacks."""
    source = write_folder(tmp_path / "mine")
    harm(source)

    with pytest.raises(WeightsUnavailable) as error:
        resolve(tiny(local(source)), allow_random=False)
    assert f"local: {source} has no" in str(error.value)
    assert answer in str(error.value)


@pytest.mark.parametrize("harm", [cut, empty])
def test_a_truncated_local_file_is_an_error(tmp_path, builder, harm):
    """Never a reason to take other weights."""
    source = write_folder(tmp_path / "mine")
    size = (source / WEIGHTS).stat().st_size
    harm(source / WEIGHTS)

    with pytest.raises(WeightsDamaged, match=f"{WEIGHTS} is damaged: .*bytes.*What to do: delete it and copy") as error:
        resolve(tiny(local(source), RANDOM), allow_random=True)
    assert harm is empty or f"it has {size - 1} bytes, its header says {size}" in str(error.value)


def test_a_config_that_is_no_json_is_an_error(tmp_path):
    """Half a file, most likely."""
    source = write_folder(tmp_path / "mine")
    cut(source / "config.json")

    with pytest.raises(WeightsDamaged, match=r"config\.json is damaged: it is not a JSON object"):
        resolve(tiny(local(source)), allow_random=False)


def test_another_model_in_the_folder_is_an_error(tmp_path):
    """Both values are named."""
    source = write_folder(tmp_path / "mine", hidden_size=32)

    with pytest.raises(WeightsUnavailable, match=r"hidden_size is 32 in .*mine, 16 in configs/models/tiny\.yaml"):
        resolve(tiny(local(source)), allow_random=False)


def test_another_number_of_parameters_is_an_error(tmp_path):
    """Counted from the header, a tied head once."""
    source = write_folder(tmp_path / "mine", parameters=PARAMETERS + 1)

    with pytest.raises(WeightsUnavailable, match=rf"holds {PARAMETERS + 1} parameters, .* says {PARAMETERS}"):
        resolve(tiny(local(source)), allow_random=False)


def test_settings_that_keep_the_shapes_are_noted(tmp_path):
    """The weights fit, the function differs: the trace must say so."""
    source = write_folder(tmp_path / "mine", rms_norm_eps=1e-6)
    found = resolve(tiny(local(source)), allow_random=False)

    assert found.notes == (f"rms_norm_eps is 1e-06 in {source}, 1e-05 in configs/models/tiny.yaml",)


def test_shards_are_verified_together(tmp_path):
    """The digest is that of the list of the shards' digests; a missing shard is named."""
    source = write_folder(tmp_path / "mine")
    (source / WEIGHTS).rename(source / "model-1.safetensors")
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))

    assert resolve(tiny(local(source)), allow_random=False).sha256 == digest(source / "model-1.safetensors")

    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(WeightsUnavailable, match=r"has no model-2\.safetensors"):
        resolve(tiny(local(source)), allow_random=False)


def test_a_copied_cache_folder_keeps_its_proof(builder, tmp_path):
    """Its manifest comes along: an altered file is found, and random weights stay random."""
    source = tmp_path / "copy"
    shutil.copytree(resolve(tiny(), allow_random=True).path, source)

    assert resolve(tiny(local(source)), allow_random=True).pretrained is False
    with pytest.raises(WeightsUnavailable, match="holds random weights"):
        resolve(tiny(local(source)), allow_random=False)
    flip(source / WEIGHTS)
    with pytest.raises(WeightsDamaged, match=r"SHA-256 of its \d+ bytes is .*, expected .*copy the model"):
        resolve(tiny(local(source)), allow_random=True)


def test_an_unreadable_file_is_one_sentence(tmp_path, monkeypatch):
    """An error of the system names the source and the file."""
    source = write_folder(tmp_path / "mine")
    (source / WEIGHTS).unlink()
    (source / WEIGHTS).symlink_to(source / WEIGHTS)
    monkeypatch.setattr(Path, "is_file", lambda path: True)

    with pytest.raises(WeightsUnavailable, match=r"tiny: local: .*model\.safetensors: Too many levels"):
        resolve(tiny(local(source)), allow_random=False)


# The doctor's question, and fetching ahead.


def test_cached_knows_trained_weights_only(builder, tmp_path):
    """By their sizes; random ones do not count, nor a truncated file."""
    resolve(tiny(), allow_random=True)
    found = resolve(tiny(local(write_folder(tmp_path / "mine")), name="other"), allow_random=False)

    assert cached(["tiny", "other", "unknown"]) == ["other"]
    cut((found.path / WEIGHTS).resolve())
    assert cached(["tiny", "other"]) == []


def test_prefetch_returns_the_folders(tmp_path):
    """One a model."""
    models = [tiny(local(write_folder(tmp_path / name)), name=name) for name in ("a", "b")]

    assert [found.model for found in prefetch(models)] == ["a", "b"]


def test_fetch_prints_what_it_got(monkeypatch, capsys, tmp_path):
    """Exit status 0, and a line a model."""
    source = write_folder(tmp_path / "mine")
    monkeypatch.setattr(fetch, "load_model", lambda name: tiny(local(source), name=name))

    assert fetch.main(["tiny"]) == 0
    assert f"tiny: local {source}" in capsys.readouterr().out


def test_fetch_tells_what_is_wrong(capsys):
    """Exit status 1 for an unknown name, 2 for none at all; no traceback."""
    assert fetch.main(["tinny"]) == 1
    assert "configs/models has no 'tinny'" in capsys.readouterr().err
    assert fetch.main([]) == 2
    assert "usage:" in capsys.readouterr().err
