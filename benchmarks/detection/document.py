"""docs/detection.md, reports/detection/scores.md and the results' tables, written from the committed results alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.detection.bugs import BUGS, COHORTS, NOT_SHOWN, of_cohort
from benchmarks.detection.ledger import Row, read_results
from benchmarks.detection.matrix import OWN
from benchmarks.detection.statistics import NEAR_SPREADS, Margin, clopper_pearson
from benchmarks.detection.study import false_positives, study_margins
from benchmarks.peers.results import rows as rows_of_peers
from benchmarks.releases.results import pairs_of_releases
from tunecheck.checks import CHECKS
from tunecheck.core.files import write_whole

RESULTS_LINK = "../reports/detection"
"""As docs/detection.md sees the folder."""
COHORT_FILES = {"catalogue": "matrix"} | {cohort: cohort for cohort in COHORTS if cohort != "catalogue"}
"""Cohort to what its result files are called."""
SCORED = (
    "matrix-tiny",
    "unseen-tiny",
    "blind-tiny",
    "blind-second-tiny",
    "unseen-second-tiny-bf16",
    "unseen-third-tiny",
    "unseen-fourth-tiny-bf16",
)
"""Scores of today's checks on the tiny model, in fp32 but for the cohorts that were tried in 16 bit first; without them
there is no report."""
FIRST = (
    "unseen-first",
    "blind-first",
    "blind-second-first",
    "unseen-second-first-bf16",
    "unseen-third-first",
    "unseen-fourth-first-bf16",
)
REQUIRED = (*SCORED, *FIRST, "healthy-tiny")
NAME = re.compile(
    r"(?P<study>matrix|unseen-second|unseen-third|unseen-fourth|unseen|blind-second|blind|parallel|healthy-ddp|healthy-fsdp|healthy)"
    r"-(?P<model>tiny|real|first)(-(?P<precision>bf16|fp16))?(-(?P<device>cuda))?"
)
COLUMNS = ("first score", "fp32", "bf16", "fp16")
TITLES = {
    "matrix": "catalogue",
    "unseen": "unseen",
    "blind": "blind",
    "blind-second": "second blind",
    "unseen-second": "second unseen",
    "unseen-third": "third unseen",
    "unseen-fourth": "fourth unseen",
    "parallel": "two processes",
    "healthy": "healthy variants",
    "healthy-ddp": "healthy variants, two processes by DDP",
    "healthy-fsdp": "healthy variants, two processes by FSDP",
}
TIERS = ("quick", "convergence", OWN)

_OWN_SEED = (
    "A of a constant seed is as random as any: only a second start, under another seed, would show that it repeats"
)
UNDETECTED: dict[str, dict[str, str]] = {
    "matrix-tiny-fp16": {
        "B101": "fp16's scaler takes the overflow for one of its own and skips every step, as `steps_applied` says"
    },
    **{f"unseen-fourth-tiny{precision}": {"Z49": _OWN_SEED} for precision in ("", "-bf16", "-fp16")},
    "matrix-real-bf16": {
        "X71": "has no effect there: the head of SmolLM2 is its embedding, and in no file by itself",
        "X116": "trained weights give the class that is left out a probability below 1e-5, and bf16 rounds to 4e-3",
        "X127": "logits from 8 on are 0.06 apart in bf16: of two that are nearer than 0.05 either is the best",
    },
    "matrix-real": {"X113": "has no effect there: no row of the shipped data exceeds its window of 150 tokens"},
}
"""By hand: result to undetected bug to what it would take to detect it. A test compares it with the results."""
NEAR_LIMITS: dict[str, str] = {}
"""By hand: check with a limit near a healthy run to what was done about it. A test compares it with the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result file."""

    name: str
    study: str
    model: str
    """tiny, real, or first: the score of a cohort on the tiny model before any check was changed for it."""
    precision: str
    device: str
    rows: list[Row]
    machine: Row

    @property
    def healthy(self) -> bool:
        """Whether nothing was broken in these runs."""
        return self.study.startswith("healthy")

    @property
    def unseen(self) -> bool:
        """Whether these bugs were run before any check was changed for them."""
        return self.study.startswith(("unseen", "blind"))

    @property
    def line(self) -> str:
        """The study, and where it ran if that is not two layers on the CPU: what the line of a table is called."""
        model = "SmolLM2-135M" * (self.model == "real")
        device = f"on {self.device}" * (self.device != "cpu")
        return ", ".join(filter(None, [TITLES[self.study], model, device]))

    @property
    def column(self) -> str:
        """The precision; the first score of a cohort is a column by itself."""
        return COLUMNS[0] if self.model == "first" else self.precision


def write_report(results: Path, project: Path) -> list[Path]:
    """Write docs/detection.md, the scores in full and each result's tables, and return the paths.

    Raises SuiteError when results are missing or cannot be read.
    """
    held = read_all(results)
    document, scores = project / "docs" / "detection.md", results / "scores.md"
    write_whole(document, detection_text(held))
    write_whole(scores, scores_text(held))
    return [document, scores, *(write_tables(results / f"{name}.json", result.rows) for name, result in held.items())]


def write_tables(path: Path, rows: Sequence[Row]) -> Path:
    """Write the Markdown tables of this result file beside it and return their path."""
    tables = path.with_suffix(".md")
    write_whole(tables, tables_text(rows))
    return tables


def read_all(results: Path) -> dict[str, Result]:
    """Return every result in the folder by name. Raises SuiteError when a required one is missing or one is broken."""
    found = {}
    for path in [*(results / f"{name}.json" for name in REQUIRED), *sorted(results.glob("*.json"))]:
        if match := NAME.fullmatch(path.stem):
            held, parts = read_results(path), match.groupdict()
            found[path.stem] = Result(
                name=path.stem,
                study=parts["study"],
                model=parts["model"],
                precision=parts["precision"] or "fp32",
                device=parts["device"] or "cpu",
                rows=held["rows"],
                machine=held["machine"],
            )
    studies, models = list(TITLES), ("first", "tiny", "real")
    return dict(sorted(found.items(), key=lambda i: (studies.index(i[1].study), models.index(i[1].model), i[0])))


def detection_text(held: dict[str, Result]) -> str:
    """Return docs/detection.md."""
    studies = [result for result in held.values() if result.healthy]
    return _rendered(
        "detection.md.jinja",
        bugs=bugs_table(held, named=_sets_once_new_as_one, brief=True),
        healthy=healthy_table(held, RESULTS_LINK),
        devices={result.device for result in held.values()},
        studies=[(result, study(result.rows)) for result in studies],
        machines=_machines(held.values()),
        dates=sorted({row["date"] for result in held.values() for row in result.rows}),
        near=[(m, NEAR_LIMITS.get(m.check, "")) for r in studies for m in study_margins(r.rows) if m.near],
        near_spreads=int(NEAR_SPREADS),
        nearest=sorted(study_margins(held["healthy-tiny"].rows), key=lambda m: m.nearest_spreads)[:3],
        releases=pairs_of_releases(),
        peers=rows_of_peers(),
    )


def scores_text(held: dict[str, Result]) -> str:
    """Return reports/detection/scores.md: each set with its first score, and what no check names."""
    matrices = [result for result in held.values() if not result.healthy]
    return _rendered(
        "scores.md.jinja",
        bugs=bugs_table(held, "."),
        totals={file: len(of_cohort(cohort)) for cohort, file in COHORT_FILES.items()},
        undetected=[
            (result.name, row, UNDETECTED.get(result.name, {}).get(row["id"], "not explained yet"))
            for result in matrices
            if result.model != "first"
            for row in result.rows
            if row["caught_in"] is None
        ],
        not_shown=NOT_SHOWN,
        several_states=[r.name for r in held.values() if len({row["code"] for row in r.rows}) > 1],
        never=[check for check in CHECKS if not any(check in row["named_by"] for r in matrices for row in r.rows)],
        checks=len(CHECKS),
    )


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # Markdown: nothing is escaped, and no text comes from outside the project
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text: str = environment.get_template(template).render(values)
    return text


def _sets_once_new_as_one(result: Result) -> str:
    title = TITLES[result.study]
    return result.line.replace(title, "bugs once new to the checks" if result.unseen else title)


def lines_of(results: Iterable[Result], named: Callable[[Result], str]) -> dict[str, dict[str, list[Result]]]:
    """Return results by line and column of a table, one of a study in each; lines are called what `named` says."""
    lines: dict[str, dict[str, dict[str, Result]]] = {}
    for result in results:
        lines.setdefault(named(result), {}).setdefault(result.column, {})[result.study] = result
    return {line: {column: [*each.values()] for column, each in columns.items()} for line, columns in lines.items()}


def bugs_table(
    held: dict[str, Result], link: str = "", named: Callable[[Result], str] = attrgetter("line"), *, brief: bool = False
) -> str:
    """Return how many bugs of each set are named, by precision; numbers link to their results below `link`, if any.

    `brief` leaves out first scores, the quick tier and the smoke test.
    """
    columns = COLUMNS[1:] if brief else COLUMNS
    lines = []
    for title, results in lines_of((r for r in held.values() if not r.healthy), named).items():
        scores = {column: score_line(rows_of(several)) for column, several in results.items()}
        today = next(scores[column] for column in COLUMNS[1:] if column in scores)
        cells = [
            _linked(f"{scores[c]['bugs'] - scores[c]['undetected']} of {scores[c]['bugs']}", results[c], link)
            if c in scores
            else ""
            for c in columns
        ]
        lines.append([title, *cells, *([] if brief else [f"{today['quick']}", f"{today['smoke']}"])])
    more = [] if brief else ["in `quick` as it is", "smoke test fails"]
    header = ["injected bugs named" if brief else "injected bugs", *columns, *more]
    return _table(header, lines, numbers=len(header) - 1).rstrip()


def healthy_table(held: dict[str, Result], link: str) -> str:
    """Return how many healthy runs were flagged, by precision, with the upper end of the rate's 95 % interval."""
    lines = []
    for title, results in lines_of((r for r in held.values() if r.healthy), attrgetter("line")).items():
        found = {column: study(rows_of(several)) for column, several in results.items()}
        cells = [
            _linked(
                f"{len(found[c]['flagged'])} of {found[c]['runs']}, at most {found[c]['high']:.1%}", results[c], link
            )
            if c in found
            else ""
            for c in COLUMNS[1:]
        ]
        lines.append([title, *cells, f"{next(iter(found.values()))['smoke']}"])
    header = ["flagged", *COLUMNS[1:], "smoke test fails"]
    return _table(header, lines, numbers=len(header) - 1).rstrip()


