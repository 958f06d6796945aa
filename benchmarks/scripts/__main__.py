"""Run mistakes or healthy scripts under watch and print what was named, flagged and left unjudged."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from benchmarks.scripts.architectures import architectures, training
from benchmarks.scripts.bugs import MISTAKES
from benchmarks.scripts.chats import CHATS
from benchmarks.scripts.healthy import HEALTHY
from benchmarks.scripts.parts import fields
from benchmarks.scripts.plain.healthy import ALONE
from benchmarks.scripts.practices import PRACTICES
from benchmarks.scripts.recipes import RECIPES
from benchmarks.scripts.script import Script, judged
from benchmarks.scripts.strangers import STRANGERS
from benchmarks.scripts.unusual import UNUSUAL

ALL_HEALTHY = (
    HEALTHY
    | STRANGERS
    | RECIPES
    | PRACTICES
    | CHATS
    | UNUSUAL
    | {f"alone: {name}": (fields(alone=training),) for name, training in ALONE.items()}
)
ADAPTED = ", adapters"
"""Ends the name of an architecture's training of adapters on every linear."""


def main() -> int:
    """Execute the command; 1 where a mistake was not named or a healthy script was flagged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripts", description=__doc__)
    parser.add_argument("what", choices=["list", "bugs", "healthy", "architectures"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(f"{name}: {held.title}" for name, held in MISTAKES.items()))
        print("\n".join(f"healthy: {name}" for name in ALL_HEALTHY))
        return 0
    judged_well = [_one(options.what, name) for name in options.names or _names(options.what)]
    tried = [good for good in judged_well if good is not None]
    print(f"{sum(tried)} of {len(tried)} {'named' if options.what == 'bugs' else 'without a flag'}")
    return int(not all(tried) or not tried)


def _names(what: str) -> list[str]:
    if what == "architectures":
        return [name for kind in architectures() for name in (kind, f"{kind}{ADAPTED}")]
    return list(MISTAKES if what == "bugs" else ALL_HEALTHY)


def script_of(what: str, name: str) -> Script | None:
    """Return the script of this name; None for an architecture that cannot be made small."""
    if what == "architectures":
        return training(name.removesuffix(ADAPTED), adapters=name.endswith(ADAPTED))
    script = Script()
    for change in [MISTAKES[name].change] if what == "bugs" else ALL_HEALTHY[name]:
        change(script)
    return script


def _one(what: str, name: str) -> bool | None:
    """Train it and say what came of it; None for what was left out."""
    try:
        script = script_of(what, name)
        if script is None:
            print(f"left out {name}: it cannot be made small", flush=True)
            return None
        with tempfile.TemporaryDirectory(prefix="tunecheck-scripts-") as folder:
            row = judged(script, Path(folder))
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print(f"ERROR  {name}", flush=True)
        return False
    told = [*row.failed, *row.suspected]
    failed = {finding.check for finding in told}
    lost = [f"{finding.check}: {finding.detail}" for finding in row.unjudged if not finding.expected]
    if what == "bugs":
        good = bool(failed & MISTAKES[name].named_by)
        print(f"{'named ' if good else 'FLAG  ' if failed else 'MISSED'} {name}: {', '.join(sorted(failed)) or '-'}")
    else:
        good = row.outcome == "pass"  # a question is no flag, and is printed
        expected = [finding.check for finding in row.unjudged if finding.expected]
        print(f"{'ok    ' if good else 'FLAGGED'} {name}: {len(row.passed)} passed, unjudged {', '.join(expected)}")
        for finding in told:
            print(f"    {finding}")
    for line in lost:
        print(f"    unjudged: {line}")
    sys.stdout.flush()
    return good


if __name__ == "__main__":
    raise SystemExit(main())
