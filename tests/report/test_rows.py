"""Rows as the model got them, in a terminal and on the page: learned text is marked, and no text is believed."""

from __future__ import annotations

import io
import re

import pytest
from html_page import MOST_BYTES, Page
from rich.console import Console
from sessions import session, write_trace
from traces import adding, healthy, with_run, without

from tunecheck.cli import main
from tunecheck.core import evidence as e
from tunecheck.report.page import page_html
from tunecheck.report.rows import print_rows, row_words

NASTY = "</blockquote><script>alert(1)</script>[bold]\x1b[31m\x07\u202e"


def row(*pieces: tuple[str, str], each: int = 10, longest: int | None = 64, ended: bool | None = True) -> e.RowShown:
    """A row of these kinds and texts, ten tokens each."""
    made = tuple(e.RowPiece(kind=kind, tokens=each, text=text) for kind, text in pieces)
    tokens = sum(piece.tokens for piece in made if piece.kind != "padding")
    return e.RowShown(pieces=made, tokens=tokens, learned=10, longest=longest, ended=ended)


def with_rows(*rows: e.RowShown):
    """A trace of these rows alone."""
    return adding(without(healthy(), e.RowShown), *rows)


def printed(trace, **settings) -> str:
    """What a console of these settings shows."""
    file = io.StringIO()
    print_rows(trace, Console(file=file, **settings))
    return file.getvalue()


@pytest.fixture
def file(tmp_path):
    """A trace with a row on disk."""
    write_trace(tmp_path / "run.jsonl", healthy())
    return tmp_path / "run.jsonl"


def test_a_trace_shows_its_rows(capsys, file):
    """Lengths first, then the text with what is learned in brackets."""
    assert main(["rows", str(file)]) == 0

    assert capsys.readouterr().out == (
        "convergence/two-layers-qlora: the first rows of the first step\nlearned text stands in [[ ]]\n\n"
        "Row 1: 32 tokens and 8 padding, limit 128; 12 learned\n"
        "What is written on the door of Port Ilvane?\n"
        "[[Seven copper herons wait for the violet tide.</s>]][8 padding: <pad>]\n"
    )


def test_a_folder_is_its_first_trace(capsys, file):
    """As `page` takes a folder."""
    assert main(["rows", str(file.parent)]) == 0
    assert "Row 1: 32 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (
            without(healthy(), e.RowShown),
            "shows no rows: tunecheck shows rows of a causal language model that is given input_ids",
        ),
        (with_run(without(healthy(), e.RowShown), objective="a classifier"), "shows no rows: a classifier"),
    ],
)
def test_a_trace_without_rows_says_why(capsys, tmp_path, trace, words):
    """In one sentence, and with status 4."""
    write_trace(tmp_path / "run.jsonl", trace)
    assert main(["rows", str(tmp_path / "run.jsonl")]) == 4

    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"tunecheck: {tmp_path / 'run.jsonl'}: {words}\n"


@pytest.mark.parametrize("held", ["nothing", "no trace", "empty folder"])
def test_what_is_no_trace_is_a_message(capsys, tmp_path, held):
    """No traceback, status 4."""
    path = tmp_path / "it"
    if held == "empty folder":
        path.mkdir()
    elif held == "no trace":
        path.write_text("Once upon a time\n")
    assert main(["rows", str(path)]) == 4

    assert capsys.readouterr().err.startswith(f"tunecheck: {path}")


def test_colours_need_a_terminal_and_no_no_color(monkeypatch):
    """With colours there are no brackets; without, no escape sequence."""
    trace = healthy()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = printed(trace, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(trace, force_terminal=True)

    assert "\x1b[30;42mSeven copper herons" in coloured
    assert "[[" not in coloured
    assert "[[Seven copper herons" in plain
    assert "\x1b[30;42m" not in plain
    assert "\x1b" not in printed(trace)


def test_text_of_a_row_is_only_text(tmp_path):
    """It sends nothing to a terminal, is no markup of rich's, and no element of the page."""
    trace = with_rows(row(("context", NASTY), ("learned", NASTY), ("padding", NASTY)))
    shown = printed(trace, force_terminal=True, color_system="truecolor")
    html = page_html(session(tmp_path, trace), tmp_path)

    assert shown.count("</blockquote><script>alert(1)</script>[bold]") == 3
    for sent in ("\x1b[31m", "\x07", "\u202e"):
        assert sent not in shown
        assert sent not in html
    assert "bold" not in {tag for tag, _ in Page(html).elements}
    assert Page(html).named("script") == [{}]
    assert Page(html).unbalanced == []


def test_a_passing_page_shows_its_rows(tmp_path):
    """What is learned is in an element of its own."""
    page = Page(html := page_html(session(tmp_path, healthy()), tmp_path))

    assert "Row 1: 32 tokens and 8 padding, limit 128; 12 learned" in page.text
    assert "<mark>Seven copper herons wait for the violet tide.&lt;/s&gt;</mark>" in html
    assert "Rows as the model got them" not in page_html(session(tmp_path, with_rows()), tmp_path)


def test_a_page_of_many_runs_has_few_rows(tmp_path):
    """Each of them at its longest: the page keeps its size."""
    trace = with_rows(*[row(("context", "word " * 512), ("learned", "word " * 512))] * 4)
    html = page_html(session(tmp_path, *[trace] * 10), tmp_path)

    assert html.count(">Row 1:<") == 10
    assert len(html.encode()) < MOST_BYTES


@pytest.mark.parametrize(
    ("shown", "truncated"),
    [
        (row(("context", ""), each=64, ended=False), True),
        (row(("context", ""), each=64, ended=True), False),
        (row(("context", ""), each=63, ended=False), False),
        (row(("context", ""), each=64, ended=None), False),
        (row(("context", ""), each=64, longest=None, ended=False), False),
    ],
)
def test_a_full_row_without_an_end_may_be_truncated(shown, truncated):
    """Where both the limit and the end token are known."""
    assert ("may be truncated" in row_words(shown)) is truncated


def test_learned_padding_is_told_apart():
    """Each number says of what it is: no row can have more learned tokens than tokens."""
    pieces = tuple(e.RowPiece(kind="learned", tokens=count) for count in (43, 25))
    shown = e.RowShown(pieces=pieces, tokens=43, learned=68, longest=None, ended=None)

    assert row_words(shown) == "43 tokens and 25 padding; 68 learned, 25 of them padding"


def test_labels_that_are_other_tokens_are_told(tmp_path):
    """In the terminal and on the page, without believing them."""
    piece = e.RowPiece(kind="learned", tokens=2, text="a b", labels=NASTY)
    trace = with_rows(e.RowShown(pieces=(piece,), tokens=2, learned=2, longest=4, ended=None))
    html = page_html(session(tmp_path, trace), tmp_path)

    assert "[[a b]] [labels are other tokens: </blockquote><script>" in printed(trace)
    assert "<b> labels are other tokens: &lt;/blockquote&gt;" in html
    assert Page(html).unbalanced == []


def test_the_length_is_drawn_against_the_limit(tmp_path):
    """Each piece by its tokens, then the room that is left."""
    html = page_html(session(tmp_path, with_rows(row(("context", "q"), ("learned", "a"), longest=64))), tmp_path)
    bar = html.partition('<div class="bar"')[2].partition("</div>")[0]

    assert re.findall(r"flex:(\d+)", bar) == ["10", "10", "44"]


def test_a_cut_is_marked():
    """With the tokens that it hides."""
    trace = with_rows(row(("context", "begin"), ("cut", ""), ("learned", "end")))
    assert "begin [... 10 tokens not shown ...] [[end]]" in printed(trace)
