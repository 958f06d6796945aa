"""Rows for a person to read: in pieces that together say the row, and cut in the middle where it is long."""

from __future__ import annotations

from tunecheck.core.evidence import RowPiece
from tunecheck.probes import ANY_OBJECTIVE, WATCHED
from tunecheck.probes.reference.given import Row
from tunecheck.probes.shown_rows import MOST_PADDING, MOST_TOKENS, ShownRowsProbe, pieces_of
from tunecheck.training.data import IGNORED

PAD = 0


def decode(tokens: list[int]) -> str:
    """Bytes, as a byte-level vocabulary decodes them."""
    return bytes(tokens).decode("utf-8", "replace")


def as_words(tokens: list[int]) -> str:
    """Words, as SentencePiece decodes them: without the space before the first."""
    return " ".join(f"w{token}" for token in tokens)


def row(given: str, learned: str, padding: int = 0) -> Row:
    """These texts, of which the second is learned, and padding behind them."""
    ids = [*given.encode(), *learned.encode(), *[PAD] * padding]
    labels = [*[IGNORED] * len(given.encode()), *learned.encode(), *[IGNORED] * padding]
    return Row(ids, labels, [1] * (len(ids) - padding) + [0] * padding)


def test_a_row_is_given_learned_and_padded():
    """Each piece with its tokens; padding stands there once."""
    assert pieces_of(row("2 + 2?", "4", padding=3), decode) == (
        RowPiece(kind="context", tokens=6, text="2 + 2?"),
        RowPiece(kind="learned", tokens=1, text="4"),
        RowPiece(kind="padding", tokens=3, text="\0"),
    )


def test_pieces_keep_the_space_between_them():
    """Which a tokenizer leaves out at the beginning of what it decodes."""
    pieces = pieces_of(Row([1, 2, 3], [IGNORED, 2, IGNORED], [1, 1, 1]), as_words)
    assert [piece.text for piece in pieces] == ["w1", " w2", " w3"]


def test_a_character_in_two_pieces_is_shown_whole():
    """With the piece that completes it."""
    ids = [*"aé".encode()]
    first, second = pieces_of(Row(ids, [IGNORED, IGNORED, ids[2]], [1, 1, 1]), decode)

    assert first.text == "a\ufffd"
    assert second.text == "é"


def test_labels_that_are_other_tokens_are_shown_beside_them():
    """Shifted beforehand, say; what no vocabulary holds is left out."""
    (shifted,) = pieces_of(Row([*b"abc"], [*b"bcd"], [1, 1, 1]), decode)
    assert (shifted.text, shifted.labels) == ("abc", "bcd")

    (ignored,) = pieces_of(Row([*b"abc"], [-1, *b"bc"], [1, 1, 1]), decode)
    assert ignored.labels == "bc"
    assert {piece.labels for piece in pieces_of(row("2 + 2?", "4"), decode)} == {""}


def test_a_long_row_is_cut_in_the_middle():
    """Beginning and end stay; padding costs none of the tokens."""
    pieces = pieces_of(row("q" * 1000, "a" * 1000, padding=3), decode)

    assert [(piece.kind, piece.tokens) for piece in pieces] == [
        ("context", MOST_TOKENS // 2),
        ("cut", 2000 - MOST_TOKENS),
        ("learned", MOST_TOKENS // 2),
        ("padding", 3),
    ]
    assert pieces[1].text == ""
    assert "cut" not in {piece.kind for piece in pieces_of(row("q" * MOST_TOKENS, ""), decode)}


def test_learned_padding_is_learned():
    """It is a mistake that is to be seen."""
    assert [piece.kind for piece in pieces_of(Row([5, PAD], [5, PAD], [1, 0]), decode)] == ["learned"]


def test_text_that_the_mask_hides_is_named():
    """By its first different tokens."""
    (hidden,) = pieces_of(Row([*b"hidden text"], [IGNORED] * 11, [0] * 11), decode)

    assert hidden.kind == "padding"
    assert hidden.text == "hiden tx"
    assert len(hidden.text) == MOST_PADDING


def test_rows_are_shown_only_where_they_are_known():
    """The inputs of a classifier, say, are of another kind."""
    assert ShownRowsProbe in WATCHED
    assert ShownRowsProbe not in ANY_OBJECTIVE
