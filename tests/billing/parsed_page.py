"""HTML pages, parsed."""

import re
from html.parser import HTMLParser


class ParsedPage(HTMLParser):
    """Content of a page, and the URLs that it refers to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.captions: list[str] = []
        """Captions of the tables."""
        self.tables: list[list[list[str]]] = []
        """Texts of the cells, by row."""
        self._texts: list[str] = []
        self._in = ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self._texts))

    def table(self, caption: str) -> list[list[str]]:
        return self.tables[self.captions.index(caption)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "background"):
                self.references.append(value or "")
            elif name == "id":
                self.ids.append(value or "")
        if tag == "table":
            self.tables.append([])
            self.captions.append("")
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("td", "th", "caption"):
            self._in = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._in:
            self._in = ""

    def handle_data(self, data: str) -> None:
        self._texts.append(data)
        if self._in == "caption":
            self.captions[-1] += data
        elif self._in:
            self.tables[-1][-1][-1] = f"{self.tables[-1][-1][-1]}{data}".strip()