def rows_of(results: Iterable[Result]) -> list[Row]:
    """Return the rows of all of them."""
    return [row for result in results for row in result.rows]


def _linked(text: str, results: Sequence[Result], link: str) -> str:
    return f"[{text}]({link}/{results[0].name}.md)" if link else text


def study(rows: list[Row]) -> dict[str, Any]:
    """Return what a study of healthy runs found: runs, those flagged, the rate's interval, failed smoke tests."""
    flagged = false_positives(rows)
    low, high = clopper_pearson(len(flagged), len(rows))
    smoke = sum(row["smoke_test_failed"] for row in rows)
    return {"runs": len(rows), "flagged": flagged, "low": low, "high": high, "smoke": smoke}


def score_line(rows: Sequence[Row]) -> dict[str, int]:
    """Return counts: bugs, detected in each tier, undetected, and failed smoke tests."""
    caught = Counter(row["caught_in"] for row in rows)
    return {
        "bugs": len(rows),
        **{tier: caught[tier] for tier in TIERS},
        "undetected": caught[None],
        "smoke": sum(row["smoke_test_failed"] for row in rows),
    }


def _machines(results: Iterable[Result]) -> list[str]:
    found = []
    for result in results:
        machine = result.machine
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        found.append(f"{machine['cpu']}, {machine['platform']}, Python {machine['python']}, {versions}")
    return list(dict.fromkeys(found))


