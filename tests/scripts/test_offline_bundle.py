"""A bundle for a machine without internet: gathered, split, joined, verified, installed; all from a folder on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest

from tunecheck.core.paths import project_folder

SCRIPT = project_folder() / "scripts" / "offline-bundle.sh"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def shop(tmp_path):
    """A folder in the place of the package index, with two pure wheels; constraints; and a model's folder."""
    index = tmp_path / "index"
    index.mkdir()
    for name in ("tinywheel", "otherwheel"):
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "ANSWER = 42\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (tmp_path / "constraints.txt").write_text("# exact versions\ntinywheel==1.0\notherwheel==1.0\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(os.urandom(40_000))
    return tmp_path


def call(shop, *command, **variables):
    """The finished process; pip finds nothing but the shop's wheels."""
    environment = {
        **os.environ,
        "BOOTSTRAP_PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(shop / "index"),
        **variables,
    }
    return subprocess.run(command, env=environment, cwd=shop, capture_output=True, text=True, timeout=120)


def gather(shop, *options, weights=True):
    """Make a bundle of the shop's goods."""
    carried = ["--weights", f"smollm2-135m={shop / 'model'}"] if weights else ["--no-model"]
    return call(shop, SCRIPT, "--constraints", "constraints.txt", *carried, *options)


def bundled(shop):
    """A bundle in one folder."""
    done = gather(shop, "--output", "bundle")
    assert done.returncode == 0, done.stdout + done.stderr
    return shop / "bundle"


def files(folder):
    """Everything in a folder, by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_bundle_holds_wheels_weights_and_their_digests(shop):
    """For this Python, unless another is asked for."""
    found = files(bundled(shop))

    assert set(found) == {
        "SHA256SUMS",
        "models/smollm2-135m/model.safetensors",
        "python-version",
        "wheels/otherwheel-1.0-py3-none-any.whl",
        "wheels/tinywheel-1.0-py3-none-any.whl",
        "without",
    }
    assert found["python-version"].decode().strip() == VERSION
    assert found["SHA256SUMS"].decode().count("\n") == len(found) - 1


def test_what_the_target_has_is_left_out(shop):
    """And remembered."""
    done = gather(shop, "--without", "otherwheel", "--python-version", "3.12", "--output", "bundle", weights=False)

    assert done.returncode == 0, done.stderr
    found = files(shop / "bundle")
    assert [name for name in found if name.startswith(("wheels", "models"))] == [
        "wheels/tinywheel-1.0-py3-none-any.whl"
    ]
    assert (found["without"], found["python-version"]) == (b"otherwheel\n", b"3.12\n")


def test_parts_are_small_and_make_the_same_bundle_again(shop):
    """Byte for byte, in the order of their numbers."""
    whole = files(bundled(shop))
    split = gather(shop, "--part-size", "16K", "--output", "parts")
    joined = call(shop, SCRIPT, "--join", "parts", "--output", "joined")

    assert split.returncode == joined.returncode == 0, split.stderr + joined.stderr
    parts = files(shop / "parts")
    assert len(parts) > 3
    assert all(len(content) <= 16 * 1024 for content in parts.values())
    assert files(shop / "joined") == whole


def test_a_damaged_or_missing_part_is_named_and_nothing_is_made(shop):
    """One flipped byte; then a file that was not copied."""
    gather(shop, "--part-size", "16K", "--output", "parts")
    part = shop / "parts" / "bundle.tar.0001"
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)

    flipped = call(shop, SCRIPT, "--join", "parts", "--output", "joined")
    part.unlink()
    missing = call(shop, SCRIPT, "--join", "parts", "--output", "joined")

    for done in (flipped, missing):
        assert done.returncode == 1
        assert "bundle.tar.0001: FAILED" in done.stderr
        assert "copy the ones named above again" in done.stderr
    assert sorted(path.name for path in shop.iterdir()) == ["constraints.txt", "index", "model", "parts"]


def set_up(shop, bundle, **variables):
    """What `gpu-test.sh --bundle` does before the first tier."""
    script = (
        f'source "{project_folder()}/scripts/common.sh"; set_up_from_bundle "{bundle}" || exit; '
        '"$PYTHON" -c "import tinywheel; print(tinywheel.ANSWER)"; echo "$TUNECHECK_MODELS $HF_HUB_OFFLINE"'
    )
    given = {"VIRTUAL_ENV": str(shop / "venv"), "PIP_FIND_LINKS": "", "TUNECHECK_MODELS": "", **variables}
    return call(shop, "bash", "-euo", "pipefail", "-c", script, **given)


def test_a_bundle_is_installed_without_internet_and_its_weights_are_found(shop):
    """A virtual environment of its own; the second time nothing is installed."""
    bundle = bundled(shop)
    first, second = set_up(shop, bundle), set_up(shop, bundle)

    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "setting up" in first.stdout
    assert second.stdout.splitlines() == ["42", f"{bundle}/models 1"]


def test_what_is_left_out_may_be_in_the_virtual_environment_of_python3(shop):
    """As in GPU images, whose python3 lives in a virtual environment with a torch of its own."""
    gather(shop, "--without", "otherwheel", "--output", "bundle")
    outer = shop / "outer"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", outer], check=True, timeout=60)
    packages = next(outer.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(shop / "index" / "otherwheel-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(packages)
    (packages / "tinywheel.py").write_text("ANSWER = 'of the outer environment'\n")

    done = set_up(shop, shop / "bundle", BOOTSTRAP_PYTHON=str(outer / "bin" / "python"))

    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout.splitlines()
    seen = call(shop, shop / "venv" / "bin" / "python", "-c", "import otherwheel; print(otherwheel.__file__)")
    assert seen.stdout.startswith(str(packages)), seen.stderr


def fake_python(shop, version):
    """An environment whose Python says that it is of this version and has no packages."""
    python = shop / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$2" = "${{2#import importlib}}" ] || exit 1\necho {version}\n')
    python.chmod(0o755)


def test_a_bundle_for_another_python_is_refused(shop):
    """Before pip says something that nobody understands."""
    bundle = bundled(shop)
    fake_python(shop, "3.99")

    done = set_up(shop, bundle)

    assert done.returncode == 4
    assert f"holds wheels for Python {VERSION}, {shop}/venv/bin/python is 3.99" in done.stderr
    assert "--python-version 3.99" in done.stderr


def test_what_is_left_out_must_be_there(shop):
    """The target's own package; the message names it."""
    gather(shop, "--without", "otherwheel", "--output", "bundle")
    fake_python(shop, VERSION)

    done = set_up(shop, shop / "bundle")

    assert done.returncode == 4
    assert "leaves out otherwheel" in done.stderr


