"""Load runs: YAML to typed, frozen `Run` objects; every problem is reported with file, line and column."""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunecheck.config.cards import apply_card
from tunecheck.config.comparisons import TIERS as TIERS
from tunecheck.config.comparisons import RunFile as RunFile
from tunecheck.config.comparisons import drop_unused, entries, split
from tunecheck.config.compatibility import broken_rules, incompatibilities
from tunecheck.config.problems import loaded, report_limits, report_unanswerable, validated
from tunecheck.config.schema import Data, Run
from tunecheck.config.source import REFERENCES, Document, described, fill, parse, parse_value, settle_files, shown
from tunecheck.core.errors import ConfigError
from tunecheck.core.files import YAML_BYTES, read_text
from tunecheck.core.paths import config_files
from tunecheck.core.spelling import nearest, nearest_few
from tunecheck.models.description import Model

ALSO_IN = re.compile(r"also_in:([^#\n]*(?:\n\s*-[^#\n]*)*)")
"""The key with its value, on one line or as a list below it."""


def run_files(tier: str | None = None) -> list[Path]:
    return [path for name in TIERS if tier in (None, name) for path in config_files(name)]


def run_sources(tier: str | None = None) -> list[RunFile]:
    """Return where each run of one tier, or of all tiers, is written, the entries of a comparison in its order."""
    return [RunFile(path, entry) for path in run_files(tier) for entry in entries(parse(path, shown(path)))]


def read_runs(
    tier: str, overrides: Sequence[str] = (), card: str | None = None, only: Sequence[RunFile] = ()
) -> tuple[list[Run], dict[RunFile, ConfigError]]:
    """Load the runs of a tier, or `only` these of it; return them, and the errors of those that failed."""
    runs: list[Run] = []
    unusable: dict[RunFile, ConfigError] = {}
    for path in dict.fromkeys(file.path for file in only if file.tier == tier) if only else run_files(tier):
        try:
            documents = _documents(path, overrides, card)
        except ConfigError as error:
            documents = {}
            unusable[RunFile(path)] = error
        for entry, document in documents.items():
            file = RunFile(path, entry)
            if only and not {file, RunFile(path)} & set(only):
                continue
            try:
                runs.append(_run(document, file))
            except ConfigError as error:
                unusable[file] = error
    return runs, unusable


def all_problems(errors: Iterable[ConfigError]) -> ConfigError:
    """Return one error with the problems of all, each once: a wrong --set is wrong in every file alike."""
    return ConfigError(list(dict.fromkeys(problem for error in errors for problem in error.problems)))


def mentions(path: Path, tier: str) -> bool:
    """Return whether the file puts a run into this tier through `also_in`; True for a file that cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return any(tier in re.findall(r"\w+", listed) for listed in ALSO_IN.findall(read_text(path, YAML_BYTES)))
    return True


def find_run(name: str, *, also: Collection[str] = ()) -> RunFile:
    """Return where a run is written, by its name ("quick/smollm2-135m-qlora"), its id or the path of its YAML file.

    Raises ConfigError for no such run or several of them; it suggests the nearest name, `also` one of these.
    """
    if name.endswith((".yaml", ".yml")):
        if not os.path.isfile(name):
            raise ConfigError([f"there is no file {name!r}; `tunecheck list` shows the runs by name"])
        if (file := RunFile(Path(name))).tier not in TIERS:
            raise ConfigError(parse(file.path, shown(file.path)).problems or [f"{name}: tier: {_unknown_tier(file)}"])
        return file
    sources = dict.fromkeys([*map(RunFile, run_files()), *run_sources()])  # a comparison by its file, too
    if len(matches := [source for source in sources if name in (source.name, source.id)]) > 1:
        raise ConfigError([f"{name!r} is in several tiers: name {' or '.join(match.name for match in matches)}"])
    if not matches:
        known = [source.name for source in sources]
        hint = nearest(name, also) or nearest(name, known) or nearest_few(name, known)
        raise ConfigError([f"no {'tier or ' if also else ''}run is called {name!r}{hint}"])
    return matches[0]


def find_single_run(name: str) -> RunFile:
    """Return where exactly one run is written, by its name, its id or its path. Raises ConfigError for a comparison."""
    file = find_run(name)
    _require_one(file, entries(parse(file.path, shown(file.path))))
    return file


def load_run(source: RunFile | Path, overrides: Sequence[str] = (), card: str | None = None) -> Run:
    """Load one run, with the card class's keys ("8gb") and then the overrides ("a.b=c") applied. Raises ConfigError."""
    file = source if isinstance(source, RunFile) else RunFile(source)
    documents = _documents(file.path, overrides, card)
    _require_one(file, documents)
    return _run(documents[file.entry], file)


