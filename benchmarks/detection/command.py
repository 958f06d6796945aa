"""`python -m benchmarks.detection`: the catalogue of injected bugs, single bugs, the detection matrix, the study of
false positives, and their document."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli.parser import Parser, run_command
from suite.core.errors import ConfigError
from suite.core.paths import project_folder
from suite.core.units import count_option

if TYPE_CHECKING:
    from benchmarks.detection.bugs import Fault

OUTPUT = project_folder() / "reports" / "detection"
SETS = {"catalogue": "matrix", "unseen": "unseen", "blind": "blind", "blind-second": "blind-second"}
"""Sets of bugs, and what their results are called."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one action and return its exit status."""
    parser = Parser(prog="python -m benchmarks.detection", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION")
    known = actions.add_parser("list", help="every fault, its class and the checks that must name it")
    known.add_argument("--json", action="store_true", help="machine-readable, with what each does")
    known.add_argument("--of", choices=SETS, default="catalogue", help="the bugs that no check was made for instead")
    known.set_defaults(command=_list)
    broken = actions.add_parser("run", help="train the quick run healthy and with each of these faults")
    broken.add_argument("fault", nargs="+", help="id of a fault, such as B12")
    broken.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    broken.add_argument("--real", action="store_true", help="on the run's own weights instead of two random layers")
    broken.set_defaults(command=_run)
    matrix = actions.add_parser("matrix", help="which check names which fault, in which tier; goes on where it ended")
    matrix.add_argument("fault", nargs="*", help="only these, again")
    matrix.add_argument("--of", choices=SETS, default="catalogue", help="the bugs that no check was made for instead")
    _add_common(matrix)
    matrix.set_defaults(command=_matrix)
    healthy = actions.add_parser("healthy", help="healthy variants that must all pass; goes on where it ended")
    healthy.add_argument("variant", nargs="*", help="only these, again")
    healthy.add_argument("--list", action="store_true", help="the variants with their settings; nothing is trained")
    healthy.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key in all")
    _add_common(healthy)
    healthy.set_defaults(command=_healthy)
    report = actions.add_parser("report", help="write docs/detection.md and the README's table from the results")
    report.set_defaults(command=_report)
    return run_command(parser, arguments)


def _add_common(action: argparse.ArgumentParser) -> None:
    action.add_argument("--real", action="store_true", help="on the runs' own weights instead of two random layers")
    action.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER", help="reports/detection")
    action.add_argument("--most", type=count_option, metavar="N", help="stop after so many")
    action.add_argument("--keep-older", action="store_true", help="count rows that another state of the code gave")


def _list(options: argparse.Namespace) -> int:
    from benchmarks.detection.bugs.command import list_faults

    return list_faults(_faults(options.of), as_json=options.json)


def _run(options: argparse.Namespace) -> int:
    from benchmarks.detection.bugs.command import run_faults

    known = {number: fault for of in SETS for number, fault in _faults(of).items()}
    _require_known(options.fault, known, "fault", "python -m benchmarks.detection list")
    return run_faults([known[number] for number in options.fault], options.set, real=options.real)


def _matrix(options: argparse.Namespace) -> int:
    """Fill the matrix; 1 when a fault of it survives."""
    from benchmarks.detection.ledger import open_ledger
    from benchmarks.detection.matrix import fill
    from benchmarks.detection.tables import matrix_markdown

    name, faults = SETS[options.of], _faults(options.of)
    _require_known(options.fault, faults, "fault", f"python -m benchmarks.detection list --of {options.of}")
    ledger = open_ledger(options.output / f"{name}-{_size(options)}.json", f"{name} {_size(options)}")
    wanted = options.fault or ledger.missing(faults, keep_older=options.keep_older)
    fill(ledger, faults, wanted[: options.most], real=options.real, say=_say)
    rows = list(ledger.rows.values())
    (options.output / f"{name}-{_size(options)}.md").write_text(matrix_markdown(rows), encoding="utf-8")
    survivors = [row["id"] for row in rows if row["caught_in"] is None]
    _say(f"{len(rows)} of {len(faults)} faults tried, {len(survivors)} survive: {', '.join(survivors) or 'none'}")
    return int(bool(survivors))


def _faults(of: str) -> dict[str, Fault]:
    from benchmarks.detection.bugs import FAULTS
    from benchmarks.detection.bugs.blind import BLIND
    from benchmarks.detection.bugs.blind_second import BLIND_SECOND
    from benchmarks.detection.bugs.unseen import UNSEEN

    return {"catalogue": FAULTS, "unseen": UNSEEN, "blind": BLIND, "blind-second": BLIND_SECOND}[of]


def _healthy(options: argparse.Namespace) -> int:
    """Run the study; 1 when a healthy variant was accused."""
    from benchmarks.detection.ledger import open_ledger
    from benchmarks.detection.statistics import clopper_pearson
    from benchmarks.detection.study import alarms, fill
    from benchmarks.detection.variants import variants

    known = variants(real=options.real)
    if options.list:
        for variant in known.values():
            _say(f"{variant.id} {variant.title}: {' '.join(variant.settings)}")
        return 0
    _require_known(options.variant, known, "healthy variant", "python -m benchmarks.detection healthy --list")
    ledger = open_ledger(options.output / f"healthy-{_size(options)}.json", f"healthy {_size(options)}")
    wanted = options.variant or ledger.missing(known, keep_older=options.keep_older)
    fill(ledger, known, wanted[: options.most], real=options.real, settings=options.set, say=_say)
    rows = list(ledger.rows.values())
    accused = [row["id"] for row in alarms(rows)]
    low, high = clopper_pearson(len(accused), len(rows))
    _say(
        f"{len(accused)} of {len(rows)} healthy runs accused ({', '.join(accused) or 'none'}); "
        f"95 % interval of the rate {low:.2%} to {high:.2%}"
    )
    return int(bool(accused))


def _report(options: argparse.Namespace) -> int:
    from benchmarks.detection.document import write_document

    for path in write_document(OUTPUT, project_folder()):
        _say(str(path.relative_to(project_folder())))
    return 0


def _require_known(asked: Sequence[str], known: Iterable[str], what: str, way_out: str) -> None:
    if unknown := [number for number in asked if number not in set(known)]:
        raise ConfigError([f"no {what} is called {number!r}: `{way_out}` shows them all" for number in unknown])


def _size(options: argparse.Namespace) -> str:
    return "real" if options.real else "tiny"


def _say(line: str) -> None:
    print(line, flush=True)
