"""The pytest plugin: options, fixtures, and hooks that hand over to the session."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from suite.checks import CHECKS
from suite.config import TIERS, all_problems, find_run, mentions, read_runs
from suite.config.schema import Run
from suite.core.errors import ConfigError, MachineTooSmall, SuiteError
from suite.core.finding import Finding, Status
from suite.core.units import GIB, size_option
from suite.session import TierSession
from suite.session.leases import WAIT_SECONDS
from suite.session.workers import Follower, OneWorkerARun, asks_for_tiers, end_workers, into, worker_count

if TYPE_CHECKING:
    from suite.core.trace import Trace
    from suite.results import Report

ATTEMPTS, FETCH_SECONDS = 20, 1800
"""Most attempts a run makes (training, four rungs and a reference, repeat, resume, reading back, six variants, every
rung once more) and time for fetching its weights."""
SESSION = pytest.StashKey[TierSession]()
TOLD = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tunecheck")
    group.addoption("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of every run")
    group.addoption(
        "--run", action="append", default=[], metavar="RUN", help="only this run, by its name, id or YAML file"
    )
    group.addoption("--card", metavar="CLASS", help="train as suits this card class, a file in configs/cards: 8gb, cpu")
    group.addoption("--require-gpu", action="store_true", help="no GPU, and every skip for lack of one, is a failure")
    group.addoption(
        "--vram-cap",
        type=size_option,
        metavar="SIZE",
        help="treat every GPU as one of this size, e.g. 8GiB: the gate believes it, and the allocator stops there",
    )
    group.addoption(
        "--fail-on-regression",
        action="store_true",
        help="a figure that is worse than in the nights before is a failure",
    )
    group.addoption("--in-process", action="store_true", help="train in pytest's own process, for a debugger")


def pytest_configure(config: pytest.Config) -> None:
    for name, summary in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {summary}")
    config.pluginmanager.register(SessionHooks(config), "tunecheck")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Tiers get a worker for each card; xdist counts for everything else, and where its own variable is set."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or not asks_for_tiers(config.args):
        return None
    return worker_count()


def tier_of(item: pytest.Item) -> str | None:
    """The tier whose marker this item carries."""
    return next((mark.name for mark in item.iter_markers() if mark.name in TIERS), None)


def run_name(item: pytest.Item) -> object:
    """The run whose check this item is; another test stands for itself."""
    callspec = getattr(item, "callspec", None)
    run = callspec and callspec.params.get("run")
    return run.name if isinstance(run, Run) else item.nodeid


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A tier's test runs once for every check of every run of that tier."""
    tier = tier_of(metafunc.definition)
    if tier is None or "finding" not in metafunc.fixturenames:
        return
    options = metafunc.config.option
    asked = options.markexpr if options.markexpr in TIERS else None
    try:
        only = [find_run(name) for name in options.run]
    except ConfigError as problem:
        raise pytest.UsageError(str(problem)) from problem
    runs, unusable = read_runs(tier, options.set, options.card, asked, only)
    pairs = [
        pytest.param(run, name, id=f"{run.id}-{name}", marks=[getattr(pytest.mark, also) for also in run.also_in])
        for run in runs
        for name in run.resolved_checks()
    ]
    for file, error in unusable.items():  # told when collection is over, and only if this run is asked for
        marks = [getattr(pytest.mark, also) for also in TIERS if mentions(file.path, also)]
        # -k may name a check or rule one out: a run that cannot be read has to be found either way
        pairs += [
            pytest.param(error, words, id=f"{file.id}-{words}", marks=marks)
            for words in ("configuration", "-".join(CHECKS))
        ]
    metafunc.parametrize(("run", "check"), pairs, scope="module")


@pytest.fixture(scope="session")
def trainer(pytestconfig: pytest.Config) -> Callable[[Run], Trace]:
    """Trains a run in a child process and returns its trace. A run that this machine cannot hold is skipped."""
    session = pytestconfig.stash[SESSION]

    def train(run: Run) -> Trace:
        try:
            return session.train(run)
        except MachineTooSmall as reason:
            too_small = f"{run.name} {reason}"
        except SuiteError as error:
            pytest.fail(f"{run.name}: {error}", pytrace=False)
        if session.require_gpu:
            pytest.fail(too_small, pytrace=False)
        pytest.skip(too_small)

    return train


def told_once(config: pytest.Config, run: Run, problem: str) -> NoReturn:
    """An error for the first check of the run; its others are skipped, so that one problem is one message."""
    told = config.stash.setdefault(TOLD, set())
    if run.name in told:
        pytest.skip(f"{run.name} did not train: see its first check")
    told.add(run.name)
    pytest.fail(problem, pytrace=False)


@pytest.fixture(scope="module")
def trace(run: Run, trainer: Callable[[Run], Trace]) -> Trace:
    """This run's trace: trained once, shared by all its checks."""
    return trainer(run)