# Tables.


def tables_text(rows: Sequence[Row]) -> str:
    """Return the tables of one result: the matrix and what each check is worth, or the limits' margins."""
    if rows and "numbers" in rows[0]:
        return (
            "Every limit against the healthy runs that it was compared with: distances from the median and from the\n"
            "nearest run in robust standard deviations (by the median absolute deviation). Exact: every run measured\n"
            f"the same. Limits of 0 and counts that must be met exactly are left out.\n\n{margins_table(rows)}"
        )
    return f"{matrix_table(rows)}\nBugs that each check names, names alone, and fails with:\n\n{checks_table(rows)}"


def matrix_table(rows: Sequence[Row]) -> str:
    """Return the detection matrix, a bug a line."""
    bugs = {row["id"]: BUGS.get(row["id"]) for row in rows}
    must_say = {id: bug.must_say for id, bug in bugs.items() if bug and bug.must_say}
    wording = ["a finding must say"] * bool(must_say)
    header = ["bug", "subject", "what is broken", *wording, "detected in", "named by", "failed too", "smoke test", "s"]
    lines = []
    for row in rows:
        last, bug = row["stages"][-1], bugs[row["id"]]
        others = [check for check in last["failed"] if check not in row["named_by"]]
        first = last["failed"][0] if last["failed"] else ""
        lines.append(
            [
                row["id"],
                bug.subject if bug else row["subject"],
                row["title"],
                *([must_say.get(row["id"], "")] * bool(must_say)),
                row["caught_in"] or "**undetected**",
                ", ".join(f"`{name}`" for name in row["named_by"]),
                _few(others, first),
                "fails" if row["smoke_test_failed"] else "passes",
                f"{row['seconds']:.0f}",
            ]
        )
    return _table(header, lines, numbers=1)


