"""A failing finding of each check, from the tables of faults in tests/checks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checks import test_checks, test_checks_metered, test_checks_parallel, test_checks_watched
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Finding, Status


def examples() -> dict[str, tuple[str, str]]:
    """Return check to the first fault of its table and the line that the check prints for it."""
    found: dict[str, tuple[str, str]] = {}
    for fault, finding in _findings():
        if finding.status in (Status.FAILED, Status.SUSPECTED):
            found.setdefault(finding.check, (fault, str(finding).partition("\n")[0]))
    return found


def healthy() -> dict[str, str]:
    """Return check to the line that it prints for the healthy trace, where it passes."""
    found = {name: check(test_checks.HEALTHY) for name, check in test_checks.ASKED.items()}
    return {name: str(finding).partition("\n")[0] for name, finding in found.items() if finding.status is Status.PASSED}


def _findings() -> Iterator[tuple[str, Finding]]:
    """Yield every fault of the tables and what its check finds."""
    for name, faults in test_checks.FAULTS.items():
        yield from (
            (fault, test_checks.ASKED[name](change(test_checks.HEALTHY))) for (fault, _), change in faults.items()
        )
    for name, traces in test_checks_metered.FAULTS.items():
        yield from ((fault, test_checks_metered.CHECK[name](trace)) for (fault, _), trace in traces.items())
    for name, makers in test_checks_parallel.FAULTS.items():
        yield from ((fault, CHECKS[name]()(make())) for (fault, _), make in makers.items())
    for name, makers in test_checks_watched.FAULTS.items():
        yield from ((fault, CHECKS[name]()(make())) for fault, make in makers.items())
