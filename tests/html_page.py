"""A parsed HTML report."""

from __future__ import annotations

from html.parser import HTMLParser

MOST_BYTES = 300_000
VOID = {"meta", "br", "hr", "img", "link", "input"}
MAY_STAY_OPEN = {"tr", "td", "th", "dt", "dd", "li", "tbody", "thead", "p"}
"""Elements whose end tag HTML lets an author leave out."""


class Page(HTMLParser):
    """The page as a tree's worth of facts: elements with attributes, the text, and what each heading says."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note the element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """An element that is closed at once."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        """Close it, and what may be left open inside of it."""
        while self.open and self.open[-1] != tag and self.open[-1] in MAY_STAY_OPEN:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        """Note the text."""
        self.words.append(data)

    @property
    def text(self):
        """All text, white space collapsed."""
        return " ".join(" ".join(self.words).split())

    def named(self, tag):
        """The attributes of all elements of this name."""
        return [attributes for name, attributes in self.elements if name == tag]
