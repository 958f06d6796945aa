"""Compare two sessions, or two traces: which figures of a run differ by more than they scatter."""

from collections.abc import Iterator
from pathlib import Path

from tunecheck.core.errors import SuiteError, TraceError
from tunecheck.core.frozen import Frozen
from tunecheck.core.log import log
from tunecheck.core.trace import read
from tunecheck.history.store import RECENT, HistoryEntry, Store, changed, history_entry
from tunecheck.results import RunReport
from tunecheck.results.baseline import FEWEST_SESSIONS, FIGURES, Status, change, compare_pair
from tunecheck.results.rejudge import judged_again, report_on, session_report


class Difference(Frozen):
    """One figure in A and in B."""

    figure: str
    before: float
    after: float
    status: Status
    """steady, better or worse; suspect: more than the floor, where the scatter is not known yet."""
    room: float
    """The largest change that does not count."""
    change: float | None
    """Relative, of `before`; None where that is no number."""


class Comparison(Frozen):
    """One run of both sessions."""

    run: str
    outcomes: tuple[str, str]
    answers: tuple[str, ...]
    """Checks with another status: "loss_falls: passed → failed"."""
    changed: str
    """Versions and commit in which they differ."""
    incomparable: str
    """Why the figures cannot be compared: another configuration, device or major version; else empty."""
    disturbed: tuple[str, ...]
    """Why a throughput is left out: "A: other processes took 68% of the processors' time while it trained"."""
    sessions: int
    """Sessions whose scatter was used; 0 for the floors alone."""
    differences: tuple[Difference, ...]

    @property
    def worse(self) -> bool:
        """Whether a run no longer passes or a figure is a regression."""
        lost = self.outcomes[0] == "pass" != self.outcomes[1]
        return lost or any(difference.status == "worse" for difference in self.differences)


_Side = tuple[RunReport, HistoryEntry | None]
"""A run's row, and its entry where its training finished."""


def compare(a: Path, b: Path, store: Store) -> list[Comparison]:
    """Compare the runs of both sessions or traces. Raises SuiteError for what cannot be read, or has none in common."""
    first, second = _sides(a), _sides(b)
    if not (names := [name for name in first if name in second]):
        theirs = "; ".join(", ".join(side) or "none" for side in (first, second))
        raise TraceError(f"{a} and {b} have no run in common: {theirs}")
    return [_compared(name, first[name], second[name], store) for name in names]


def _sides(path: Path) -> dict[str, _Side]:
    if path.is_dir():
        folder, report = path, session_report(path)
    else:
        folder, trace = path.parent, read(path)
        report = report_on([trace], [judged_again(trace, [], trace_file=path.name)], interrupted=False)
    about = {"session": folder.name, "started_at": report.started_at}
    return {
        row.name: (row, history_entry(row, read(folder / row.trace_file), **about) if row.trace_file else None)
        for row in report.runs
    }


def _compared(name: str, first: _Side, second: _Side, store: Store) -> Comparison:
    (row_a, a), (row_b, b) = first, second
    before, after = ({finding.check: str(finding.status) for finding in row.findings} for row in (row_a, row_b))
    told = [(check, *(of.get(check, "not in this run") for of in (before, after))) for check in before | after]
    incomparable = "the training of one of them did not finish"
    if a and b:
        pairs = {
            "they trained different things (fingerprints {} and {})": (a.key.fingerprint, b.key.fingerprint),
            "they ran on different devices ({} and {})": (a.key.device, b.key.device),
            "their libraries differ in a major version ({} and {})": (a.key.majors, b.key.majors),
        }
        incomparable = next((words.format(old, new) for words, (old, new) in pairs.items() if old != new), "")
    known: list[HistoryEntry] = []
    differences: tuple[Difference, ...] = ()
    if a and b and not incomparable:
        try:
            known = store.entries(key=a.key, outcome="pass", last=RECENT)
        except SuiteError as error:
            log.warning(f"the scatter of the figures is not known: {error}")
        differences = tuple(_differences(a, b, known))
    return Comparison(
        run=name,
        outcomes=(row_a.outcome, row_b.outcome),
        answers=tuple(f"{check}: {old} → {new}" for check, old, new in told if old != new),
        changed=changed(a, b) if a and b else "",
        incomparable=incomparable,
        disturbed=tuple(f"{side}: {row.cpu_contention}" for side, row in (("A", row_a), ("B", row_b)) if row.too_busy),
        sessions=len(known) if len(known) >= FEWEST_SESSIONS else 0,
        differences=differences,
    )


def _differences(a: HistoryEntry, b: HistoryEntry, known: list[HistoryEntry]) -> Iterator[Difference]:
    for name, figure in FIGURES.items():
        if name in a.figures and name in b.figures:
            values = [entry.figures[name] for entry in known if name in entry.figures]
            before, after = a.figures[name], b.figures[name]
            status, last_good = compare_pair(figure, before, after, values)
            room, relative = abs(last_good - before), change(before, after)
            yield Difference(figure=name, before=before, after=after, status=status, room=room, change=relative)