def test_a_damaged_bundle_parts_and_other_folders_are_refused(shop):
    """Each with its way out."""
    bundle = bundled(shop)
    gather(shop, "--part-size", "16K", "--output", "parts")
    (bundle / "models" / "smollm2-135m" / "model.safetensors").write_bytes(b"")

    answers = [set_up(shop, folder) for folder in (bundle, shop / "parts", shop / "index")]

    assert [done.returncode for done in answers] == [4, 4, 4]
    assert "model.safetensors: FAILED" in answers[0].stderr
    assert "--join" in answers[1].stderr
    assert "is no bundle" in answers[2].stderr


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ([], 4, "--output is missing"),
        (["--output"], 4, "--output needs a value"),
        (["--output", "index"], 4, "exists already"),
        (["--output", "new", "--frobnicate"], 4, "unknown argument '--frobnicate'"),
        (["--output", "new", "--part-size", "60"], 4, "write it like 60M"),
        (["--output", "new", "--join", "index"], 4, "SHA256SUMS is missing"),
        (["--output", "new", "--weights", "nowhere"], 4, "write NAME=FOLDER"),
        (["--output", "new", "--constraints", "nowhere"], 4, "there is no file nowhere"),
        (["--output", "new", "--without", "torch"], 1, "has no such package"),
        (["--output", "new", "--without", "tinywheel", "--python-version", "x"], 1, "could not gather"),
    ],
)
def test_a_wrong_request_is_a_message_and_leaves_nothing(shop, options, status, words):
    """Neither the folder nor an unfinished one."""
    before = sorted(shop.iterdir())
    done = gather(shop, *options)

    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert sorted(shop.iterdir()) == before


def test_a_wheel_that_there_is_not_is_an_error(shop):
    """pip's own words come first."""
    (shop / "constraints.txt").write_text("nosuchwheel==1.0\n")

    done = gather(shop, "--output", "bundle")

    assert done.returncode == 1
    assert "nosuchwheel" in done.stderr
    assert not (shop / "bundle").exists()


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("gpu-test.sh", ["--bundle", "/nowhere", "quick"], "--bundle needs a folder that exists"),
        ("gpu-test.sh", ["quick", "--vram-cap"], "--vram-cap needs a size"),
        ("gpu-test.sh", ["quick", "-k"], "-k needs an expression"),
    ],
)
def test_gpu_test_refuses_what_it_cannot_use(script, options, words):
    """Exit status 4 before anything is set up."""
    command = [project_folder() / "scripts" / script, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert done.returncode == 4
    assert words in done.stderr
