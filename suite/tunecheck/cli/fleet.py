"""The command `fleet`: the same tier on every card of every node, and what only all of them together can show."""

import argparse
import sys
from pathlib import Path
from typing import Any

from tunecheck.cli.parser import COUNT, TIME, as_json
from tunecheck.cli.run import add_selection, forwarded
from tunecheck.core.errors import ConfigError
from tunecheck.core.redaction import shown
from tunecheck.core.text import one_line
from tunecheck.fleet.engines import ENGINES
from tunecheck.fleet.request import REQUEST_FILE, EngineOptions, Request, read_request

NODE_SECONDS, WAIT_SECONDS = 1800.0, 3600.0


def add_commands(commands: Any) -> None:
    """Add `fleet` to the command line."""
    fleet = commands.add_parser("fleet", help="run one tier on every GPU of every node, and compare")
    add_selection(fleet, nargs="*")
    summaries = "; ".join(f"{name}: {engine.summary}" for name, engine in ENGINES.items())
    fleet.add_argument("--engine", choices=tuple(ENGINES), help=summaries)
    named = "all, a number, or names such as n[1-8],n12; --judge expects them"
    fleet.add_argument("--nodes", type=_nodes, default="all", help=named)
    fleet.add_argument("--cpus", **COUNT, help="CPU cores per GPU")
    fleet.add_argument("--time", **TIME, default=NODE_SECONDS, help="time limit per GPU (default 30min)")
    silent = "time after which silent nodes are reported (default 1h)"
    fleet.add_argument("--wait", **TIME, default=WAIT_SECONDS, help=silent)
    fleet.add_argument("--at-once", **COUNT, help="nodes to run at a time (default: all)")
    for name in ("partition", "account", "constraint", "qos"):
        fleet.add_argument(f"--{name}", metavar="NAME", help=f"Slurm's --{name}")
    fleet.add_argument("--address", metavar="HOST:PORT", help="address of the Ray cluster (default: found by ray)")
    fleet.add_argument(
        "--resume", type=Path, metavar="SESSION", help="rerun only the places of this session that did not answer"
    )
    fleet.add_argument(
        "--judge", type=Path, metavar="SESSION", help="judge the answers of this session, without running anything"
    )
    fleet.executes(_fleet, leaves_files=True, begins_itself=True)


def _nodes(text: str) -> str:
    """Return which nodes are asked. Raises ArgumentTypeError for a number that no cluster has."""
    if text.isdecimal() and not 0 < int(text[:6]) < 100_000:
        raise argparse.ArgumentTypeError(f"{one_line(text, 40)!r} should be from 1 to 99999, where it is a number")
    return text


def _fleet(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tunecheck.fleet.session import FleetSession, gathered
    from tunecheck.report.fleet import FLEET_PAGE, print_fleet, watcher

    request = _request(options)
    session = FleetSession(request, at_once=options.at_once, wait_seconds=options.wait)
    console = Console()
    if options.judge:
        report = session.judged(gathered(session.folder, options.nodes, options.wait))
    else:
        with watcher(console) as watch:
            report = session.ask(watch)
    as_json(options, report, indent=None)
    print_fleet(report, console)
    if (page := session.folder / FLEET_PAGE).exists():
        print(f"report: {page}")
    return report.status


def _request(options: argparse.Namespace) -> Request:
    from tunecheck.fleet.session import new_request, unasked

    known = options.resume or options.judge
    if known:
        if options.what or options.engine:
            raise ConfigError([f"fleet: {known} defines the engine and the runs; remove both from the command"])
        several = options.judge and not (options.judge / REQUEST_FILE).exists()
        return unasked(options.judge) if several else read_request(known)
    if not options.engine or not options.what:
        raise ConfigError(["fleet: name an engine and a tier, such as: tunecheck fleet --engine local quick"])
    own = ENGINES[options.engine].options
    given = {name: value for one in ENGINES.values() for name in one.options if (value := getattr(options, name))}
    if wrong := sorted(f"--{name}" for name in given if name not in own):
        raise ConfigError([f"fleet: --engine {options.engine} does not support {', '.join(wrong)}"])
    asked = EngineOptions(nodes=options.nodes, cpus=options.cpus, seconds=options.time, **given)
    return new_request(options.engine, asked, forwarded(options), shown(["tunecheck", *sys.argv[1:]]))
