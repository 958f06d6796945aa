"""Models from a folder of the user's: used where it lies, verified, never written to."""

from __future__ import annotations

import errno
import json
import shutil

import pytest
from tiny_models import (
    PARAMETERS,
    RANDOM,
    WEIGHTS,
    cut,
    digest,
    empty,
    flip,
    local,
    tiny,
    write_folder,
)

from tunecheck.assets import folder, resolve
from tunecheck.core.errors import WeightsDamaged, WeightsUnavailable

# Local folders.


def test_a_local_folder_is_used_where_it_lies(tmp_path, monkeypatch):
    """Through links: nothing is written to it; ~ and $VARIABLES are expanded."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", "mine")
    source = write_folder(tmp_path / "mine")
    before = sorted(source.iterdir())
    found = resolve(tiny(local("~/$WHERE")), allow_random=False)

    assert (found.weights.source, found.weights.identifier, found.weights.pretrained) == ("local", str(source), True)
    assert found.weights.sha256 == digest(source / WEIGHTS)
    assert (found.path / WEIGHTS).resolve() == source / WEIGHTS
    assert (found.path / "manifest.json").is_file()
    assert sorted(source.iterdir()) == before


def test_a_local_folder_may_change(tmp_path):
    """It is the user's: new weights are new weights, with their own digest."""
    source = write_folder(tmp_path / "mine")
    first = resolve(tiny(local(source)), allow_random=False)
    write_folder(source, value=0.25)
    second = resolve(tiny(local(source)), allow_random=False)

    assert first.weights.sha256 != second.weights.sha256 == digest(source / WEIGHTS)


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


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "x"},
        {"shape": [-1, 2]},
        {"shape": [1.5]},
        {"data_offsets": [9, 0]},
        {"data_offsets": [0]},
        {"dtype": None},
    ],
)
def test_a_header_that_describes_no_tensor_is_an_error(tmp_path, changes):
    """Each part of it is of the type that the format has."""
    path = write_folder(tmp_path / "mine") / WEIGHTS
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(name for name in header if name != "__metadata__")
    text = json.dumps({**header, name: {**header[name], **changes}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    with pytest.raises(WeightsDamaged, match="bytes are no whole safetensors file"):
        resolve(tiny(local(path.parent)), allow_random=False)


@pytest.mark.parametrize("harm", [cut, empty])
def test_a_truncated_local_file_is_an_error(tmp_path, builder, harm):
    """Never a reason to take other weights."""
    source = write_folder(tmp_path / "mine")
    size = (source / WEIGHTS).stat().st_size
    harm(source / WEIGHTS)

    with pytest.raises(WeightsDamaged, match=f"{WEIGHTS} is damaged: .*bytes.*What to do: delete it and copy") as error:
        resolve(tiny(local(source), RANDOM), allow_random=True)
    assert harm is empty or f"its {size - 1} bytes are no whole safetensors file" in str(error.value)


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

    assert found.weights.notes == (f"rms_norm_eps is 1e-06 in {source}, 1e-05 in configs/models/tiny.yaml",)


def test_shards_are_verified_together(tmp_path):
    """The digest is that of the list of the shards' digests; a missing shard is named."""
    source = write_folder(tmp_path / "mine")
    (source / WEIGHTS).rename(source / "model-1.safetensors")
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))

    assert resolve(tiny(local(source)), allow_random=False).weights.sha256 == digest(source / "model-1.safetensors")

    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(WeightsUnavailable, match=r"has no model-2\.safetensors"):
        resolve(tiny(local(source)), allow_random=False)


def test_a_copied_cache_folder_keeps_its_proof(builder, tmp_path):
    """Its manifest comes along: an altered file is found, and random weights stay random."""
    source = tmp_path / "copy"
    shutil.copytree(resolve(tiny(), allow_random=True).path, source)

    assert resolve(tiny(local(source)), allow_random=True).weights.pretrained is False
    with pytest.raises(WeightsUnavailable, match="holds random weights"):
        resolve(tiny(local(source)), allow_random=False)
    flip(source / WEIGHTS)
    with pytest.raises(WeightsDamaged, match=r"SHA-256 of its \d+ bytes is .*, expected .*copy the model"):
        resolve(tiny(local(source)), allow_random=True)


def test_an_unreadable_file_is_one_sentence(tmp_path, monkeypatch):
    """An error of the system names the source and the file."""
    source = write_folder(tmp_path / "mine")

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(folder, "_sha256", refuse)
    with pytest.raises(WeightsUnavailable, match=r"tiny: local: .*config\.json: Permission denied\. What to do"):
        resolve(tiny(local(source)), allow_random=False)