def load_model(name: str) -> Model:
    """Load the model described in configs/models/NAME.yaml. Raises ConfigError."""
    document = described("models", name)
    fill(document, (), {"name": name})
    return loaded(Model, document)


def load_data(name: str) -> Data:
    """Load the data set described in configs/data/NAME.yaml. Raises ConfigError."""
    document = described("data", name)
    fill(document, (), {"name": name})
    settle_files(document, ())
    return loaded(Data, document)


def with_limits(
    limits: Mapping[str, Any], overrides: Sequence[str], features: Collection[str] | None = None
) -> dict[str, Any]:
    """Return a trace's limits with overrides ("checks.NAME.LIMIT=0.2") applied, which must fit `features`, if given."""
    document = Document({"checks": json.loads(json.dumps(limits))}, places={(): "the trace"})
    foreign = [override for override in overrides if not override.startswith("checks.")]
    rule = "only limits can be set here, as checks.NAME.LIMIT=VALUE"
    document.problems += [f"--set {given}: {rule}{nearest(given.partition('.')[0], ['checks'])}" for given in foreign]
    _apply(document, [override for override in overrides if override not in foreign])
    report_limits(document)
    if features is not None:
        report_unanswerable(document, features)
    if document.problems:
        raise ConfigError(document.problems)
    changed: dict[str, Any] = document.data["checks"]
    return changed


def _documents(path: Path, overrides: Sequence[str], card: str | None) -> dict[str, Document]:
    """Return the document of each run in this file by entry ("" for a single run), card and overrides applied."""
    document = parse(path, shown(path))
    references = [override for override in overrides if override.partition("=")[0] in REFERENCES]
    _apply(document, references)
    names = {key: _graft(document, key) for key in REFERENCES}
    if card is not None:
        if (tier := RunFile(path).tier) in ("memory", "extended", "full"):
            rule = f"applies to quick and convergence only; the limits of {tier} are for its own strategy"
            raise ConfigError([f"--card {card}: {rule}"])
        apply_card(document, card)
    documents = split(document)
    for entry, part in documents.items():
        _apply(part, [override for override in overrides if override not in references])
        for key, name in names.items():
            if name is not None:
                fill(part, (key,), {"name": name})
        if names["data"] is not None:
            settle_files(part, ("data",))
        if entry:
            drop_unused(part)
    return documents


def _require_one(file: RunFile, there: Collection[str]) -> None:
    if file.entry not in there:
        known = ", ".join(RunFile(file.path, entry).name for entry in there)
        raise ConfigError([f"{shown(file.path)}: compares several runs, name one of them: {known}"])


def _run(document: Document, file: RunFile) -> Run:
    written = document.data.pop("tier", file.tier)  # where the file's folder does not say it
    fill(document, (), {"id": file.id, "tier": file.tier, "comparison": file.comparison, "entry": file.entry})
    if file.tier not in TIERS:
        document.report(("tier",), _unknown_tier(file))
    elif written != file.tier:
        rule = f"should be that of the file's folder, {file.tier!r}: leave it out (got {written!r})"
        document.report(("tier",), rule)
    report_limits(document)
    if (run := validated(Run, document)) is not None:
        run._places.update(document.places)
        if not (broken := [*broken_rules(run)]):
            report_unanswerable(document, run.features)
        for key, rule in broken or incompatibilities(run):
            document.report(tuple(key.split(".")), rule)
    if run is None or document.problems:
        raise ConfigError(document.problems)
    return run


def _unknown_tier(file: RunFile) -> str:
    way_out = f"write `tier: quick` into the file, or move it into a folder configs/quick (got {file.tier!r})"
    return f"should be one of {', '.join(TIERS)}; {way_out}"


def _graft(document: Document, key: str) -> str | None:
    """Replace the name under `key` by the file that it refers to; return the name. An unknown name is a problem."""
    if key not in document.data:
        return None
    name = document.data[key]
    try:
        document.graft(key, described(REFERENCES[key], name))
    except ConfigError as error:
        document.report((key,), *error.problems)
        return None
    return str(name)


def _apply(document: Document, overrides: Sequence[str]) -> None:
    for override in overrides:
        key, separator, text = override.partition("=")
        path = tuple(key.split("."))
        if not separator or not all(path):
            document.problems.append(f"--set {override}: write it as section.key=value")
            continue
        try:
            document.set(path, parse_value(text), f"--set {override}")
        except ConfigError as error:
            document.problems += [f"--set {override}: {problem}" for problem in error.problems]
