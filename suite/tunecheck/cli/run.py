"""The commands that train: `run` tiers or runs, `bench` trainers, `watch` a user's, `fleet` a tier on all cards."""

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tunecheck.cli.parser import COUNT, FLAG, TIME, answer, as_json
from tunecheck.config import TIERS, find_run, load_run, with_limits
from tunecheck.config.answers import read_ignored, settings_for
from tunecheck.config.schema import Run
from tunecheck.config.trainers import TRAINERS
from tunecheck.core import interrupts
from tunecheck.core.errors import ConfigError, SuiteError
from tunecheck.core.files import write_whole
from tunecheck.core.fork_server import head_start
from tunecheck.core.log import log
from tunecheck.core.paths import checkout_folder, project_folder, session_folder, shipped_folder
from tunecheck.core.redaction import shown
from tunecheck.core.text import one_line
from tunecheck.fleet.engines import ENGINES
from tunecheck.fleet.request import REQUEST_FILE, EngineOptions, Request, read_request
from tunecheck.listen.expectations import EXPECTATIONS, read_expectations
from tunecheck.listen.options import Options
from tunecheck.results import Exit, Report, exit_code
from tunecheck.results.comparison import plain_benchmarks
from tunecheck.results.stored import without_secrets, write_verdict
from tunecheck.session import CARD, IGNORE, REPEATED, RUN, SESSION_OPTIONS, SET, TierSession, written

ANSWERS_FILE = "[tool.tunecheck] or tunecheck.toml"


def add_commands(commands: Any) -> None:
    """Add `run`, `bench`, `watch` and `fleet` to the command line."""
    example = "example: tunecheck run quick --set training.seed=3"
    run = commands.add_parser("run", help="train and judge tiers or single runs", epilog=example)
    _add_selection(run, nargs="+")
    run.add_argument("-n", metavar="WORKERS", type=_workers, help="worker processes; auto means one per GPU")
    run.add_argument("--ignore", **IGNORE)
    run.executes(_run, leaves_files=True, begins_itself=True)

    example = "example: tunecheck bench quick/smollm2-135m-qlora --turns 3"
    bench = commands.add_parser("bench", help="compare trainers on one training: speed, memory, losses", epilog=example)
    bench.add_argument("run", help=RUN)
    known = f"one of {', '.join(TRAINERS)}; may be repeated, and the first is the reference"
    default = "default: every installed trainer that supports the run"
    bench.add_argument("--trainer", **REPEATED, metavar="NAME", help=f"{known}; {default}")
    bench.add_argument("--turns", **COUNT, default=3, help="trainings per trainer, in turns (default 3)")
    bench.add_argument("--set", **SET)
    bench.add_argument("--card", **CARD)
    bench.executes(_bench, leaves_files=True, begins_itself=True)

    usage = "tunecheck watch [OPTION ...] -- COMMAND ..."
    told = "check your own training: tunecheck watch -- python train.py"
    watch = commands.add_parser("watch", help=told, usage=usage)
    watch.add_argument("--steps", **COUNT, help="optimizer steps to record (default 10)")
    after = watch.add_mutually_exclusive_group()
    after.add_argument("--passive", **FLAG, help="let the training run to its end (default)")
    after.add_argument("--stop", **FLAG, help="end the training after these steps")
    after.add_argument("--stop-on-fail", **FLAG, help="end the training after these steps if a check failed")
    declares = f"declare what tunecheck cannot read from your objects: {', '.join(EXPECTATIONS)}"
    watch.add_argument("--expect", **REPEATED, metavar="KEY=VALUE", help=declares)
    add_answers(watch)
    watch.add_argument("--twice", **FLAG, help="also repeat the first steps, and resume from a checkpoint, and compare")
    watch.add_argument("--keep-status", **FLAG, help="exit with the command's status instead of the verdict's")
    watch.add_argument("training", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="your command, unchanged")
    watch.executes(_watch, leaves_files=True, begins_itself=True)

    fleet = commands.add_parser("fleet", help="run one tier on every GPU of every node, and compare")
    _add_selection(fleet, nargs="*")
    summaries = "; ".join(f"{name}: {engine.summary}" for name, engine in ENGINES.items())
    fleet.add_argument("--engine", choices=tuple(ENGINES), help=summaries)
    named = "all, a number, or names such as n[1-8],n12; --judge expects them"
    fleet.add_argument("--nodes", type=_nodes, default="all", help=named)
    fleet.add_argument("--cpus", **COUNT, help="CPU cores per GPU")
    fleet.add_argument("--time", **TIME, default=1800.0, help="time limit per GPU (default 30min)")
    fleet.add_argument("--wait", **TIME, default=3600.0, help="time after which silent nodes are reported (default 1h)")
    fleet.add_argument("--at-once", **COUNT, help="nodes to run at a time (default: all)")
    for name in ("partition", "account", "constraint", "qos"):
        fleet.add_argument(f"--{name}", metavar="NAME", help=f"Slurm's --{name}")
    fleet.add_argument("--address", metavar="HOST:PORT", help="address of the Ray cluster (default: found by ray)")
    session: dict[str, Any] = {"type": Path, "metavar": "SESSION"}
    fleet.add_argument("--resume", **session, help="rerun only the places of this session that did not answer")
    fleet.add_argument("--judge", **session, help="judge the answers of this session, without running anything")
    fleet.executes(_fleet, leaves_files=True, begins_itself=True)


