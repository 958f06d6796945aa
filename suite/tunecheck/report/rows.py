"""A few rows as the model got them, in words, and in a terminal."""

from rich.console import Console
from rich.text import Text

from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import RowPiece, RowShown
from tunecheck.core.text import counted, printable
from tunecheck.core.trace import Trace

_STYLES = {"learned": "black on green", "padding": "dim", "cut": "dim"}


def problem_of(trace: Trace) -> str:
    """Return why nothing can be shown; empty where the trace has a name and rows."""
    try:
        _ = trace.run.name, trace.all(RowShown)
    except MissingEvidence as error:
        known = "tunecheck shows rows of a causal language model that is given input_ids"
        return f"shows no rows: {trace.settings.get('objective') or (known if trace.trainings else error)}"
    return ""


def row_words(row: RowShown) -> str:
    """Return a row's numbers in a line, and whether it may be cut off."""
    limit = "" if row.longest is None else f", limit {row.longest:,}"
    padding = sum(piece.tokens for piece in row.pieces) - row.tokens
    learned = padding - sum(piece.tokens for piece in row.pieces if piece.kind == "padding")
    words = f"{counted(row.tokens, 'token')}{f' and {padding:,} padding' if padding else ''}{limit}"
    words += f"; {row.learned:,} learned{f', {learned:,} of them padding' if learned else ''}"
    full = row.longest is not None and row.tokens >= row.longest and row.ended is False
    return f"{words}; fills the limit and has no end token: it may be truncated" if full else words


def piece_words(piece: RowPiece) -> str:
    """Return a piece's text, or the number of its tokens where they are padding or cut out."""
    if piece.kind == "cut":
        return f" [... {counted(piece.tokens, 'token')} not shown ...] "
    return f"[{piece.tokens:,} padding: {piece.text.strip()}]" if piece.kind == "padding" else piece.text


def print_rows(trace: Trace, console: Console) -> None:
    """Print the rows as they are: not wrapped, no markup read, no escape sequence sent."""
    coloured = console.color_system is not None and not console.no_color
    told = "is green" if coloured else "stands in [[ ]]"
    console.print(Text(printable(f"{trace.run.name}: the first rows of the first step\nlearned text {told}")))
    for number, row in enumerate(trace.records(RowShown), start=1):
        shown = Text.assemble((f"\nRow {number}: {row_words(row)}\n", "bold"))
        for piece in row.pieces:
            words = printable(piece_words(piece))
            marked = words if coloured or piece.kind != "learned" else f"[[{words}]]"
            shown.append(marked, style=_STYLES.get(piece.kind))
            shown.append(f" [labels are other tokens: {printable(piece.labels)}]" if piece.labels else "", style="red")
        console.print(shown, soft_wrap=True)
