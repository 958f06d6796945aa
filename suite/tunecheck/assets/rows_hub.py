"""Rows from the Hugging Face hub: one file at a pinned revision, converted once to two splits in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunecheck.assets.alpaca import Splits, as_lines, longest_row_bytes, splits
from tunecheck.assets.cache import Shelf, disk_full_is_said, shelf
from tunecheck.assets.folder import PassedOver, check_digest, damaged, repairs_of, seal, verified
from tunecheck.assets.hub import ANSWER_SECONDS, blob_digest, downloaded, mended, offline
from tunecheck.config.schema import Data, HubRows
from tunecheck.core.errors import DataError, WeightsUnavailable
from tunecheck.core.evidence import Dataset
from tunecheck.core.reading import ROWS_BYTES, read_json

CONVERSION = 1
"""Version of the conversion: increase it when the same file is to become other rows."""
FILE_BYTES = 50_000_000
"""About the size of an Alpaca of 52,000 rows; for the message about a full disk."""
SPLITS = ("train", "heldout")


def deliver(data: Data, source: HubRows, say: Callable[[str], None]) -> tuple[Dataset, Path]:
    """Return the record of the rows, and the verified folder with train.jsonl and heldout.jsonl.

    Raises PassedOver when neither hub nor cache has the file, DataError for a file that a second download did not
    repair or that has too few rows, and for an unusable cache.
    """
    try:
        with shelf(data.name, say, kind="data") as place:
            key = (source.model_dump(mode="json"), longest_row_bytes(data.max_length), CONVERSION)
            target = place.target("hub", *key)

            def convert(again: bool) -> None:
                _convert(data, source, place, target, again)

            return place.keep(target, mended(convert, place, target), _opened)
    except WeightsUnavailable as error:  # raised by the cache, which is shared with models
        raise DataError(str(error)) from None


def _opened(folder: Path) -> tuple[Dataset, Path]:
    return dataclasses.replace(verified(folder, Dataset)[0], repairs=repairs_of(folder)), folder


def _convert(data: Data, source: HubRows, place: Shelf, target: Path, again: bool) -> None:
    file = _download(source, place, again=again)
    remedy = f"delete {file.resolve()}, fetch again"
    digest = check_digest(file, source.sha256 or blob_digest(file), remedy=remedy)
    found = splits(_parsed(file, remedy), source, data.max_length)
    place.say(f"{data.name}: {'; '.join(found.notes)}")
    texts = [as_lines(found.train).encode(), as_lines(found.heldout).encode()]
    with place.building(target, needed_bytes=sum(map(len, texts))) as workspace:
        for split, text in zip(SPLITS, texts, strict=True):
            (workspace / "model" / f"{split}.jsonl").write_bytes(text)
        record = _record(data, source, found, file_sha256=digest, sha256=hashlib.sha256(b"".join(texts)).hexdigest())
        seal(workspace / "model", dataclasses.asdict(record), {}, remedy="run again")


def _record(data: Data, source: HubRows, found: Splits, *, file_sha256: str, sha256: str) -> Dataset:
    return Dataset(
        name=data.name,
        source="hub",
        identifier=f"{source.id}/{source.file}",
        revision=source.revision,
        file_sha256=file_sha256,
        sha256=sha256,
        rows=len(found.train),
        heldout_rows=len(found.heldout),
        notes=found.notes,
    )


def _download(source: HubRows, place: Shelf, *, again: bool) -> Path:
    """Return the file in the hub's cache, downloading it where it is missing. Raises PassedOver."""
    from huggingface_hub import constants, hf_hub_download

    problem = offline()
    if problem is None:
        place.say(f"{place.model}: fetching {source.id}/{source.file} at {source.revision[:12]} from the hub")

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
        with disk_full_is_said(place.model, Path(constants.HF_HUB_CACHE), FILE_BYTES):
            return Path(downloaded(source.id, "dataset", source.revision, fetch, problem is not None))
    except PassedOver as reason:
        raise PassedOver("; ".join(filter(None, (problem, f"{source.id}: {reason}")))) from None


def _parsed(file: Path, remedy: str) -> Any:
    try:
        return read_json(file, ROWS_BYTES)
    except ValueError as error:
        raise damaged(file, f"not JSON: {error}", remedy) from None
