"""The traces of every script that was ever scored, kept so that a change of a check shows its whole effect at once.

`keep` trains all scripts again and packs their traces (minutes); `replay` judges the packed ones, prints what differs
from the judgements that stand beside them, and takes seconds. `replay --write` makes the new judgements the standing.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tunecheck.core.trace import Trace, read
from tunecheck.results import RunReport
from tunecheck.results.rejudge import judged_again

FOLDER = Path(__file__).parent
PACK, STANDING = FOLDER / "corpus.tar.xz", FOLDER / "corpus.json"
INDEX = "index.json"
ROOT = FOLDER.parents[1]


@dataclass(frozen=True, slots=True)
class Kept:
    """A script of the corpus."""

    kind: str
    """healthy or bugs."""
    name: str
    named_by: tuple[str, ...] = ()
    """Checks of which one is to name the mistake."""

    @property
    def file(self) -> str:
        """Name of its trace in the pack."""
        return f"{self.kind}-{re.sub(r'[^a-zA-Z0-9]+', '-', self.name).strip('-')}.jsonl"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was said of one trace."""

    outcome: str
    failed: tuple[str, ...]
    suspected: tuple[str, ...]

    @classmethod
    def of(cls, row: RunReport) -> Judgement:
        """Return the judgement of this row."""
        failed, suspected = (tuple(sorted(f.check for f in found)) for found in (row.failed, row.suspected))
        return cls(row.outcome, failed, suspected)


def traces(pack: Path = PACK) -> Iterator[tuple[Kept, Trace]]:
    """Yield every script of the pack with its trace. Raises TraceError for a trace of another schema."""
    with tarfile.open(pack) as packed, tempfile.TemporaryDirectory() as folder:
        packed.extractall(folder, filter="data")
        for entry in json.loads((Path(folder) / INDEX).read_text(encoding="utf-8")):
            kept = Kept(entry["kind"], entry["name"], tuple(entry["named_by"]))
            yield kept, read(Path(folder) / kept.file)


def replayed(pack: Path = PACK) -> dict[Kept, Judgement]:
    """Return the judgement of every trace of the pack."""
    return {kept: Judgement.of(judged_again(trace, [], trace_file=kept.file)) for kept, trace in traces(pack)}


def differences(now: dict[Kept, Judgement], standing: dict[str, dict[str, object]]) -> list[str]:
    """Return in lines what is judged otherwise than it stands, by script."""
    lines = []
    for kept, found in now.items():
        before = standing.get(kept.file)
        after = json.loads(json.dumps(asdict(found)))
        if before != after:
            lines.append(f"{kept.kind} {kept.name}: {_words(before)} -> {_words(after)}")
    gone = set(standing) - {kept.file for kept in now}
    return [*lines, *(f"no longer there: {file}" for file in sorted(gone))]


def _words(found: dict[str, object] | None) -> str:
    if found is None:
        return "none"
    told = [f"{key} {', '.join(checks)}" for key in ("failed", "suspected") if (checks := found[key])]  # type: ignore[arg-type]
    return "; ".join([str(found["outcome"]), *told])


def summary(now: dict[Kept, Judgement]) -> str:
    """Return the rates of healthy scripts flagged and of mistakes named, and what flags or misses most."""
    healthy = [found for kept, found in now.items() if kept.kind == "healthy"]
    mistakes = [(kept, found) for kept, found in now.items() if kept.kind == "bugs"]
    flagged = Counter(check for found in healthy for check in found.failed)
    asked = Counter(check for found in healthy for check in found.suspected)
    failed = sum(bool({*found.failed} & {*kept.named_by}) for kept, found in mistakes)
    named = sum(bool({*found.failed, *found.suspected} & {*kept.named_by}) for kept, found in mistakes)
    inconclusive = sum(found.outcome == "inconclusive" for found in healthy)
    return "\n".join(
        [
            f"healthy: {len(healthy)}, flagged {sum(bool(f.failed) for f in healthy)}, inconclusive {inconclusive}, "
            f"suspicions {asked.total()} ({asked.total() / max(1, len(healthy)):.2f} a script)",
            f"mistakes: {len(mistakes)}, named {named}, of them failed {failed}",
            *(f"  flagged {count} healthy by {check}" for check, count in flagged.most_common()),
            *(f"  asked of {count} healthy by {check}" for check, count in asked.most_common()),
        ]
    )


def keep(only: list[str]) -> None:
    """Train the scripts (all by default) and pack their traces; those that are not trained keep the old ones."""
    from benchmarks.scripts.__main__ import ALL_HEALTHY, script_of
    from benchmarks.scripts.bugs import MISTAKES
    from benchmarks.scripts.script import judged

    entries = [Kept("healthy", name) for name in ALL_HEALTHY]
    entries += [Kept("bugs", name, tuple(sorted(held.named_by))) for name, held in MISTAKES.items()]
    files: dict[str, bytes] = {}
    if only:
        with tarfile.open(PACK) as packed:
            files = {info.name: file.read() for info in packed if (file := packed.extractfile(info)) is not None}
    for kept in entries:
        if only and kept.name not in only:
            continue
        script = script_of(kept.kind, kept.name)
        assert script is not None
        with tempfile.TemporaryDirectory() as folder:
            judged(script, Path(folder))
            (trace,) = Path(folder).glob("watch-*.jsonl")
            files[kept.file] = trace.read_bytes().replace(f"{ROOT}/".encode(), b"")
    files[INDEX] = json.dumps([asdict(kept) for kept in entries], indent=0).encode()
    with tarfile.open(PACK, "w:xz") as packed:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))


def main() -> int:
    """Execute the command; 1 where a judgement differs from the standing one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripts.corpus", description=__doc__)
    parser.add_argument("what", choices=["keep", "replay"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="keep: train these scripts alone")
    parser.add_argument("--write", action="store_true", help="replay: make the new judgements the standing ones")
    options = parser.parse_args()
    if options.what == "keep":
        keep(options.names)
        return 0
    now = replayed()
    standing = json.loads(STANDING.read_text(encoding="utf-8")) if STANDING.exists() else {}
    told = differences(now, standing)
    print("\n".join([*told, summary(now)]))
    if options.write:
        text = json.dumps({kept.file: asdict(found) for kept, found in now.items()}, indent=1)
        STANDING.write_text(f"{text}\n", encoding="utf-8")
    return int(bool(told) and not options.write)


if __name__ == "__main__":
    raise SystemExit(main())
