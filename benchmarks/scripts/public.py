"""Write what was found in real public training scripts, and in copies of them with one mistake each, as a page.

python -m benchmarks.scripts.public report

Each `reports/scripts/public-*.json` is one set: facts about scripts of others, and none of their code.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "reports" / "scripts"
PAGE = FOLDER / "public.md"
NOT_RUN = "not run"
TOLD = ("violated", "suspected", "something else", "missed", "inconclusive")
"""How a mistake was told: the first two by its cause."""


@dataclass(frozen=True, slots=True)
class Score:
    """What was said of one script, before anything was changed for it or now."""

    outcome: str
    failed: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: dict[str, Any] | None) -> Score:
        """Return the score of an entry's `first` or `now`; of none where it was not run."""
        return cls(NOT_RUN) if row is None else cls(row["outcome"], tuple(row["failed"]), tuple(row["suspected"]))

    def __str__(self) -> str:
        told = [f"failed {', '.join(self.failed)}"] * bool(self.failed)
        told += [f"asked {', '.join(self.suspected)}"] * bool(self.suspected)
        return "; ".join([self.outcome, *told])


def page(sets: list[dict[str, Any]]) -> str:
    """Return the page of these sets."""
    lines = [
        "# Public scripts",
        "",
        "Written by `python -m benchmarks.scripts.public report`. Each script stands as its repository has it, "
        "shrunk by arguments, environment and data alone. Each mistake is a small change of a copy. Both lists were "
        "frozen before the first run. *First* is the verdict before anything was changed for the set, *now* that of "
        "this commit.",
    ]
    for found in sets:
        lines += ["", f"## Set {found['set']}", "", f"{found['where']}. Frozen {found['frozen']}, run {found['run']}."]
        lines += ["", *(_sentence(found, when) for when in ("first", "now"))]
        lines += ["", *_totals(found), "", *_healthy(found["healthy"]), "", *_mistakes(found["mistakes"])]
        lines += ["", *(f"- {note}" for note in found["notes"])]
    return "\n".join(lines).rstrip() + "\n"


def _sentence(found: dict[str, Any], when: str) -> str:
    """Return how many mistakes were told by their cause, and how many healthy scripts failed."""
    flagged = [bool(Score.of(entry[when]).failed) for entry in found["healthy"] if entry[when]]
    told = [entry[when]["told"] in TOLD[:2] for entry in found["mistakes"] if entry[when]]
    mistakes, healthy = (f"{sum(held)} of {len(held)}" for held in (told, flagged))
    return f"- {when}: {mistakes} mistakes told by their cause; {healthy} healthy scripts with a failed check"


def _totals(found: dict[str, Any]) -> list[str]:
    rows = ["| | first | now |", "|---|--:|--:|"]
    scores = {when: [Score.of(entry[when]) for entry in found["healthy"]] for when in ("first", "now")}
    run = {when: [score for score in held if score.outcome != NOT_RUN] for when, held in scores.items()}
    told = {when: Counter(entry[when]["told"] for entry in found["mistakes"] if entry[when]) for when in scores}

    def row(name: str, counts: list[object]) -> None:
        rows.append(f"| {name} | {counts[0]} | {counts[1]} |")

    row("healthy scripts", [len(held) for held in run.values()])
    row("with a failed check", [sum(bool(score.failed) for score in held) for held in run.values()])
    row("questions", [sum(len(score.suspected) for score in held) for held in run.values()])
    row("inconclusive", [sum(score.outcome == "inconclusive" for score in held) for held in run.values()])
    row("mistakes", [counts.total() for counts in told.values()])
    for kind in TOLD:
        row(f"told: {kind}", [counts[kind] for counts in told.values()])
    return rows


def _healthy(entries: list[dict[str, Any]]) -> list[str]:
    rows = ["| repository | commit | script | shrunk by | first | now | note |", "|---|---|---|---|---|---|---|"]
    for entry in entries:
        first, now = Score.of(entry["first"]), Score.of(entry["now"])
        place = f"{entry['repository']} | {entry['commit']} | {entry['script']} | {entry['shrunk']}"
        rows.append(f"| {place} | {first} | {'same' if now == first else now} | {entry['note']} |")
    return rows


def _mistakes(entries: list[dict[str, Any]]) -> list[str]:
    rows = ["| script | mistake | first | now |", "|---|---|---|---|"]
    for entry in entries:
        told = [_told(entry[when]) for when in ("first", "now")]
        told[1] = "same" if told[0] == told[1] else told[1]
        rows.append(f"| {entry['repository']} {entry['script']} | {entry['mistake']} | {' | '.join(told)} |")
    return rows


def _told(row: dict[str, Any] | None) -> str:
    return NOT_RUN if row is None else f"{row['told']}: {', '.join(row['checks']) or 'nothing'}"


def main() -> int:
    """Write the page."""
    if sys.argv[1:] != ["report"]:
        print(__doc__, file=sys.stderr)
        return 4
    files = sorted(FOLDER.glob("public-*.json"))
    PAGE.write_text(page([json.loads(file.read_text(encoding="utf-8")) for file in files]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
