"""docs/detection.md and the README's table, written from the committed results and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.detection.bugs import FAULTS, NOT_SHOWN
from benchmarks.detection.bugs.blind import BLIND, MUST_SAY
from benchmarks.detection.bugs.blind_second import BLIND_SECOND, MUST_SAY_SECOND
from benchmarks.detection.bugs.unseen import UNSEEN
from benchmarks.detection.ledger import Row, read_results
from benchmarks.detection.statistics import NEAR_SPREADS, clopper_pearson
from benchmarks.detection.study import alarms, study_margins
from benchmarks.detection.survivors import NEAR_LIMITS, WHAT_IT_WOULD_TAKE
from benchmarks.detection.tables import kills_markdown, margins_markdown, matrix_markdown, score_line
from suite.checks import CHECKS
from suite.core.errors import SuiteError
from suite.core.files import write_whole

TEMPLATE = "detection.md.jinja"
RESULTS = (
    *("matrix-tiny", "matrix-real"),
    *("unseen-first", "unseen-tiny", "blind-first", "blind-tiny", "blind-second-first", "blind-second-tiny"),
    *("healthy-tiny", "healthy-real"),
)
SCORED = ("matrix-tiny", "unseen-tiny", "blind-tiny", "blind-second-tiny")
"""The scores of today's checks."""
BEGIN, END = "<!-- detection: written by `python -m benchmarks.detection report` -->", "<!-- detection: end -->"


def write_document(results: Path, project: Path) -> list[Path]:
    """docs/detection.md and the README below this folder tell what the results say; returns both paths.

    Raises SuiteError when results are missing or cannot be read, or when the README has no place for the table.
    """
    held = read_all(results)
    document, readme = project / "docs" / "detection.md", project / "README.md"
    write_whole(document, detection_text(held))
    write_whole(readme, with_table(readme.read_text(encoding="utf-8"), readme_table(held)))
    return [document, readme]


def read_all(results: Path) -> dict[str, Row]:
    """All results by name; of those on real weights there may be none yet. Raises SuiteError for others."""
    return {name: read_results(p) for name in RESULTS if (p := results / f"{name}.json").exists() or "real" not in name}


def detection_text(held: dict[str, Row]) -> str:
    """The document."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(  # Markdown: nothing is escaped, and no text comes from outside the project
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["matrix"] = matrix_markdown
    environment.filters["margins"] = margins_markdown
    rows = {name: held[name]["rows"] if name in held else [] for name in RESULTS}
    every = study_margins(rows["healthy-tiny"])
    real = study_margins(rows["healthy-real"])
    text: str = environment.get_template(TEMPLATE).render(
        rows=rows,
        machines=_machines(held),
        commits={name: held[name]["machine"]["commit"] for name in RESULTS if name in held},
        dates=sorted({row["date"] for held_rows in rows.values() for row in held_rows}),
        scores={name: score_line(rows[name]) for name in RESULTS if "healthy" not in name},
        studies={name: study(rows[name]) for name in RESULTS if "healthy" in name},
        margins={"tiny": every, "real": real},
        near=[margin for margin in (*every, *real) if margin.near],
        near_spreads=NEAR_SPREADS,
        near_limits=NEAR_LIMITS,
        kills=kills_markdown(rows["matrix-tiny"], CHECKS),
        survivors=[row for name in SCORED for row in rows[name] if row["caught_in"] is None],
        would_take=WHAT_IT_WOULD_TAKE,
        not_shown=NOT_SHOWN,
        must_say={**MUST_SAY, **MUST_SAY_SECOND},
        totals={
            "catalogue": len(FAULTS),
            "unseen": len(UNSEEN),
            "blind": len(BLIND),
            "blind_second": len(BLIND_SECOND),
            "checks": len(CHECKS),
        },
        states={name: len({row["code"] for row in rows[name]}) for name in RESULTS},
    )
    return text


def study(rows: list[Row]) -> dict[str, Any]:
    """What a false-alarm study found: runs, those accused, the interval of the rate, the naive test's alarms."""
    accused = alarms(rows)
    low, high = clopper_pearson(len(accused), len(rows)) if rows else (0.0, 1.0)
    return {"runs": len(rows), "accused": accused, "low": low, "high": high, "naive": sum(r["naive"] for r in rows)}


def _machines(held: dict[str, Row]) -> list[str]:
    told = []
    for result in held.values():
        machine = result["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        told.append(f"{machine['cpu']}, no GPU, {machine['platform']}, Python {machine['python']}, {versions}")
    return list(dict.fromkeys(told))


def readme_table(held: dict[str, Row]) -> str:
    """The scores in a few lines."""
    first = ("unseen-first", "blind-first", "blind-second-first")
    scores = {name: score_line(held[name]["rows"]) for name in (*SCORED, *first)}
    lines = [
        "| bugs put into a healthy run | caught by name | in `quick` as it is | the naive test notices |",
        "|---|--:|--:|--:|",
        _line("catalogue, tiny model", scores["matrix-tiny"]),
    ]
    if "matrix-real" in held:
        real = score_line(held["matrix-real"]["rows"])
        lines.append(_line(f"catalogue, SmolLM2-135M ({real['faults']} tried so far)", real))
    lines += [
        _line("thought up by the checks' author, at first", scores["unseen-first"]),
        _line("the same, after checks were made more general", scores["unseen-tiny"]),
        _line("written by somebody who had seen no check, at first", scores["blind-first"]),
        _line("the same, after checks were made more general", scores["blind-tiny"]),
        _line("from issue trackers, by another who had seen no check, at first", scores["blind-second-first"]),
        _line("the same, after checks were made more general", scores["blind-second-tiny"]),
        "",
        "| healthy runs | falsely accused | rate at most (95 %) |",
        "|---|--:|--:|",
    ]
    for name, what in (("healthy-tiny", "variants of a tiny model"), ("healthy-real", "SmolLM2-135M")):
        if name in held:
            found = study(held[name]["rows"])
            lines.append(f"| {found['runs']} {what} | {len(found['accused'])} | {found['high']:.1%} |")
    return "\n".join(lines)


def _line(what: str, score: dict[str, int]) -> str:
    total = score["faults"]
    return f"| {what} | {total - score['survive']} of {total} | {score['quick']} | {score['naive']} |"


def with_table(readme: str, table: str) -> str:
    """The README's text with this table between its marks. Raises SuiteError when the marks are missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SuiteError(f"README.md: the lines {BEGIN!r} and {END!r} are missing: put them where the table belongs")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