@pytest.fixture
def finding(run: Run, check: str, request: pytest.FixtureRequest) -> Finding:
    """What this check concludes. What cannot be judged is an error, or a skip where the run itself rules it out."""
    trace: Trace | None = None
    try:
        trace = request.getfixturevalue("trace")
    except pytest.fail.Exception as failure:  # the fixture's own, kept by pytest for every check of the run
        problem = str(failure)
    if trace is None:  # not where it was caught: pytest would print both
        told_once(request.config, run, problem)
    found = run.resolved_checks()[check](trace)
    told = {**asdict(found), "status": found.status.value}  # plain data: it may come from a worker
    request.node.user_properties.append(("tunecheck", {"run": run.name, "finding": told}))
    if not trace.main.finished and not found.passed:
        end = trace.main.end
        how = f"{end.outcome.replace('_', ' ')}: {end.detail}" if end else "killed"
        told_once(request.config, run, f"{run.name} did not finish: {how}")
    if found.status is Status.UNJUDGED:
        if found.expected:
            pytest.skip(f"unjudged: {found.detail}")
        pytest.fail(f"{check} could not be judged: {found.detail}", pytrace=False)
    return found


class SessionHooks:
    """pytest's hooks for one session of tiers, in the process that controls it or in one of its workers (pytest -n)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.bare = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr
        if self.bare:
            config.option.markexpr = "quick"
        self.interrupted = False
        self.report: Report | None = None
        self.worker: dict[str, str] | None = getattr(config, "workerinput", None)
        self.controls = self.worker is None and config.getoption("dist", "no") != "no"
        folder = Path(self.worker["tunecheck_folder"]) if self.worker else None
        self.session = config.stash[SESSION] = TierSession(
            command=shlex.join(["pytest", *config.invocation_params.args]),
            require_gpu=config.option.require_gpu,
            in_process=config.option.in_process,
            vram_cap_bytes=config.option.vram_cap,
            fail_on_regression=config.option.fail_on_regression,
            folder=folder,
            say=into(folder / "progress.log", self.worker["workerid"]) if folder and self.worker else self.say,
        )
        self.follower = Follower(self.session.folder / "progress.log", self.say)

    def say(self, line: str) -> None:
        """Write a line to the terminal while a test runs, whatever pytest captures."""
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled():
            terminal.ensure_newline()
            terminal.write_line(f"  {line}")
            terminal.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if self.controls and asks_for_tiers(self.config.args):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            self.follower.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> OneWorkerARun | None:
        return OneWorkerARun(len(config.option.tx), self.session.rows.lose) if asks_for_tiers(config.args) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["tunecheck_folder"] = str(self.session.folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if problems := getattr(node, "workeroutput", {}).get("tunecheck_problems"):
            raise pytest.UsageError(*problems)

    def pytest_report_header(self) -> list[str]:
        bare = ["tunecheck: no -m is given, so this is the quick tier"] if self.bare else []
        cap = self.config.option.vram_cap
        return [*bare, f"tunecheck: every GPU is one of {cap / GIB:.1f} GiB to gate and allocator"] if cap else bare

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # run by run: pytest would ask each check of all runs in turn, and an interruption would leave none judged
        order: dict[object, int] = {}
        items.sort(key=lambda item: order.setdefault(run_name(item), len(order)))
        for item in items:  # each attempt has its own deadline; this guard is for what lies around them
            callspec = getattr(item, "callspec", None)
            run = callspec and callspec.params.get("run")
            if isinstance(run, Run):
                item.add_marker(pytest.mark.timeout(ATTEMPTS * run.deadline + FETCH_SECONDS + WAIT_SECONDS))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        tiers = {tier_of(item) for item in session.items if "finding" in getattr(item, "fixturenames", ())}
        asked_for = [item.callspec.params.get("run") for item in session.items if hasattr(item, "callspec")]
        if bad := [run for run in asked_for if isinstance(run, ConfigError)]:
            self.refuse(["the configuration cannot be used", str(all_problems(bad))])
        if tiers and not self.config.option.collectonly:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cancelled job ends like Ctrl-C: with a report
            if self.worker:  # Ctrl-C reaches the whole group; the controller passes it on, once
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                self.session.open()
            except SuiteError as error:
                self.refuse([str(error)])
            self.session.warm_up(item.callspec.params["run"] for item in session.items if hasattr(item, "callspec"))

    def refuse(self, problems: list[str]) -> NoReturn:
        """End with pytest's own word for a wrong request; a worker leaves that to the process that controls it."""
        if not self.worker:
            raise pytest.UsageError(*problems)
        self.config.workeroutput["tunecheck_problems"] = problems  # type: ignore[attr-defined]
        pytest.exit(problems[0], returncode=pytest.ExitCode.USAGE_ERROR)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        run = item.callspec.params.get("run") if hasattr(item, "callspec") else None
        if report.when == "setup" and isinstance(run, Run) and (news := self.session.rows.news(run.name)):
            report.user_properties.append(("tunecheck_run", news))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        value: Any
        for name, value in report.user_properties:
            if name == "tunecheck" and report.when == "teardown":
                fields = value["finding"]
                self.session.add(value["run"], Finding(**{**fields, "status": Status(fields["status"])}))
            elif name == "tunecheck_run" and (line := self.session.rows.hear(value)):
                self.say(f"{report.worker_id}: {line}")

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True
        if self.controls:
            end_workers()

    @pytest.hookimpl(trylast=True)  # by then the workers have ended, and their traces are whole
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.follower.stop()
        self.report = self.session.close(interrupted=self.interrupted)
        if self.report is not None and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            from suite.results import exit_code

            session.exitstatus = exit_code(self.report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.report is not None:
            from rich.console import Console

            from suite.report.github import workflow_commands
            from suite.report.terminal import print_report

            print_report(self.report, Console(file=sys.stdout))
            for line in workflow_commands(self.report, os.environ):
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"report: {os.path.relpath(self.session.folder)}")
