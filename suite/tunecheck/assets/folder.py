"""Complete folder of the cache: its manifest of files and digests, whether it is intact, and fits its model's YAML."""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tunecheck
from tunecheck.core.errors import SuiteError, WeightsDamaged, WeightsUnavailable
from tunecheck.core.evidence import Weights
from tunecheck.core.files import ANY_BYTES, JSON_BYTES, open_file, read_text, write_whole
from tunecheck.core.files import read_json as json_of
from tunecheck.models.description import Model

K = TypeVar("K")

MANIFEST = "manifest.json"
_STAMPS = "stamps.json"
_REPAIRS = "repairs.txt"
"""File with a line for each damaged copy that was replaced, which every later trace reports."""
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_TAKEN_ALONG = (
    *("generation_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"),
)
FILE_PATTERNS = (*_NEEDED, *_TAKEN_ALONG, _INDEX, "model*.safetensors")
"""Everything that is ever read of a model's folder or repository: no code, no pickles."""
_SHAPE_KEYS = {
    *("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"),
}
_REMEDY = (
    "correct the architecture and the parameters in the YAML (or by --set model.parameters=...), "
    "or point the source at the right model"
)


class PassedOver(Exception):
    """A source that cannot deliver, with the reason; the next one is tried."""


class ModelFolder(NamedTuple):
    """Verified folder of config, safetensors weights, tokenizer and manifest, and the record of its weights."""

    weights: Weights
    path: Path


def model_files(folder: Path) -> tuple[str, ...]:
    """Return the names of all files of the model in this folder. Raises PassedOver when one is missing."""
    weights = weight_files(folder)
    if missing := [name for name in (*_NEEDED, *weights) if not (folder / name).is_file()]:
        raise PassedOver(f"{folder} has no {', '.join(missing)}")
    return (*_NEEDED, *(name for name in (*_TAKEN_ALONG, _INDEX) if (folder / name).is_file()), *weights)


def weight_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the safetensors files, one or the index's shards. Raises PassedOver when there are none."""
    if not (folder / _WEIGHTS).is_file() and (index := folder / _INDEX).is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(Path(str(name)).name == name for name in shards.values()):
            raise damaged(index, "it maps no tensors to files of this folder", f"fetch it again into {folder}")
        return tuple(sorted(set(shards.values())))
    if (folder / _WEIGHTS).is_file():
        return (_WEIGHTS,)
    if pickles := sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)):
        why = "pickled weights are refused, since loading them runs whatever code is in them"
        remedy = "save the model with save_pretrained to get safetensors"
        raise PassedOver(f"{folder} has no {_WEIGHTS}, only {pickles[0]}: {why}; {remedy}")
    raise PassedOver(f"{folder} has no {_WEIGHTS}")


def seal(folder: Path, origin: Mapping[str, Any], expected: Mapping[str, str], *, remedy: str) -> None:
    """Write the manifest: origin and digests by file. Raises WeightsDamaged where one is not the `expected` digest."""
    files, stamps = {}, {}
    for path in sorted(folder.iterdir()):
        stamps[path.name] = stamp = stamp_of(path)
        files[path.name] = {"bytes": stamp[0], "sha256": check_digest(path, expected.get(path.name), remedy=remedy)}
    record = {"tunecheck": tunecheck.__version__, **origin, "files": files}
    (folder / MANIFEST).write_text(_as_json(record), encoding="utf-8")
    (folder / _STAMPS).write_text(_as_json(stamps), encoding="utf-8")


def open_sealed(folder: Path) -> ModelFolder:
    """Return the model's folder after verifying every file against the manifest. Raises as `verified` does."""
    weights, files = verified(folder, partial(Weights, sha256="", repairs=repairs_of(folder)))
    digests = [files[name][1] for name in weight_files(folder)]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return ModelFolder(dataclasses.replace(weights, sha256=whole), folder)


def repairs_of(folder: Path) -> tuple[str, ...]:
    """Return date and reason of each repair of this folder, the oldest first; empty for most."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return tuple(read_text(folder / _REPAIRS, JSON_BYTES).splitlines())
    return ()


def note_repair(folder: Path, damage: str, before: tuple[str, ...] = ()) -> None:
    """Record that this folder replaces a damaged copy, after the repairs recorded before."""
    lines = [*before, f"{datetime.now(UTC):%Y-%m-%d}: {' '.join(damage.split())} It was fetched again."]
    (folder / _REPAIRS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def verified(folder: Path, kind: Callable[..., K]) -> tuple[K, dict[str, tuple[int, str]]]:
    """Return the sealed origin, of this kind, and each file's bytes and SHA-256, read if size, times or inode changed.

    Raises WeightsDamaged for an altered file, FileNotFoundError for a missing one.
    """
    record = read_json(folder / MANIFEST)
    try:
        files = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in record.pop("files").items()}
        record.pop("tunecheck")
        origin = kind(**{**record, "notes": tuple(record["notes"])})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(folder / MANIFEST, "it is not a manifest", f"delete {folder}; it is built again") from error
    remedy = f"delete {folder} and run again: it is fetched anew"
    known, stamps = {}, {}
    with contextlib.suppress(OSError, ValueError):  # an unreadable file only means that everything is hashed again
        known = json_of(folder / _STAMPS)
    for name, (size_bytes, sha256) in files.items():
        path = folder / name
        stamps[name] = stamp_of(path)
        if isinstance(known, dict) and known.get(name) == stamps[name]:
            continue
        if stamps[name][0] != size_bytes:
            raise damaged(path, f"it has {stamps[name][0]} bytes, expected {size_bytes}", remedy)
        check_digest(path, sha256, remedy=remedy)
    if stamps != known:
        with contextlib.suppress(SuiteError):  # of a cache that may only be read: everything is hashed again next time
            write_whole(folder / _STAMPS, _as_json(stamps))
    return origin, files


def check_digest(path: Path, expected: str | None, *, remedy: str) -> str:
    """Return the file's SHA-256. Raises WeightsDamaged when another one is expected."""
    if (found := _sha256(path)) != (expected or found):
        size = path.stat().st_size
        raise damaged(path.resolve(), f"SHA-256 of its {size} bytes is {found}, expected {expected}", remedy)
    return found


