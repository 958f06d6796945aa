"""Rows of a data set: from the hub where configured and available, else the files of its YAML.

From the hub comes one file at a pinned revision, converted once to two splits in the cache.
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

from tunecheck.assets.alpaca import as_lines, longest_row_bytes, splits
from tunecheck.assets.cache import Shelf, shelf
from tunecheck.assets.folder import PassedOver, check_digest, damaged, repairs_of, seal, verified
from tunecheck.assets.hub import ANSWER_SECONDS, blob_digest, downloaded, mended, offline
from tunecheck.config.schema import Data, HubRows
from tunecheck.core.errors import DataError, WeightsUnavailable
from tunecheck.core.evidence import Dataset
from tunecheck.core.log import log
from tunecheck.core.paths import shipped_folder
from tunecheck.core.reading import ROWS_BYTES, read_bytes, read_json

CONVERSION = 1
"""Version of the conversion: increase it when the same file is to become other rows."""
FILE_BYTES = 50_000_000
"""About the size of an Alpaca of 52,000 rows; for the message about a full disk."""
SPLITS = ("train", "heldout")


def resolve(data: Data) -> tuple[Dataset, Data]:
    """Return the record of the rows for the trace, and the description with the files that hold them.

    Where the hub's rows are not available, the YAML's own files are used; that is reported and recorded. Raises
    DataError for a file that is damaged, cannot be read, or has too few rows, and for an unusable cache.
    """
    try:
        return _delivered(data)
    except PassedOver as reason:
        assert data.hub is not None
        log.warning(f"{data.name}: {reason}; the rows of {_identifier(data)} are used instead")
        return dataclasses.replace(_files(data), instead_of=f"{data.hub.id}/{data.hub.file}: {reason}"), data


def fetch(data: Data) -> tuple[Dataset, Data]:
    """Return the same as `resolve`, but raise DataError with the hub's answer where its rows are not available."""
    try:
        return _delivered(data)
    except PassedOver as reason:
        raise DataError(
            f"{data.name}: {reason}. What to do: run `tunecheck fetch {data.name}` where there is a network; "
            f"without it runs use {_identifier(data)}."
        ) from None


def _delivered(data: Data) -> tuple[Dataset, Data]:
    """Return the record and the description, from the hub with the verified files train.jsonl and heldout.jsonl.

    Raises PassedOver when neither hub nor cache has the file, DataError for a file that a second download did not
    repair or that has too few rows, and for an unusable cache.
    """
    if (source := data.hub) is None:
        return _files(data), data
    try:
        with shelf(data.name, kind="data") as place:
            key = (source.model_dump(mode="json"), longest_row_bytes(data.max_length), CONVERSION)
            target = place.target("hub", *key)
            convert = functools.partial(_convert, data, source, place, target)
            record, _ = place.keep(target, mended(convert, place, target), lambda kept: verified(kept, Dataset))
    except WeightsUnavailable as error:  # raised by the cache, which is shared with models
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(
            f"{data.name}: {error.filename or source.id}: {error.strerror or error}. "
            "What to do: make the file readable, or the disk writable."
        ) from error
    files = {split: str(target / f"{split}.jsonl") for split in SPLITS}
    return dataclasses.replace(record, repairs=repairs_of(target)), data.model_copy(update=files)


def _convert(data: Data, source: HubRows, place: Shelf, target: Path, again: bool) -> None:
    file = _download(source, place, again=again)
    remedy = f"delete {file.resolve()}, fetch again"
    digest = check_digest(file, source.sha256 or blob_digest(file), remedy=remedy)
    found = splits(_parsed(file, remedy), source, data.max_length)
    log.info(f"{data.name}: {'; '.join(found.notes)}")
    texts = [as_lines(found.train).encode(), as_lines(found.heldout).encode()]
    with place.building(target, needed_bytes=sum(map(len, texts))) as workspace:
        for split, text in zip(SPLITS, texts, strict=True):
            (workspace / "model" / f"{split}.jsonl").write_bytes(text)
        record = Dataset(
            name=data.name,
            source="hub",
            identifier=f"{source.id}/{source.file}",
            revision=source.revision,
            file_sha256=digest,
            sha256=hashlib.sha256(b"".join(texts)).hexdigest(),
            rows=len(found.train),
            heldout_rows=len(found.heldout),
            notes=found.notes,
        )
        seal(workspace / "model", dataclasses.asdict(record), {}, remedy="run again")


def _download(source: HubRows, place: Shelf, *, again: bool) -> Path:
    """Return the file in the hub's cache, downloading it where it is missing. Raises PassedOver."""
    from huggingface_hub import hf_hub_download

    def fetch(local: bool) -> Any:
        return hf_hub_download(
            source.id,
            source.file,
            repo_type="dataset",
            revision=source.revision,
            etag_timeout=ANSWER_SECONDS,
            force_download=again and not local,
            local_files_only=local,
        )

    try:
        return downloaded(place.model, source, "dataset", fetch, FILE_BYTES)
    except PassedOver as reason:
        raise PassedOver("; ".join(filter(None, (offline(), f"{source.id}: {reason}")))) from None


def _parsed(file: Path, remedy: str) -> Any:
    try:
        return read_json(file, ROWS_BYTES)
    except ValueError as error:
        raise damaged(file, f"not JSON: {error}", remedy) from None


def _files(data: Data) -> Dataset:
    """Return the record of the YAML's own two files. Raises DataError for one that cannot be read."""
    contents = []
    for path in map(data.file, SPLITS):
        try:
            contents.append(read_bytes(path, ROWS_BYTES))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    shipped = all(data.file(split).resolve().is_relative_to(shipped_folder() / "configs") for split in SPLITS)
    rows, heldout_rows = (len(content.splitlines()) for content in contents)
    return Dataset(
        name=data.name,
        source="shipped" if shipped else "local",
        identifier=_identifier(data),
        revision="",
        file_sha256="",
        sha256=hashlib.sha256(b"".join(contents)).hexdigest(),
        rows=rows,
        heldout_rows=heldout_rows,
    )


def _identifier(data: Data) -> str:
    """Return the two files; their folder where it is the same."""
    train, heldout = Path(data.train), Path(data.heldout)
    return str(train.parent) if train.parent == heldout.parent else f"{train}, {heldout}"
