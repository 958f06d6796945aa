"""Draw what a command printed (standard input) as a picture: scripts/draw-terminal.py TITLE FILE.svg < log."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.text import Text


def main(title: str, file: str) -> None:
    """Write the SVG; the text is the command's own, colours included."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(sys.stdin.read().rstrip()))
    console.save_svg(file, title=title)


if __name__ == "__main__":
    main(*sys.argv[1:])
