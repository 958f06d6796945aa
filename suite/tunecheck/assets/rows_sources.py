"""Source of a data set's rows: the hub where configured and available, else the files of its YAML."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from tunecheck.assets import rows_hub as hub
from tunecheck.assets.folder import PassedOver
from tunecheck.config.schema import Data, HubRows
from tunecheck.core.errors import DataError
from tunecheck.core.evidence import Dataset
from tunecheck.core.paths import shipped_folder
from tunecheck.core.reading import ROWS_BYTES, read_bytes


def resolve(data: Data, say: Callable[[str], None]) -> tuple[Dataset, Data]:
    """Return the record of the rows for the trace, and the description with the files that hold them.

    Where the hub's rows are not available, the YAML's own files are used; that is reported and recorded. Raises
    DataError for a file that is damaged, cannot be read, or has too few rows.
    """
    if data.hub is None:
        return _files(data), data
    try:
        return _from_hub(data, data.hub, say)
    except PassedOver as reason:
        say(f"{data.name}: {reason}; the rows of {_identifier(data)} are used instead")
        return dataclasses.replace(_files(data), instead_of=f"{data.hub.id}/{data.hub.file}: {reason}"), data


def fetch(data: Data, say: Callable[[str], None]) -> tuple[Dataset, Data]:
    """Return the same as `resolve`, but raise DataError with the hub's answer where its rows are not available."""
    if data.hub is None:
        return _files(data), data
    try:
        return _from_hub(data, data.hub, say)
    except PassedOver as reason:
        raise DataError(
            f"{data.name}: {reason}. What to do: run `tunecheck fetch {data.name}` where there is a network; "
            f"without it runs use {_identifier(data)}."
        ) from None


def _from_hub(data: Data, source: HubRows, say: Callable[[str], None]) -> tuple[Dataset, Data]:
    try:
        record, folder = hub.deliver(data, source, say)
    except OSError as error:
        raise DataError(
            f"{data.name}: {error.filename or source.id}: {error.strerror or error}. "
            "What to do: make the file readable, or the disk writable."
        ) from error
    return record, data.model_copy(update={split: str(folder / f"{split}.jsonl") for split in hub.SPLITS})


def _files(data: Data) -> Dataset:
    """Return the record of the YAML's own two files. Raises DataError for one that cannot be read."""
    contents = []
    for path in map(data.file, hub.SPLITS):
        try:
            contents.append(read_bytes(path, ROWS_BYTES))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    shipped = all(data.file(split).resolve().is_relative_to(shipped_folder() / "configs") for split in hub.SPLITS)
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
