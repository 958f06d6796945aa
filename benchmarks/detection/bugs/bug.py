"""One injected bug, and the decorator that registers it. Standard library only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunecheck.training.session import Session

Inject = Callable[["Session"], None]

COHORTS = (
    "catalogue",
    "unseen",
    "blind",
    "blind-second",
    "unseen-second",
    "unseen-third",
    "unseen-fourth",
    "parallel",
)
"""Where a bug comes from: the checks' own catalogue, thought up by their author and tried once before any check was
changed for it, written by someone who had seen no check, the same a second time from issue trackers, and thought up by
the checks' author a second time, for 16 bit, and by a reader of docs/checks.md who had not seen their code, by
a reader of the trainers who knew the checks' names and questions alone, and those of several processes, by the author
of their checks."""

REGISTERED: dict[str, Bug] = {}
"""Every decorated function's bug by id, in the order of the files. `benchmarks.detection.bugs.BUGS` is sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A function that breaks a healthy session from outside, with its row of the catalogue.

    It is pickled into the training child by the function's name; the function must be at the top level of its module.
    """

    id: str
    """B01, ... in the public list; X01, ... for what that lacks; U, V, W, Y and Z for those that no check was made
    for; D for those of several processes."""
    title: str
    caught_by: tuple[str, ...]
    """Checks that name it: in a run of `settings` all of them fail for the catalogue, any of them for the others."""
    source: str
    """Repository#thread."""
    cohort: str
    settings: tuple[str, ...]
    """What a run must configure for the buggy code to run at all, as for --set."""
    tier: str
    """quick or convergence: the first tier whose evidence names it."""
    must_say: str
    """What a finding must say to lead a person to the cause, written before the bug was run; of blind cohorts and the
    fourth unseen."""
    inject: Inject

    @property
    def subject(self) -> str:
        """What it breaks, which is its module's name: adapters, loss, data, ..."""
        return self.inject.__module__.rpartition(".")[2]

    @property
    def mechanism(self) -> str:
        """What the function does, by its docstring."""
        return inspect.getdoc(self.inject) or ""

    def settings_on(self, *, real: bool) -> tuple[str, ...]:
        """Return the settings, without those of the model's shape on real weights, whose shape is given."""
        return tuple(s for s in self.settings if not (real and s.startswith("model.")))

    def __call__(self, session: Session) -> None:
        """Inject the bug into the session."""
        self.inject(session)


def bug(
    id: str,
    title: str,
    *,
    caught_by: str | tuple[str, ...],
    source: str = "well known, without a thread",
    cohort: str = "catalogue",
    settings: tuple[str, ...] = (),
    tier: str = "quick",
    must_say: str = "",
) -> Callable[[Inject], Inject]:
    """Register the decorated function as a bug and return it unchanged, so that it can be pickled by name.

    Raises ValueError for an id that is taken and for an unknown cohort.
    """
    if id in REGISTERED or cohort not in COHORTS:
        raise ValueError(f"{id} of cohort {cohort!r}: ids are unique, cohorts are {', '.join(COHORTS)}")

    def register(inject: Inject) -> Inject:
        REGISTERED[id] = Bug(
            id=id,
            title=title,
            caught_by=(caught_by,) if isinstance(caught_by, str) else caught_by,
            source=source,
            cohort=cohort,
            settings=settings,
            tier=tier,
            must_say=must_say,
            inject=inject,
        )
        return inject

    return register
