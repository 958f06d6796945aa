"""Rows of a data set: from the hub where configured and available, else the files of its YAML.

From the hub comes one pinned file, Alpaca's JSON list, converted once to two splits that share no text.
"""

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunecheck.assets.cache import Shelf, shelf
from tunecheck.assets.folder import PassedOver, check_digest, damaged, repairs_of, seal, verified
from tunecheck.assets.hub import blob_digest, downloaded, offline
from tunecheck.config.schema import Data, HubRows
from tunecheck.core.errors import DataError, WeightsUnavailable
from tunecheck.core.evidence import Dataset
from tunecheck.core.files import ROWS_BYTES, read_bytes, read_json
from tunecheck.core.log import log
from tunecheck.core.paths import shipped_folder

CONVERSION = 1
"""Version of the conversion: increase it when the same file is to become other rows."""

SPLITS = ("train", "heldout")
Pair = tuple[str, str]


def resolve(data: Data, *, instead: bool = True) -> tuple[Dataset, Data]:
    """Return the record of the rows for the trace, and the description with the files that hold them.

    Where the hub's rows are not available, the YAML's own files are used, which is recorded; without `instead` that
    raises DataError, as files do that are damaged, cannot be read or have too few rows.
    """
    if data.hub is None:
        return _files(data), data
    try:
        return _delivered(data, data.hub)
    except PassedOver as reason:
        if not instead:
            remedy = f"What to do: run `tunecheck fetch {data.name}` where there is a network"
            raise DataError(f"{data.name}: {reason}. {remedy}; without it runs use {_identifier(data)}.") from None
        log.warning(f"{data.name}: {reason}; the rows of {_identifier(data)} are used instead")
        return dataclasses.replace(_files(data), instead_of=f"{data.hub.id}/{data.hub.file}: {reason}"), data


def _delivered(data: Data, source: HubRows) -> tuple[Dataset, Data]:
    """Return the hub's rows as `resolve` does. Raises PassedOver when neither hub nor cache has them, DataError."""
    try:
        with shelf(data.name, kind="data") as place:
            key = (source.model_dump(mode="json"), longest_row_bytes(data.max_length), CONVERSION)
            target = place.target("hub", *key)
            convert = functools.partial(_convert, data, source, place, target)
            record, _ = place.keep(target, convert, lambda kept: verified(kept, Dataset), offline)
    except WeightsUnavailable as error:  # raised by the cache, which is shared with models
        raise DataError(str(error)) from error.__cause__
    files = {split: str(target / f"{split}.jsonl") for split in SPLITS}
    return dataclasses.replace(record, repairs=repairs_of(target)), data.model_copy(update=files)


def _convert(data: Data, source: HubRows, place: Shelf, target: Path, again: bool) -> None:
    file = _download(source, place, again=again)
    remedy = f"delete {file.resolve()}, fetch again"
    digest = check_digest(file, source.sha256 or blob_digest(file), remedy=remedy)
    try:
        records = read_json(file, ROWS_BYTES)
    except ValueError as error:
        raise damaged(file, f"not JSON: {error}", remedy) from None
    train, heldout, note = splits(records, source, data.max_length)
    log.info(f"{data.name}: {note}")
    texts = [as_lines(train).encode(), as_lines(heldout).encode()]
    with place.building(target, needed_bytes=sum(map(len, texts))) as built:
        for split, text in zip(SPLITS, texts, strict=True):
            (built / f"{split}.jsonl").write_bytes(text)
        record = Dataset(
            name=data.name,
            source="hub",
            identifier=f"{source.id}/{source.file}",
            revision=source.revision,
            file_sha256=digest,
            sha256=hashlib.sha256(b"".join(texts)).hexdigest(),
            rows=len(train),
            heldout_rows=len(heldout),
            notes=(note,),
        )
        seal(built, dataclasses.asdict(record), {}, remedy="run again")


def _download(source: HubRows, place: Shelf, *, again: bool) -> Path:
    from huggingface_hub import hf_hub_download

    fetch = functools.partial(hf_hub_download, source.id, source.file, repo_type="dataset")
    about_bytes = 50_000_000  # as an Alpaca of 52,000 rows; for the message about a full disk
    try:
        return downloaded(place.model, source, "dataset", fetch, about_bytes, again=again)
    except PassedOver as reason:
        raise PassedOver("; ".join(filter(None, (offline(), f"{source.id}: {reason}")))) from None


