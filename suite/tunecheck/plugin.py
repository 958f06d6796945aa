"""The pytest plugin: options, settings, one test for each check of each run, and hooks that hand over to the session.

A hook is a guard and a call: what a session does is in `tunecheck.session`, what it prints in `tunecheck.report`.
"""

import gc
import io
import os
import re
import sys
import warnings
from collections.abc import Generator, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from _pytest.runner import runtestprotocol

from tunecheck.checks import CHECKS
from tunecheck.config import TIERS, all_problems, find_run, mentions, read_runs, run_files
from tunecheck.config.schema import Run
from tunecheck.core import interrupts
from tunecheck.core.errors import ConfigError, MachineTooSmall, SuiteError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.log import log, on_terminal
from tunecheck.core.paths import shipped_folder, without_runs
from tunecheck.core.redaction import redacted, shown
from tunecheck.core.trace import Trace
from tunecheck.core.unexpected import unexpected
from tunecheck.core.units import GIB
from tunecheck.hardware import probe
from tunecheck.results import Exit, Report, exit_code
from tunecheck.results.domain import attributed
from tunecheck.session import REPEATED, SESSION_OPTIONS, TierSession
from tunecheck.session.leases import WAIT_SECONDS

ATTEMPTS, FETCH_SECONDS = 20, 1800
"""Most attempts a run makes (training, four fallback steps and a reference, repeat, resume, reading back, six variants,
every fallback step once more) and time for fetching its weights."""
SESSION = pytest.StashKey[TierSession]()


# Options and settings.


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tunecheck")
    for flag, settings in SESSION_OPTIONS.items():
        group.addoption(flag, **settings)
    group.addoption("--run", **REPEATED, metavar="RUN", help="select this run by its name, id or YAML file")


def pytest_configure(config: pytest.Config) -> None:
    if asks_for_tiers(config.args):
        for name in ("terminal", "capture"):  # without these no session can be shown
            if config.pluginmanager.is_blocked(name):
                raise pytest.UsageError(f"-p no:{name} disables a plugin that tunecheck reports with: remove it")
        spare_cache(config)
    for name, summary in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {summary}")
    config.pluginmanager.register(SessionHooks(config), "tunecheck")


def spare_cache(config: pytest.Config) -> None:
    """Let no .pytest_cache that is unwritable or full end a session: pytest keeps there which tests failed last."""
    if (cache := getattr(config, "cache", None)) is not None:
        write = cache.set

        def written_if_possible(key: str, value: object) -> None:
            with suppress(OSError), warnings.catch_warnings():
                warnings.simplefilter("ignore", pytest.PytestCacheWarning)
                write(key, value)

        cache.set = written_if_possible


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    interrupts.close()  # the last test has ended: the report is not to be cut off
    gc.freeze()  # pytest collects the garbage five times at its end, and Python again at its own


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start a worker for each GPU; xdist counts for other tests, and where its own variable is set."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or not asks_for_tiers(config.args):
        return None
    return max(1, len(probe().usable_gpus))


def one_worker_a_run(config: Any, log: Any = None) -> Any:
    """Return a scheduler of xdist that gives every run to one worker; what a dead one had begun another will refuse."""
    from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

    config.option.loadscopereorder = False  # runs are trained in the order of their tiers
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = run_named
    return scheduling


def run_named(node_id: str) -> str:
    """Return the run of a check's node id, such as "quick/smollm2-135m-qlora"; any other node id unchanged."""
    match = re.search(r"test_(?P<tier>[a-z]+)\.py::[^\[]*\[(?P<run>.*)-[^-]*\]$", node_id)
    return f"{match['tier']}/{match['run']}" if match else node_id


def asks_for_tiers(arguments: Iterable[str]) -> bool:
    """Return whether any of these paths (or node ids) is the folder of the tiers, lies in it or contains it."""
    tiers = shipped_folder() / "tiers"
    paths = [Path(argument.partition("::")[0]).resolve() for argument in arguments]
    return any(path.is_relative_to(tiers) or tiers.is_relative_to(path) for path in paths)


# Collection: a tier's test runs once for every check of every run of that tier.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (tier := tier_of(metafunc.definition)) is not None and "finding" in metafunc.fixturenames:
        metafunc.parametrize(("run", "check"), checks_of_tier(tier, metafunc.config.option), scope="module")


