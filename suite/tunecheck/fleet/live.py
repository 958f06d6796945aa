"""What a terminal shows while a fleet answers: a live table, or a line for each change where there is no terminal."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tunecheck.core.text import human_seconds, one_line
from tunecheck.report.layout import PlainTable
from tunecheck.results.fleet import Heard

MOST_ROWS = 15
"""Of the live table: what runs, then what came in last."""


@contextmanager
def watcher(console: Console) -> Iterator[Callable[..., None]]:
    """Yield what shows a session's state, and what its engine is in trouble with, while the block is executed."""
    told: dict[str, str] = {}
    table = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def watch(heard: Mapping[str, Heard], trouble: str = "") -> None:
        now = {"": trouble} | {name: _words(one) for name, one in heard.items()}
        lines = {name: one_line(words, 200) for name, words in now.items() if words}
        news = {name: line for name, line in lines.items() if told.get(name) != line}
        told.update(news)
        if table is not None and news:
            table.update(_table(heard, told))
        for name, words in news.items() if table is None else ():
            console.print(Text(f"  {name}: {words}" if name else f"  {words}"), soft_wrap=True)

    with table or nullcontext():
        yield watch


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
    for name, words in list(told.items())[-MOST_ROWS:]:
        table.add_row(Text(name), Text(words, overflow="ellipsis", no_wrap=True))
    return Group(Text(f"{len(heard)} places: {said}", style="bold"), table)