def _add_selection(parser: argparse.ArgumentParser, *, nargs: str) -> None:
    parser.add_argument("what", nargs=nargs, metavar="TIER|RUN", help="a tier, or a run by its name, id or YAML file")
    for flag, settings in SESSION_OPTIONS.items():  # pytest converts the values, and would show a wrong one as it is
        kept = {"type": _checked(settings["type"])} if "type" in settings else {}
        parser.add_argument(flag, **{**settings, **kept})
    parser.add_argument("-k", metavar="EXPRESSION", help="select runs and checks by name, in pytest syntax")


def _checked(convert: Callable[[str], Any]) -> Callable[[str], str]:
    return lambda text: (convert(text), text)[1]


def _workers(text: str) -> str:
    if not re.fullmatch("auto|logical|[0-9]{1,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} should be a number, or auto for one per GPU")
    return text


def _run(options: argparse.Namespace) -> int:
    arguments = pytest_arguments(options)
    head_start(arguments)
    import pytest

    def pytest_unconfigure(config: pytest.Config) -> None:
        if report := getattr(config.pluginmanager.get_plugin("tunecheck"), "report", None):
            as_json(options, report, indent=None)

    status = int(pytest.main(arguments, plugins=[SimpleNamespace(pytest_unconfigure=pytest_unconfigure)]))
    if status == pytest.ExitCode.NO_TESTS_COLLECTED and options.k:
        asked = " and ".join(options.what)
        log.error(f"-k {options.k!r} matches no run and no check of {asked}; `tunecheck show RUN` lists a run's checks")
    return status


def _bench(options: argparse.Namespace) -> int:
    from tunecheck.report.terminal import print_benchmark

    runs, left_out = plan(options.run, options.trainer, options.turns, options.set, options.card)
    for trainer, reason in left_out.items():
        log.info(f"skipped: trainer {trainer}: {reason}")
    session = TierSession(command=shown(["tunecheck", *sys.argv[1:]]))
    if (report := carry_out(runs, session)) is None:
        return Exit.INTERRUPTED
    answer(options, plain_benchmarks(report.runs), lambda console: print_benchmark(report, console))
    print(f"report: {session.folder}")
    return exit_code(report)


