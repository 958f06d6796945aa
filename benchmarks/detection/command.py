"""`python -m benchmarks.detection`: list injected bugs, run single ones, fill the detection matrix and the study of
false positives, and write their report."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.detection.bugs import BUGS, COHORTS, NOT_SHOWN, Bug, of_cohort
from benchmarks.detection.trial import DEVICES, PRECISIONS, QUICK, Setup, Trial, try_run
from tunecheck.cli.parser import Parser, as_json, run_command
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import project_folder
from tunecheck.core.units import count_option

OUTPUT = project_folder() / "reports" / "detection"


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one action and return its exit status."""
    parser = Parser(prog="python -m benchmarks.detection", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION")
    listing = actions.add_parser("list", help="list the injected bugs by subject, with the checks that must name each")
    listing.add_argument("--json", action="store_true", help="machine-readable, with what each bug does")
    _add_cohort(listing)
    listing.set_defaults(command=_list)
    run = actions.add_parser("run", help="train the quick run healthy and with each of these bugs")
    run.add_argument("bug", nargs="+", help="id of a bug, such as B12")
    _add_setup(run)
    run.set_defaults(command=_run)
    matrix = actions.add_parser("matrix", help="which check names which bug, in which tier; continues where it ended")
    matrix.add_argument("bug", nargs="*", help="only these, again")
    _add_cohort(matrix)
    _add_study(matrix)
    matrix.set_defaults(command=_matrix)
    healthy = actions.add_parser("healthy", help="healthy variants, all of which must pass; continues where it ended")
    healthy.add_argument("variant", nargs="*", help="only these, again")
    healthy.add_argument("--list", action="store_true", help="list the variants with their settings and train nothing")
    healthy.add_argument("--engine", choices=("ddp", "fsdp"), help="train each in two processes (default: in one)")
    _add_study(healthy)
    healthy.set_defaults(command=_healthy)
    report = actions.add_parser("report", help="write docs/detection.md, the scores in full and the results' tables")
    report.set_defaults(command=_report)
    return run_command(parser, arguments)


def _add_cohort(action: argparse.ArgumentParser) -> None:
    action.add_argument("--of", choices=COHORTS, default="catalogue", help="the cohort (default: catalogue)")


def _add_setup(action: argparse.ArgumentParser) -> None:
    action.add_argument("--real", action="store_true", help="the run's own weights instead of two random layers")
    action.add_argument("--device", choices=DEVICES, default="cpu", help="where to train (default: cpu)")
    action.add_argument("--precision", choices=PRECISIONS, default="fp32", help="of the training (default: fp32)")
    action.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of every run; a study then needs an --output of its own",
    )


def _add_study(action: argparse.ArgumentParser) -> None:
    _add_setup(action)
    action.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER", help="default: reports/detection")
    action.add_argument("--most", type=count_option, metavar="N", help="stop after so many")
    action.add_argument("--keep-older", action="store_true", help="keep rows from another state of the code")


def _setup(options: argparse.Namespace) -> Setup:
    return Setup(real=options.real, device=options.device, precision=options.precision, overrides=tuple(options.set))


def _list(options: argparse.Namespace) -> int:
    bugs = list(of_cohort(options.of).values())
    not_shown = NOT_SHOWN if options.of == "catalogue" else {}
    if as_json(options, {"bugs": [_as_json(bug) for bug in bugs], "not_shown": not_shown}):
        return 0
    for subject in sorted({bug.subject for bug in bugs}):
        held = [bug for bug in bugs if bug.subject == subject]
        _say(f"{subject}: {len(held)}")
        for bug in held:
            tier = " with ".join([bug.tier, *(bug.settings and [" ".join(bug.settings)])])
            _say(f"  {bug.id}: {bug.title} ({tier}: {', '.join(bug.caught_by)})")
    if not_shown:
        _say(f"not shown: {len(not_shown)}")
    for id, reason in not_shown.items():
        _say(f"  {id}: {reason}")
    return 0


def _as_json(bug: Bug) -> dict[str, object]:
    return {
        "id": bug.id,
        "title": bug.title,
        "subject": bug.subject,
        "cohort": bug.cohort,
        "does": bug.mechanism,
        "caught_by": bug.caught_by,
        "source": bug.source,
        "settings": bug.settings,
        "tier": bug.tier,
        "must_say": bug.must_say,
    }


def _run(options: argparse.Namespace) -> int:
    """Train each bug's run healthy and broken; 1 unless every bug is named and no healthy run fails a check."""
    _require_known(options.bug, BUGS, "bug", "python -m benchmarks.detection list")
    setup = _setup(options)
    return int(not all([_named(BUGS[id], setup) for id in options.bug]))