def _few(others: Sequence[str], first: str, most: int = 3) -> str:
    """Return the other failed checks by name, the first failure marked, and how many more."""
    named = [f"`{check}`{' (first)' if check == first else ''}" for check in others[:most]]
    more = f" and {len(others) - most} more" if len(others) > most else ""
    return ", ".join(named) + more


def checks_table(rows: Sequence[Row]) -> str:
    """Return how many bugs each check names, names alone, and fails with, in the order of a training."""
    named = Counter(check for row in rows for check in row["named_by"])
    alone = Counter(row["named_by"][0] for row in rows if len(row["named_by"]) == 1)
    failed = Counter(check for row in rows for check in row["stages"][-1]["failed"])
    lines = [
        [f"`{check}`", str(named[check]), str(alone[check]), str(failed[check])] for check in CHECKS if failed[check]
    ]
    return _table(["check", "names", "alone", "fails with"], lines, numbers=3)


def margins_table(rows: Sequence[Row]) -> str:
    """Return each limit against its healthy measurements, the nearest first; exact ones last."""
    header = ["check", "limit", "runs", "median", "nearest run", "spread", "median is", "nearest is"]
    found = sorted(study_margins(rows), key=lambda m: (m.nearest_spreads, m.check, m.limit))
    return _table(header, [_margin_cells(margin) for margin in found], numbers=7)


def _margin_cells(margin: Margin) -> list[str]:
    distances = [margin.spreads, margin.nearest_spreads]
    return [
        f"`{margin.check}`",
        f"{margin.limit:.3g}",
        str(margin.runs),
        *(f"{value:.3g}" for value in (margin.middle, margin.nearest, margin.spread)),
        *("exact" if margin.exact else f"{d:,.{1 if d < 100 else 0}f} away" for d in distances),
    ]


def _table(header: Sequence[str], lines: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Return a Markdown table whose last columns hold numbers."""
    rule = ["---"] * (len(header) - numbers) + ["--:"] * numbers
    rows = [f"| {' | '.join(cells)} |" for cells in (header, *lines)]
    return "\n".join([rows[0], f"|{'|'.join(rule)}|", *rows[1:]]) + "\n"