def checks_of_tier(tier: str, options: Any) -> list[Any]:
    """Return the parameters (run, check) of a tier's test; an error stands for the run of a file that is wrong."""
    requested = options.markexpr if options.markexpr in TIERS else tier
    runs, unusable = read_runs(tier, options.set, options.card, [find_run(name) for name in options.run])
    parameters = [
        pytest.param(run, name, id=f"{run.id}-{name}", marks=[getattr(pytest.mark, also) for also in run.also_in])
        for run in runs
        if requested in (tier, *run.also_in)  # pytest would take a quarter of a second to leave the others out
        for name in run.resolved_checks()
    ]
    for file, error in unusable.items():  # reported after the collection, and only if this run is selected
        marks = [getattr(pytest.mark, also) for also in TIERS if mentions(file.path, also)]
        error = ConfigError(error.problems, file.name)
        # -k may select or rule out a check by its name: a run that cannot be read has to be found either way
        names = ("configuration", "-".join(CHECKS))
        parameters += [pytest.param(error, name, id=f"{file.id}-{name}", marks=marks) for name in names]
    return parameters


def tier_of(item: pytest.Item) -> str | None:
    return next((mark.name for mark in item.iter_markers() if mark.name in TIERS), None)


def is_check(item: pytest.Item) -> bool:
    """Return whether this item is a tier's test."""
    return tier_of(item) is not None and "finding" in getattr(item, "fixturenames", ())


def run_of(item: pytest.Item) -> Any:
    """Return the item's run, or the error of its file; None for another test, and for a tier without a run."""
    callspec = getattr(item, "callspec", None)
    run = callspec.params.get("run") if callspec else None
    return run if isinstance(run, Run | ConfigError) else None


def together(items: list[pytest.Item]) -> None:
    """Sort the items run by run, in the order of the checks: an interruption leaves whole runs, causes come first."""
    order: dict[object, int] = {}
    checks = list(CHECKS)

    def place(item: pytest.Item) -> tuple[int, int]:
        if isinstance(run := run_of(item), Run):
            check = item.callspec.params["check"]  # type: ignore[attr-defined]
            return order.setdefault(run.name, len(order)), checks.index(check)
        return order.setdefault(item.nodeid, len(order)), 0

    items.sort(key=place)


# Fixtures, and the outcome of a test.


@pytest.fixture(scope="module")
def trace(run: Run, pytestconfig: pytest.Config) -> Trace | str:
    """Train the run, once for all checks, and return its trace, or why there is none; skip one that is too large."""
    session = pytestconfig.stash[SESSION]
    try:
        return session.train(run)
    except MachineTooSmall as reason:
        too_small = f"{run.name} {reason}"
    except SuiteError as error:
        return f"{run.name}: {error}"
    if session.require_gpu:
        return too_small
    pytest.skip(too_small)


@pytest.fixture
def finding(run: Run, check: str, trace: Trace | str, pytestconfig: pytest.Config) -> Finding:
    """Return what this check concludes; what cannot be judged is an error, or a skip where the run itself says so."""
    session = pytestconfig.stash[SESSION]
    if isinstance(trace, str):
        report_once(session, run, trace)
    found = attributed(trace, run.resolved_checks()[check](trace))
    session.rows.add(run.name, found)
    if check in run.ignore and found.status is Status.FAILED:
        pytest.skip(redacted(f"ignored: {run.ignore[check]}"))
    if found.status is not Status.UNJUDGED:
        return found
    if not trace.main.finished:
        report_once(session, run, f"{run.name} did not finish: it {trace.main.ending}")
    if found.expected:
        pytest.skip(f"unjudged: {found.detail}")
    pytest.fail(f"{check} could not be judged: {found.detail}", pytrace=False)


def report_once(session: TierSession, run: Run, problem: str) -> NoReturn:
    """Fail with the problem at the first check of the run, skip at the others: one problem is one message."""
    if run.name in session.told:
        pytest.skip(f"{run.name} did not train: see its first check")
    session.told.add(run.name)
    pytest.fail(problem, pytrace=False)


def require_passed(finding: Finding) -> None:
    """Fail the test with the finding as text: what pytest, its JUnit file and an IDE show in place of a traceback."""
    if not finding.passed:
        from tunecheck.report.view import failure

        pytest.fail(failure("", finding).block(), pytrace=False)