def _named(bug: Bug, setup: Setup) -> bool:
    own = bug.settings_on(real=setup.real)
    healthy, broken = try_run(QUICK, setup, own), try_run(QUICK, setup, own, bug)
    # The catalogue's rows state all checks that fail; for the other cohorts any of those that were thought of counts.
    enough = all if bug.cohort == "catalogue" else any
    named = not healthy.failed and enough(check in broken.failed for check in bug.caught_by)
    _say(f"{bug.id} {bug.title}\n  {bug.mechanism}\n  healthy: {_outcome(healthy)}\n  broken: {_outcome(broken)}")
    if broken.failed:
        first = next(finding for finding in broken.findings if finding.check == broken.failed[0])
        _say(f"  first: {first.check}: {first.detail}")
    hint = "NOT named in the quick run; `python -m benchmarks.detection matrix` tries convergence too"
    _say(f"  {'named' if named else hint}, expected {', '.join(bug.caught_by)}")
    return named


def _outcome(trial: Trial) -> str:
    ended = [trial.outcome] if trial.outcome != "finished" else []
    return ", ".join([*ended, *trial.failed]) or "nothing failed"


def _matrix(options: argparse.Namespace) -> int:
    """Fill the matrix; 1 when a bug of it is undetected."""
    from benchmarks.detection.document import COHORT_FILES, write_tables
    from benchmarks.detection.ledger import open_ledger
    from benchmarks.detection.matrix import fill

    setup, bugs = _setup(options), of_cohort(options.of)
    _require_known(options.bug, bugs, "bug", f"python -m benchmarks.detection list --of {options.of}")
    name = COHORT_FILES[options.of]
    ledger = open_ledger(options.output / f"{name}-{setup.name}.json", f"{name} {setup.name}")
    wanted = options.bug or ledger.missing(bugs, keep_older=options.keep_older)
    fill(ledger, bugs, wanted[: options.most], setup, say=_say)
    write_tables(ledger.path, list(ledger.rows.values()))
    undetected = [row["id"] for row in ledger.rows.values() if row["caught_in"] is None]
    _say(
        f"{len(ledger.rows)} of {len(bugs)} bugs tried, {len(undetected)} undetected: {', '.join(undetected) or 'none'}"
    )
    return int(bool(undetected))


def _healthy(options: argparse.Namespace) -> int:
    """Run the study; 1 when a healthy variant was flagged."""
    from benchmarks.detection.document import write_tables
    from benchmarks.detection.ledger import open_ledger
    from benchmarks.detection.statistics import clopper_pearson
    from benchmarks.detection.study import false_positives, fill
    from benchmarks.detection.variants import variants

    setup, name = _setup(options), "healthy"
    if options.engine:
        two = f"parallel={{engine: {options.engine}, processes: 2}}"
        setup, name = replace(setup, overrides=(*setup.overrides, two)), f"healthy-{options.engine}"
    known = variants(real=options.real, overrides=setup.overrides)
    if options.list:
        for variant in known.values():
            _say(f"{variant.id} {variant.title}: {' '.join(variant.settings)}")
        return 0
    _require_known(options.variant, known, "healthy variant", "python -m benchmarks.detection healthy --list")
    ledger = open_ledger(options.output / f"{name}-{setup.name}.json", f"{name} {setup.name}")
    wanted = options.variant or ledger.missing(known, keep_older=options.keep_older)
    fill(ledger, known, wanted[: options.most], setup, say=_say)
    rows = list(ledger.rows.values())
    write_tables(ledger.path, rows)
    flagged = [row["id"] for row in false_positives(rows)]
    low, high = clopper_pearson(len(flagged), len(rows))
    _say(
        f"{len(flagged)} of {len(rows)} healthy runs flagged ({', '.join(flagged) or 'none'}); "
        f"95 % interval of the rate {low:.2%} to {high:.2%}"
    )
    return int(bool(flagged))


def _report(options: argparse.Namespace) -> int:
    from benchmarks.detection.document import write_report

    for path in write_report(OUTPUT, project_folder()):
        _say(str(path.relative_to(project_folder())))
    return 0


def _require_known(ids: Sequence[str], known: Iterable[str], what: str, way_out: str) -> None:
    if unknown := [id for id in ids if id not in set(known)]:
        raise ConfigError([f"no {what} is called {id!r}: `{way_out}` lists them" for id in unknown])


def _say(line: str) -> None:
    print(line, flush=True)
