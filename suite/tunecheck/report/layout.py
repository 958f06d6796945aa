"""The table of every command: its columns side by side, or a list of each row where the terminal is too narrow."""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tunecheck.core.text import printable

NARROW_COLUMNS = 60
"""Width below which columns would be a few letters wide."""


class PlainTable(Table):
    """A table without lines."""

    def __init__(self, *heads: str, right: slice = slice(0), whole: int = 0, gap: int = 1) -> None:
        """Align columns `right` at their ends, break no cell of the first `whole`, leave `gap` between two cells."""
        super().__init__(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold", show_header=bool(heads))
        for place, head in enumerate(heads):
            self.add_column(head, overflow="fold", no_wrap=place < whole)
        for column in self.columns[right]:
            column.justify = "right"

    def add_row(self, *cells: Any, **settings: Any) -> None:
        """Add a row, whose text may be of foreign origin: it is no markup and sends no escape sequence."""
        super().add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells), **settings)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its rows as lists below each other: "heading: value"."""
        if console.width >= NARROW_COLUMNS:
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for head, cell in zip([str(column.header) for column in self.columns], row, strict=True):
                text = cell if isinstance(cell, Text) else Text(str(cell))
                if text := Text(" ").join(text.split("\n")):  # its lines are those of a column
                    yield Text.assemble((f"{head}: ", "bold"), text) if head else text
            yield Text()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the widths that it may have."""
        if console.width >= NARROW_COLUMNS:
            return super().__rich_measure__(console, options)
        return Measurement(1, options.max_width)
