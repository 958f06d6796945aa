"""fleet.html: a fleet as one self-contained page, its odd nodes first, with a link to the page of each."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tunecheck.core.text import human_seconds
from tunecheck.report.fleet import failures, figure_words, fleet_headline, kinds, said_of
from tunecheck.report.page import PAGE_FILE, template, verbatim
from tunecheck.results.fleet import FleetReport, NodeRow, reasons
from tunecheck.results.fleet.kinds import FIGURES

FLEET_PAGE = "fleet.html"
MOST_ODD, MOST_WHOLE, MOST_CHECKS = 400, 300, 12
"""Odd places in full, healthy ones with their figures, and columns of checks: ten thousand places stay below 2 MB."""


def fleet_html(report: FleetReport) -> str:
    """Return the content of fleet.html: it makes no request and runs no script, all data escaped."""
    odd = [row for row in report.rows if row.odd]
    sound = [row for row in report.rows if not row.odd]
    checks = [check for check, _ in Counter(check for row in odd for check in broken(row)).most_common(MOST_CHECKS)]
    figures = {name: figure for name, figure in FIGURES.items() if any(name in row.figures for row in report.rows)}
    return template("fleet.html.jinja").render(
        report=report,
        headline=fleet_headline(report),
        seconds=human_seconds(report.seconds),
        odd=[_cells(row, checks, figures) for row in odd[:MOST_ODD]],
        odd_names=[(row.place, _link(row)) for row in odd[MOST_ODD:]],
        sound=[_cells(row, (), figures) for row in sound[:MOST_WHOLE]],
        sound_names=[(row.place, _link(row)) for row in sound[MOST_WHOLE:]],
        checks=checks,
        figures=figures.values(),
        kinds=kinds(report, figures),
        drained=reasons(report),
        style=verbatim("page.css"),
    )


def broken(row: NodeRow) -> list[str]:
    """Return the names of the checks that failed on this place, its own and the fleet's."""
    own = [name.partition(": ")[2] for name in row.failed]
    return [*dict.fromkeys([*(finding.check for finding in failures(row)), *own])]


def _cells(row: NodeRow, checks: Iterable[str], figures: Iterable[str]) -> dict[str, Any]:
    failed = set(broken(row))
    return {
        "row": row,
        "link": _link(row),
        "said": said_of(row),
        "age": "" if row.age_seconds is None else human_seconds(row.age_seconds),
        "checks": ["failed" if check in failed else "" for check in checks],
        "figures": [figure_words(name, row.figures.get(name)) for name in figures],
    }


def _link(row: NodeRow) -> str:
    return f"{row.session}/{PAGE_FILE}" if row.session else ""
