"""Injected bugs: real bugs to put into a healthy run, so that the suite can be scored. One file a subject.

A bug changes a healthy session from outside; the trainer has no switches for it. Every module of this package is
imported here, none of which imports torch: a function imports what it needs.
"""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.detection.bugs.bug import COHORTS, REGISTERED, Bug

__all__ = ["BUGS", "COHORTS", "NOT_SHOWN", "Bug", "of_cohort"]

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)


def _order(bug: Bug) -> tuple[int, str, int]:
    return COHORTS.index(bug.cohort), bug.id[0], int(bug.id[1:])


BUGS: dict[str, Bug] = {bug.id: bug for bug in sorted(REGISTERED.values(), key=_order)}
"""Every bug by its id: cohort by cohort, those of the public list first."""

NOT_SHOWN: dict[str, str] = {
    "B109": "a CUDA error that surfaces late: kernels on a CPU are not asynchronous",
}
"""Bugs of the public list that this trainer or a CPU cannot show, each with the reason."""


def of_cohort(cohort: str) -> dict[str, Bug]:
    """Return the bugs of this cohort by id."""
    return {id: bug for id, bug in BUGS.items() if bug.cohort == cohort}
