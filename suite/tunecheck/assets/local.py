"""Weights made without a network: a folder on this machine, used through links, or random ones.

Random weights are valid for memory and speed, and no evidence of learning.
"""

import os
import re
from pathlib import Path

from tunecheck.assets import build
from tunecheck.assets.cache import Wanted
from tunecheck.assets.folder import (
    MANIFEST,
    ModelFolder,
    PassedOver,
    check_fit,
    model_files,
    open_sealed,
    read_json,
    seal,
    stamp_of,
)
from tunecheck.core.errors import ConfigError, WeightsDamaged
from tunecheck.core.log import log
from tunecheck.core.paths import configs_folders
from tunecheck.models.description import LocalSource, RandomSource

BYTE_VOCABULARY = 259
"""Size of the tokenizer of random weights: 256 bytes and <pad>, <s>, </s>."""


def deliver(source: LocalSource, wanted: Wanted) -> ModelFolder:
    """Return the folder, verified against its own manifest where it has one.

    Raises PassedOver when it does not exist or is incomplete, WeightsDamaged for a truncated or altered file, and
    WeightsUnavailable when it holds another model.
    """
    folder = _expanded(source.path)
    names = model_files(folder)
    record = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    pretrained = record.get("pretrained", True) is True
    if not pretrained and not wanted.allow_random:
        raise PassedOver(f"{folder} holds random weights, as its {MANIFEST} says, and this run does not allow them")
    notes = check_fit(folder, wanted.model, str(folder), exact=False)
    revision = str(record.get("revision", ""))
    origin = wanted.origin("local", str(folder), revision, pretrained=pretrained, notes=notes)
    named = {} if source.sha256 is None else {"model.safetensors": source.sha256}
    expected = {**_recorded_digests(record, folder), **named}
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
    """Return the architecture with weights drawn from its own initialisation under the seed, and a tokenizer.

    Raises PassedOver unless the run allows random weights, ConfigError for a vocabulary smaller than the tokenizer's.
    """
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


def _expanded(text: str) -> Path:
    path = os.path.expandvars(os.path.expanduser(text))
    if unset := re.findall(r"\$\{?(\w+)", path):
        raise PassedOver(f"{text}: {unset[0]} is not set")
    shipped = [configs / "models" / path for configs in configs_folders()]
    folder = next((folder for folder in shipped if os.path.isdir(folder)), Path(path).absolute())
    if not os.path.isdir(folder):
        raise PassedOver(f"{folder} does not exist")
    return folder


def _recorded_digests(record: dict[str, object], folder: Path) -> dict[str, str]:
    """Return the digests of a manifest that was copied along with a cached folder; none without a manifest."""
    files = record.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise WeightsDamaged(f"{folder / MANIFEST} is not a manifest. What to do: delete it, or copy the folder again.")
    return {name: str(entry.get("sha256")) for name, entry in files.items()}