class SessionHooks:
    """Hooks for one session of tiers, in the process that controls it or in one of its workers (pytest -n)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, options = config, config.option
        self.bare = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not options.markexpr
        if self.bare:
            options.markexpr = "quick"
        self.of_tiers = asks_for_tiers(config.args)
        self.interrupted = self.selected = self.asked = self.listens = False
        self.report: Report | None = None
        self.worker: dict[str, str] | None = getattr(config, "workerinput", None)
        if self.worker and self.of_tiers:
            interrupts.on_its_own()  # the controller tells its workers when they are to end
        self.controls = self.worker is None and config.getoption("dist", "no") != "no"

        self.session = config.stash[SESSION] = TierSession(
            command=shown(["pytest", *config.invocation_params.args]),
            require_gpu=options.require_gpu,
            in_process=options.in_process,
            vram_cap_bytes=options.vram_cap,
            fail_on_regression=options.fail_on_regression,
            folder=Path(self.worker["tunecheck_folder"]) if self.worker else None,
        )
        if self.of_tiers:
            showing = ExitStack()
            showing.enter_context(on_terminal(self.show))
            config.add_cleanup(showing.close)

    @property
    def terminal(self) -> Any:
        return self.config.pluginmanager.get_plugin("terminalreporter")

    def show(self, line: str) -> None:
        """Write a line to the terminal while a test runs, whatever pytest captures; a worker's to standard error."""
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled():
            if self.worker:  # which has no terminal, and whose standard error is that of the controlling process
                print(f"  {self.worker['workerid']}: {line}", file=sys.stderr, flush=True)
                return
            self.terminal.ensure_newline()
            self.terminal.write_line(f"  {line}")
            self.terminal.flush()

    def refuse(self, problems: list[str]) -> NoReturn:
        """Raise pytest's UsageError; a worker leaves that to the process that controls it."""
        if not self.worker:
            raise pytest.UsageError(*problems)
        self.config.workeroutput["tunecheck_problems"] = problems  # type: ignore[attr-defined]
        pytest.exit(problems[0], returncode=pytest.ExitCode.USAGE_ERROR)

    # Workers.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None, object, object]:
        if not self.controls or not self.of_tiers:
            return (yield)
        self.listens = interrupts.listen()
        interrupts.work()
        with interrupts.blocked():
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return one_worker_a_run(config, log) if self.of_tiers else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["tunecheck_folder"] = str(self.session.folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if problems := getattr(node, "workeroutput", {}).get("tunecheck_problems"):
            raise pytest.UsageError(*problems)

    # From collection to the last test.

    def pytest_report_header(self) -> list[str]:
        bare = ["tunecheck: without -m, this runs the quick tier"] if self.bare else []
        cap = self.config.option.vram_cap
        return [*bare, f"tunecheck: --vram-cap: every GPU is limited to {cap / GIB:.1f} GiB"] if cap else bare

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Refuse names and folders that cannot be used: inside of the collection pytest would show a traceback."""
        if not self.of_tiers:
            return
        try:
            run_files()
            for name in self.config.option.run:
                find_run(name)
        except ConfigError as problem:
            self.refuse([str(problem)])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.config.option.run:  # the other tiers of these files are not requested, and may have no such run
            items[:] = [item for item in items if not is_check(item) or run_of(item) is not None]
        self.selected = True
        self.pass_over_unusable(items)
        together(items)
        for item in items:  # each attempt has its own deadline; this guard is for what lies around them
            if isinstance(run := run_of(item), Run):
                item.add_marker(pytest.mark.timeout(ATTEMPTS * run.deadline + FETCH_SECONDS + WAIT_SECONDS))

    def pass_over_unusable(self, items: list[pytest.Item]) -> None:
        """Remove the tests of unusable files and report these, where another run is left, but not for a wrong --set."""
        wrong = {run.name: run for item in items if isinstance(run := run_of(item), ConfigError)}
        # a person has typed it for this session
        typed = any(problem.startswith("--set ") for run in wrong.values() for problem in run.problems)
        trains = any(isinstance(run_of(item), Run) for item in items)
        if self.worker or typed or not trains or self.config.option.collectonly:
            return
        items[:] = [item for item in items if not isinstance(run_of(item), ConfigError)]
        for name, run in wrong.items():
            self.session.rows.refuse(name, str(run))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not self.selected:  # pytest calls this after a collection that failed, too, such as by a wrong -k
            return
        selected = [run for item in session.items if (run := run_of(item)) is not None]
        if wrong := [run for run in selected if isinstance(run, ConfigError)]:
            self.refuse(["the configuration cannot be used", str(all_problems(wrong))])
        if empty := {tier_of(item) for item in session.items if is_check(item) and run_of(item) is None}:
            raise pytest.UsageError(without_runs(sorted(map(str, empty))))  # else a session without a failure
        if self.config.option.collectonly or not any(map(is_check, session.items)):
            return
        self.listens = interrupts.listen() or self.listens
        try:
            self.session.open()
            interrupts.work()  # a cancelled job ends like Ctrl-C: with a report
            self.session.warm_up(selected)  # lets the imports of the training process begin
        except SuiteError as error:
            self.refuse([str(error)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a check's test once, whatever plugin repeats what fails: the trace would be judged the same again."""
        if not is_check(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach to the report what the controlling process needs, as plain data: it may come from a worker."""
        report = yield
        vars(report)["tunecheck_asked"] = is_check(item)
        if self.worker and isinstance(run := run_of(item), Run):
            vars(report)["tunecheck_run"] = self.session.rows.news(run.name)
        if is_check(item) and (crash := getattr(report.longrepr, "reprcrash", None)):
            # Where $CI is set, pytest's short summary has whole messages, and would show the block again.
            crash.message = crash.message.partition("\n")[0]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.asked |= getattr(report, "tunecheck_asked", False)
        if (news := getattr(report, "tunecheck_run", None)) and (line := self.session.rows.merge(news)):
            log.info(f"{report.worker_id}: {line}")

    # The end.

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """End as a session that could not be judged, with one line in place of frames; what was judged is reported."""
        if self.of_tiers:
            error = excinfo.value
            told = str(error) if isinstance(error, SuiteError) else unexpected(error, self.session.folder)
            pytest.exit(told, returncode=Exit.UNJUDGED)  # which pytest takes as the answer

    @pytest.hookimpl(trylast=True)
    def pytest_keyboard_interrupt(self) -> None:
        interrupts.close()
        self.interrupted = True
        for worker in psutil.Process().children() if self.controls else ():  # xdist would let them go on for 5 s
            with suppress(psutil.NoSuchProcess):
                worker.terminate()  # as by Ctrl-C
        if self.of_tiers:
            # it would show where in pytest, or in tunecheck, the signal arrived
            self.terminal._report_keyboardinterrupt = lambda: None

    @pytest.hookimpl(trylast=True)  # by then the workers have ended, and their traces are whole
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        judged = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        try:
            self.report = self.session.close(interrupted=self.interrupted)
        except Exception as error:  # pytest would leave with the traceback, and with what the tests said
            log.error(unexpected(error, self.session.folder))
            if judged:
                session.exitstatus = Exit.UNJUDGED
        if self.report is not None and judged:
            session.exitstatus = exit_code(self.report)
        elif self.asked and not self.worker and session.exitstatus == pytest.ExitCode.OK:
            # by --setup-plan, or by another plugin
            log.error("checks were selected, but none was run: nothing was judged")
            session.exitstatus = Exit.UNJUDGED
        if self.interrupted and self.report is None and not self.worker and self.of_tiers:
            log.error("interrupted")

    def pytest_unconfigure(self) -> None:
        if self.listens:
            interrupts.stop()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the report and, on GitHub, the commands that mark the failures."""
        if self.report is None:
            return
        from rich.console import Console

        from tunecheck.report.files import workflow_commands
        from tunecheck.report.terminal import print_report

        try:
            if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack an arrow or a user's own letters
                sys.stdout.reconfigure(errors="backslashreplace")
            # Failed checks are in pytest's own section above, unless --tb=no has left that out.
            print_report(self.report, Console(file=sys.stdout), failures=self.config.option.tbstyle == "no")
            for line in workflow_commands(self.report, os.environ):
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"report: {os.path.relpath(self.session.folder)}")
        except Exception as error:  # the files are written, and the exit status says the verdict
            log.error(unexpected(error, self.session.folder))
