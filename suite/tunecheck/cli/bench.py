"""The command `bench`: the same training by several trainers, side by side."""

import argparse
import sys
from typing import Any

from tunecheck.cli.parser import INTERRUPTED, answer
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.log import log
from tunecheck.core.redaction import shown
from tunecheck.core.units import count_option
from tunecheck.session.options import CARD, RUN, SET


def add_commands(commands: Any) -> None:
    """Add `bench` to the command line."""
    bench = commands.add_parser(
        "bench",
        help="compare trainers on one training: speed, memory, losses",
        epilog="example: tunecheck bench quick/smollm2-135m-qlora --turns 3",
    )
    bench.add_argument("run", help=RUN)
    bench.add_argument(
        "--trainer",
        action="append",
        metavar="NAME",
        help=f"one of {', '.join(TRAINERS)}; may be repeated, and the first is the reference; "
        "default: every installed trainer that supports the run",
    )
    bench.add_argument(
        "--turns", type=count_option, default=3, metavar="N", help="trainings per trainer, in turns (default 3)"
    )
    bench.add_argument("--set", **SET)
    bench.add_argument("--card", **CARD)
    bench.executes(_bench, leaves_files=True, begins_itself=True)


def _bench(options: argparse.Namespace) -> int:
    """Train in turns, print the table and return the exit status of the session."""
    from tunecheck.report.terminal import print_benchmark
    from tunecheck.results import exit_code
    from tunecheck.results.benchmark import benchmarks
    from tunecheck.session import TierSession
    from tunecheck.session.bench import carry_out, plan

    runs, left_out = plan(
        options.run, options.trainer or (), turns=options.turns, overrides=options.set, card=options.card
    )
    for trainer, reason in left_out.items():
        log.info(f"skipped: trainer {trainer}: {reason}")
    session = TierSession(command=shown(["tunecheck", *sys.argv[1:]]))
    report = carry_out(runs, session)
    if report is None:
        return INTERRUPTED
    found = [benchmark.to_json() for benchmark in benchmarks(report.runs)]
    answer(options, found, lambda console: print_benchmark(report, console))
    print(f"report: {session.folder}")
    return exit_code(report)