def plan(
    name: str, trainers: Sequence[str], turns: int, overrides: Sequence[str] = (), card: str | None = None
) -> tuple[list[Run], dict[str, str]]:
    """Return the runs of a benchmark of this run by these trainers, or by every one that can, and why others cannot.

    They are in the order in which they are trained: every second turn backwards, so that none is always the last.
    Raises ConfigError for an unusable run, for a trainer that is named and cannot, and where fewer than two can.
    """
    file = find_run(name)
    asked = load_run(file, overrides, card)  # what is wrong with the run itself is no matter of a trainer
    able: dict[str, Run] = {}
    left_out: dict[str, str] = {}
    for trainer in trainers or TRAINERS:
        try:
            run = load_run(file, [*overrides, f"trainer={trainer}"], card)
        except ConfigError as error:
            left_out[trainer] = "; ".join(error.problems)
            continue
        if lacks := TRAINERS[trainer].lacks:
            left_out[trainer] = lacks
        else:
            able[trainer] = run
    if left_out and (trainers or len(able) < 2):
        raise ConfigError([f"bench: trainer {trainer}: {reason}" for trainer, reason in left_out.items()])
    if len(able) < 2:
        raise ConfigError([f"bench: name two trainers or more, of {', '.join(TRAINERS)} (got {', '.join(able)})"])
    runs = []
    for turn in range(1, turns + 1):
        for trainer, run in able.items() if turn % 2 else reversed(able.items()):
            place = {"comparison": asked.name, "entry": trainer, "turn": turn}
            runs.append(run.model_copy(update={"id": f"{run.id}-{trainer}-{turn}", **place}))
    return runs, left_out


def carry_out(runs: Sequence[Run], session: TierSession) -> Report | None:
    """Train and judge every run, up to an interrupt, and return the session's report; None where not one was begun."""
    interrupted = False
    session.open()
    try:
        interrupts.work()
        session.warm_up(runs)
        for run in runs:
            with suppress(SuiteError):  # it is in the report
                trace = session.train(run)
                for check in run.resolved_checks().values():
                    session.rows.add(run.name, check(trace))
    except KeyboardInterrupt:
        interrupted = True
    interrupts.close()
    return session.close(interrupted=interrupted)


def pytest_arguments(options: argparse.Namespace) -> list[str]:
    """Return pytest's arguments for these options. Raises ConfigError with every problem."""
    # an installed tunecheck reads no settings of the user's project and leaves no cache there
    alone = ("-c", os.devnull, "--rootdir", str(project_folder()), "-o", "timeout=600", "-p", "no:cacheprovider")
    return [
        *_selection(options.what),
        *("-p", "tunecheck.plugin"),
        *(alone if checkout_folder() is None else ()),
        *_forwarded(options),
        *(f"--set=ignore.{check}={json.dumps(reason)}" for check, reason in read_ignored(options.ignore).items()),
        *(("-n", options.n) if options.n is not None else ()),
        "-v" if options.verbose else "-q",
    ]


def _selection(what: list[str]) -> Iterator[str]:
    tiers = [word for word in what if word in TIERS]
    runs = {word: find_run(word, also=TIERS) for word in what if word not in TIERS}
    if tiers and runs:
        raise ConfigError([f"{' '.join(what)}: use either tiers or runs in one session, not both"])
    folder = shipped_folder() / "tiers"
    if tiers:  # a run may belong to a tier whose file is another's (also_in), so that all of them are collected
        yield from (str(folder), "-m", " or ".join(tiers))
    else:
        wanted = {file.tier for file in runs.values()}
        yield from (str(folder / f"test_{tier}.py") for tier in TIERS if tier in wanted)
    for run in runs:
        yield from ("--run", run)


def _forwarded(options: argparse.Namespace) -> Iterator[str]:
    for flag in SESSION_OPTIONS:
        if (value := getattr(options, flag.removeprefix("--").replace("-", "_"))) is True:
            yield flag
        elif isinstance(value, list):
            yield from (part for each in value for part in (flag, each))
        elif value:
            yield from (flag, value)
    if options.k is not None:
        yield from ("-k", options.k)


