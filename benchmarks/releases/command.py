"""`python -m benchmarks.releases`: install each pair of releases, train one script under `tunecheck watch`, and write
the table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.releases.environment import environment, kept_or_temporary
from benchmarks.releases.pairs import PAIRS, Pair
from benchmarks.releases.results import record
from benchmarks.releases.watched import Seen, watched
from tunecheck.cli.parser import Parser, run_command
from tunecheck.core.errors import ConfigError

TRAININGS = Path(__file__).parent / "trainings"
LIBRARIES = ("transformers=", "peft=", "accelerate=")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the pairs and return 0 where every bad release is named and every good one passes."""
    parser = Parser(prog="python -m benchmarks.releases", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this pair; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the pairs and install nothing")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the environments in this folder, and use it")
    parser.set_defaults(command=_try_pairs)
    return run_command(parser, arguments)


def _try_pairs(options: Any) -> int:
    if options.list:
        for pair in PAIRS.values():
            _say(f"{pair.name}: {' '.join(pair.bad)} -> {' '.join(pair.good) or 'no good release'}: {pair.wrong}")
        return 0
    names = options.only or list(PAIRS)
    if unknown := [name for name in names if name not in PAIRS]:
        way_out = "`python -m benchmarks.releases --list` lists them"
        raise ConfigError([f"no pair of releases is called {name!r}: {way_out}" for name in unknown])
    ok = True
    for name in names:
        row = try_pair(PAIRS[name], options.keep)
        record(row)
        ok = ok and row["named"] and row["good_passes"] is not False
        _say(line_of(row))
    return 0 if ok else 1


def try_pair(pair: Pair, keep: Path | None) -> dict[str, Any]:
    """Return the pair's row: what was said of the bad environment and of the good one."""
    seen: dict[str, Seen | None] = {"bad": None, "good": None}
    for side, packages in (("bad", pair.bad), ("good", pair.good)):
        if packages:
            with kept_or_temporary(keep) as folder:
                place = folder / f"{pair.name}-{side}"
                with environment(place, (*pair.common, *packages), keep=keep is not None) as python:
                    script = [str(python), str(TRAININGS / pair.training), *pair.arguments]
                    seen[side] = watched(python, script, steps=pair.steps, expect=pair.expect)
    bad, good = seen["bad"], seen["good"]
    assert bad is not None
    found = bad.suspected | bad.failed
    named_by = [check for check in pair.named_by if check in found]
    return {
        "name": pair.name,
        "bad": " ".join(pair.bad),
        "good": " ".join(pair.good),
        "with": [
            package for package in pair.common if package.split("==")[0] in ("transformers", "peft", "accelerate")
        ],
        "wrong": pair.wrong,
        "source": pair.source,
        "named": bool(named_by),
        "named_by": named_by,
        "asked": not {*named_by} & {*bad.failed},
        "says": found[named_by[0]] if named_by else "",
        "failed_too": [check for check in bad.failed if check not in named_by],
        "reason": bad.reason,
        "passed": bad.passed,
        "good_outcome": good.outcome if good else None,
        "good_passes": good.outcome == "pass" if good else None,
        "good_failed": good.failed if good else {},
        "good_reason": good.reason if good else "",
        "good_passed": good.passed if good else None,
        "good_unjudged": len(good.unjudged) if good else None,
        "cpu_seconds": round(bad.cost.cpu_seconds + (good.cost.cpu_seconds if good else 0), 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def line_of(row: dict[str, Any]) -> str:
    """Return the row in one line."""
    bad = f"{'asked' if row['asked'] else 'named'} by {', '.join(row['named_by'])}" if row["named"] else "NOT named"
    if not row["named"]:
        bad += f" (failed: {', '.join(row['failed_too']) or 'nothing'}{'; ' + row['reason'] if row['reason'] else ''})"
    good = "no good release"
    if row["good"]:
        flagged = "; ".join(f"{check}: {detail}" for check, detail in row["good_failed"].items()) or row["good_reason"]
        good = "passes" if row["good_passes"] else f"{row['good_outcome']}: {flagged}"
    return f"{row['name']}: {row['bad']} {bad}; {row['good'] or 'none'}: {good} ({row['cpu_seconds']:.0f} s)"


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)