def _files(data: Data) -> Dataset:
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
    train, heldout = Path(data.train), Path(data.heldout)
    return str(train.parent) if train.parent == heldout.parent else f"{train}, {heldout}"


def longest_row_bytes(max_length: int) -> int:
    """Return the UTF-8 bytes of a row that fit into max_length tokens with the template, if each byte is a token."""
    return max_length - 64  # alpaca's has 33 characters, SmolLM2's chat template 30 tokens with its system prompt


def as_lines(pairs: list[Pair]) -> str:
    """Return the rows as JSON lines, the format that `read_rows` reads."""
    rows = ({"instruction": instruction, "response": response} for instruction, response in pairs)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def splits(records: Any, hub: HubRows, max_length: int) -> tuple[list[Pair], list[Pair], str]:
    """Return the training rows and the held-out ones that `hub` requests, with a note on those that are left out.

    The first ones in the order of their instructions' digests are held out: on every machine the same, whatever the
    file's order and the number of training rows. Raises DataError for what is no such list, and for too few rows.
    """
    left_out: Counter[str] = Counter()
    usable = _usable(_pairs(records, hub), longest_row_bytes(max_length), left_out)
    pairs = sorted(usable, key=lambda pair: hashlib.sha256(_plain(pair[0]).encode()).hexdigest())
    heldout = pairs[: hub.heldout_rows]
    held = {_plain(text) for pair in heldout for text in pair}
    free = [pair for pair in pairs[hub.heldout_rows :] if held.isdisjoint(map(_plain, pair))]
    left_out["with a text of the held-out rows"] += len(pairs) - len(heldout) - len(free)
    told = [f"{count:,} {why}" for why, count in left_out.items() if count]
    note = f"{len(records):,} rows in the file; left out: {', '.join(told) or 'none'}"
    if len(heldout) + len(free) < hub.heldout_rows + hub.rows:
        raise DataError(
            f"{_where(hub)}: {hub.rows} + {hub.heldout_rows} rows are requested (data.hub.rows, data.hub.heldout_rows) "
            f"but only {len(heldout) + len(free)} can be used: {note}. "
            "What to do: request fewer, or raise data.max_length."
        )
    return free[: hub.rows], heldout, note


def _pairs(records: Any, hub: HubRows) -> Iterator[Pair]:
    if not isinstance(records, list):
        raise DataError(f"{_where(hub)}: a list of rows is expected, it holds {type(records).__name__}")
    for number, record in enumerate(records):
        held = record if isinstance(record, dict) else {}
        texts = [held.get(key, "") for key in ("instruction", "input", "output")]
        if not {"instruction", "output"} <= held.keys() or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{_where(hub)}: row {number} is not an object with the texts instruction, output and, where there is "
                f"one, input: {str(record)[:60]!r}. What to do: name another file in data.hub.file."
            )
        instruction, extra, output = texts
        yield f"{instruction}\n\n{extra}" if extra.strip() else instruction, output


def _usable(pairs: Iterator[Pair], longest_bytes: int, left_out: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs that can become rows, each instruction once; count the others by reason."""
    seen: set[str] = set()
    for pair in pairs:
        if not all(map(_is_text, pair)):
            left_out["without instruction or output"] += 1
        elif sum(len(text.encode()) for text in pair) > longest_bytes:
            left_out[f"longer than {longest_bytes} bytes"] += 1
        elif (asked := _plain(pair[0])) in seen:
            left_out["with a repeated instruction"] += 1
        else:
            seen.add(asked)
            yield pair


def _is_text(text: str) -> bool:
    """Return whether the text is not blank and encodes as UTF-8, which JSON's lone surrogates do not."""
    try:
        return bool(text.strip() and text.encode())
    except UnicodeEncodeError:
        return False


def _plain(text: str) -> str:
    """Return the text normalised for comparison; the probe that audits the splits has its own."""
    return " ".join(text.casefold().split())


def _where(hub: HubRows) -> str:
    return f"{hub.id}/{hub.file} at {hub.revision[:12]}"