def _watch(options: argparse.Namespace) -> int:
    command = options.training[1:] if options.training[:1] == ["--"] else options.training
    if not command:
        raise ConfigError(["watch: no command; for example: tunecheck watch -- python train.py"])
    from rich.console import Console

    from tunecheck.listen.launch import run_name, watch
    from tunecheck.report.files import workflow_commands
    from tunecheck.report.page import PAGE_FILE, page_html
    from tunecheck.report.terminal import print_changes, print_report

    settings = settings_for(next((word for word in command if word.endswith(".py")), command[0]), Path.cwd())
    steps = next(number for number in (options.steps, settings.steps, 10) if number is not None)
    if steps < 2:
        where = f"{ANSWERS_FILE}: steps" if options.steps is None else "--steps"
        raise ConfigError([f"{where}: should be at least 2, because one step shows little (got {steps})"])
    of_file = [f"{key}={value}" for key, value in settings.expect.items()]
    expected = {**read_expectations(of_file, f"{ANSWERS_FILE}: expect"), **read_expectations(options.expect)}
    interrupts.work()
    folder = session_folder()
    listening = Options(
        folder=str(folder),
        name=run_name(command),
        steps=steps,
        ignore={**settings.ignore, **read_ignored(options.ignore)},
        strict=options.strict or settings.strict,
        limits=with_limits({}, options.set),
        stop=options.stop,
        twice=options.twice,
        expect=expected,
        command=shown(command),
    )

    said: list[Report] = []

    def early(so_far: Report) -> bool:
        """Print what the steps say while the training goes on, and return whether it is to end."""
        report = without_secrets(so_far)
        write_verdict(report, folder)
        write_whole(folder / PAGE_FILE, page_html(report, folder))
        ends: bool = options.stop or (options.stop_on_fail and report.verdict == "fail")
        if log.isEnabledFor(logging.INFO):
            said.append(report)
            console = Console(stderr=True)
            goes = "ends" if ends else "continues"
            console.print()  # a progress bar may hold the line
            print_report(report, console, so_far=True)
            console.print(f"after {steps} steps; the training {goes}. report: {folder}", soft_wrap=True)
        return ends

    report, status = watch(command, listening, early)
    report = written(report, folder)
    if said:
        print_changes(report, said[0], Console())
    else:
        print_report(report, Console())
    print("".join(f"{line}\n" for line in workflow_commands(report, os.environ)), end="")
    as_json(options, report, indent=None)
    print(f"report: {folder}")
    own = 128 - status if status < 0 else status  # killed by a signal: as a shell says it
    return own if options.keep_status else exit_code(report)


def add_answers(command: argparse.ArgumentParser) -> None:
    """Add `--ignore`, `--strict` and `--set`, by which a user answers to findings."""
    command.add_argument("--ignore", **IGNORE)
    command.add_argument("--strict", **FLAG, help="exit with 1 on suspicions too")
    command.add_argument("--set", **REPEATED, metavar="checks.NAME.LIMIT=VALUE", help="change a limit; may be repeated")


def _nodes(text: str) -> str:
    """Return which nodes are asked. Raises ArgumentTypeError for a number that no cluster has."""
    if text.isdecimal() and not 0 < int(text[:6]) < 100_000:
        raise argparse.ArgumentTypeError(f"{one_line(text, 40)!r} should be from 1 to 99999, where it is a number")
    return text


def _fleet(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tunecheck.fleet.session import FleetSession, gathered
    from tunecheck.report.fleet import FLEET_PAGE, print_fleet, watcher

    session = FleetSession(_request(options), at_once=options.at_once, wait_seconds=options.wait)
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
    from tunecheck.fleet.session import new_request

    if known := options.resume or options.judge:
        if options.what or options.engine:
            raise ConfigError([f"fleet: {known} defines the engine and the runs; remove both from the command"])
        if options.judge is None or (options.judge / REQUEST_FILE).exists():
            return read_request(known)
        # a folder that several fleets share, such as one for each pod of a Kubernetes Job
        return new_request("several", EngineOptions(), (), f"tunecheck fleet --judge {known}", known)
    if not options.engine or not options.what:
        raise ConfigError(["fleet: name an engine and a tier, such as: tunecheck fleet --engine local quick"])
    given = {name: value for one in ENGINES.values() for name in one.options if (value := getattr(options, name))}
    if wrong := sorted(f"--{name}" for name in given if name not in ENGINES[options.engine].options):
        raise ConfigError([f"fleet: --engine {options.engine} does not support {', '.join(wrong)}"])
    asked = EngineOptions(nodes=options.nodes, cpus=options.cpus, seconds=options.time, **given)
    list(_selection(options.what))  # raises for a run that is unknown
    command = shown(["tunecheck", *sys.argv[1:]])
    return new_request(options.engine, asked, [*options.what, *_forwarded(options)], command)