def is_whole(folder: Path) -> bool:
    """Return whether the folder holds pretrained weights and every file has its size; nothing is hashed."""
    with contextlib.suppress(OSError, WeightsDamaged, KeyError, TypeError, AttributeError):
        record = read_json(folder / MANIFEST)
        sizes = [(folder / name).stat().st_size == entry["bytes"] for name, entry in record["files"].items()]
        return bool(record["pretrained"]) and all(sizes)
    return False


def damaged(path: Path, what: str, remedy: str) -> WeightsDamaged:
    return WeightsDamaged(f"{path} is damaged: {what}. What to do: {remedy}.")


def without_remedy(damage: WeightsDamaged) -> str:
    return str(damage).partition(" What to do:")[0]


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in this JSON file. Raises WeightsDamaged when there is none."""
    with contextlib.suppress(ValueError):
        if isinstance(value := json_of(path), dict):
            return value
    raise damaged(path, "it is not a JSON object", f"delete {path.parent} and fetch it again")


def stamp_of(path: Path) -> list[int]:
    """Return bytes, both times in ns and inode. The change time cannot be set back, so a write always shows."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


class AnotherModel(WeightsUnavailable):
    """The folder's config.json or weights are not those of the model that the YAML describes."""


def check_fit(folder: Path, model: Model, origin: str, *, exact: bool) -> tuple[str, ...]:
    """Compare the folder's shapes and parameter count with the YAML; return notes on other settings that differ.

    `origin` names the folder's content in messages. With `exact` every key of the architecture must be there and agree.
    Raises AnotherModel with both values, and WeightsDamaged for a weight file whose header does not fit its size.
    """
    config = read_json(folder / "config.json")
    nested = config.get("rope_parameters")  # where transformers 5 keeps rope_theta
    wrong: list[str] = []
    notes: list[str] = []
    for key, wanted in model.architecture.model_dump().items():
        found = config.get(key, nested.get(key) if isinstance(nested, dict) else None)
        if _same(found, wanted) or (found is None and not exact):
            continue
        text = f"{key} is {found} in {origin}, {wanted} in configs/models/{model.name}.yaml"
        (wrong if exact or key in _SHAPE_KEYS else notes).append(text)
    count = model.parameters if wrong else parameter_count(folder, tied=model.architecture.tie_word_embeddings)
    if count != model.parameters:
        wrong.append(f"{origin} holds {count} parameters, configs/models/{model.name}.yaml says {model.parameters}")
    if wrong:
        differs = f"{model.name}: the weights are of another model: {'; '.join(wrong)}"
        raise AnotherModel(f"{differs}. What to do: {_REMEDY}.")
    return tuple(notes)


def parameter_count(folder: Path, *, tied: bool) -> int:
    """Return the number of parameters in the folder's weight files, a tied head counted once. Raises WeightsDamaged."""
    from safetensors import SafetensorError, safe_open

    sizes: dict[str, int] = {}
    for path in (folder / name for name in weight_files(folder)):
        open_file(path, ANY_BYTES).close()  # the library would wait at a FIFO
        try:  # it checks the header against the file's size
            with safe_open(path, framework="numpy") as file:
                names = file.keys()  # a safe_open is no mapping
                sizes |= {name: math.prod(file.get_slice(name).get_shape()) for name in names}
        except SafetensorError as error:
            problem = f"its {path.stat().st_size} bytes are no whole safetensors file ({error})"
            raise damaged(path, problem, f"delete it and copy or download it again into {path.parent}") from error
    # Old LLaMA files carry the rotary frequencies, which are a buffer.
    counted = (name for name in sizes if not name.endswith("rotary_emb.inv_freq"))
    return sum(sizes[name] for name in counted if not (tied and name == "lm_head.weight"))


def _same(found: Any, wanted: Any) -> bool:
    """Return whether both are equal, up to the rounding of a float that was stored in 32 bits."""
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    return bool(found == wanted)
