"""What was measured of the frameworks, as committed, and its table in docs/frameworks.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.releases.framework_list import FRAMEWORKS
from tunecheck.core.files import write_whole
from tunecheck.core.paths import project_folder

RESULTS = project_folder() / "reports" / "releases" / "frameworks.json"
DOCUMENT = project_folder() / "docs" / "frameworks.md"
BEGIN, END = "<!-- frameworks: written by `python -m benchmarks.releases.frameworks` -->", "<!-- frameworks: end -->"


def record(row: dict[str, Any]) -> None:
    """Put the row into the results, in the order of the frameworks and their trainings."""
    held = {(r["framework"], r["variant"]): r for r in results() if r["variant"] or r["framework"] != row["framework"]}
    held[(row["framework"], row["variant"])] = row
    listed = [(framework.name, name) for framework in FRAMEWORKS.values() for name in ("", *framework.trainings)]
    rows = [held[key] for key in listed if key in held]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS, json.dumps(rows, indent=1) + "\n")


def results() -> list[dict[str, Any]]:
    """Return the rows that were measured."""
    held: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return held


def wrongly_failed(row: dict[str, Any]) -> list[str]:
    """Return the failed checks that no known bug of the row's releases explains."""
    framework = FRAMEWORKS.get(row["framework"])
    return [check for check in row["failed"] if framework is None or check not in framework.named_by]


def healthy(row: dict[str, Any]) -> bool:
    """Return whether nothing but the known bug of the row's releases is named, and listening changed nothing."""
    explained = row["outcome"] == "pass" or (row["failed"] and not wrongly_failed(row))
    return bool(explained and (row["same"] or not row.get("repeats", True)))


def line_of(row: dict[str, Any]) -> str:
    """Return the row in one line."""
    if row["outcome"] == "not tried":
        return f"{row['framework']}, {row['variant']}: not tried: {row['reason']}"
    failed = "".join(f"; {check}: {detail}" for check, detail in row["failed"].items())
    same = "the same weights to the last bit"
    if not row["same"]:
        same = f"OTHER weights than without ({row['compared']})" if row["repeats"] else "other weights each time"
    cost = f"{row['cpu_seconds_more']:+.1f} s, {row['peak_mib_more']:+d} MiB"
    return f"{row['framework']}, {row['variant']}: {row['outcome']}, {row['passed']} passed; {same}; {cost}{failed}"


def write_table() -> None:
    """Put the table between its marks in docs/frameworks.md, if it has them."""
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        write_whole(DOCUMENT, f"{before}{BEGIN}\n{table(results())}\n{END}{after}")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown, and below it what was unjudged and what could not be tried."""
    lines = [
        "| framework | training | versions | judged | passed | failed | unjudged | same bits | more CPU s | more MiB |",
        "|---|---|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    reasons: dict[str, set[str]] = {}
    untried = []
    for row in rows:
        if row["outcome"] == "not tried":
            untried.append(f"- {row['framework']} {row['variant']}: {row['reason']}")
            continue
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        failed = ", ".join(f"`{check}`" for check in row["failed"]) or 0
        if row["failed"] and not wrongly_failed(row):
            failed = f"{failed}: known bug, {FRAMEWORKS[row['framework']].bug}"
        cells = [row["framework"], row["variant"], versions, row["judged"], row["passed"], failed, len(row["unjudged"])]
        unlike = "**no**" if row.get("repeats", True) else "not repeatable"
        cells += ["yes" if row["same"] else unlike, f"{row['cpu_seconds_more']:.0f}", row["peak_mib_more"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        for check, reason in row["unjudged"].items():
            reasons.setdefault(f"`{check}`: {reason}", set()).add(row["framework"])
    tried = {row["framework"] for row in rows if row["outcome"] != "not tried"}
    told = [f"- {reason} ({len(names)})." for reason, names in sorted(reasons.items())]
    title = f"Unjudged checks, why, and in how many of the {len(tried)} frameworks:"
    parts = ["\n".join(lines), f"{title}\n\n" + "\n".join(told)]
    parts += ["Not tried:\n\n" + "\n".join(untried)] if untried else []
    return "\n\n".join(parts)
