"""What a terminal shows while a fleet answers: a live table, or a line for each change where there is no terminal."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tunecheck.core.text import human_seconds, one_line
from tunecheck.report.layout import PlainTable
from tunecheck.results.fleet import Heard

MOST_ROWS = 15
"""Of the live table: what runs, then what came in last."""


class Watcher:
    """Follows the progress of a session."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._told: dict[str, str] = {}

    def __call__(self, heard: Mapping[str, Heard], trouble: str = "") -> None:
        """Show the present state, and what the engine is in trouble with."""
        now = {"": trouble} | {name: _words(one) for name, one in heard.items()}
        lines = {name: one_line(words, 200) for name, words in now.items() if words}
        news = {name: line for name, line in lines.items() if self._told.get(name) != line}
        self._told |= news
        if self._live is not None:
            if news:
                self._live.update(_table(heard, self._told))
            return
        for name, words in news.items():
            self._console.print(Text(f"  {name}: {words}" if name else f"  {words}"), soft_wrap=True)


@contextmanager
def watcher(console: Console) -> Iterator[Watcher]:
    """Yield what follows a session in this console while the block is executed."""
    if not console.is_terminal:
        yield Watcher(console, None)
        return
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        yield Watcher(console, live)


def _words(heard: Heard) -> str:
    """Return the state of a place, once it has answered what it said; empty for one that is not asked now."""
    answer = heard.answer
    if answer is None or heard.state != "answered":
        return heard.said
    if answer.problem:
        return f"problem: {answer.problem}"
    runs = ", ".join(f"{run.run} {run.outcome}, {run.passed} passed, {len(run.failed)} failed" for run in answer.runs)
    return f"{runs or f'status {answer.status}'}, {human_seconds(answer.ended_at - answer.began_at)}"


def _table(heard: Mapping[str, Heard], told: dict[str, str]) -> RenderableType:
    counts = Counter(one.state for one in heard.values())
    said = ", ".join([*(f"{number} {state}" for state, number in counts.items() if state), f"{counts['']} not asked"])
    table = PlainTable(gap=2)
    table.show_header = False
    for name, words in list(told.items())[-MOST_ROWS:]:
        table.add_row(Text(name), Text(words, overflow="ellipsis", no_wrap=True))
    return Group(Text(f"{len(heard)} places: {said}", style="bold"), table)
