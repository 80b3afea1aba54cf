"""Parts of a report's page: tiles, sections, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from markupsafe import Markup

from billing.reports.charts import Chart
from billing.reports.documents import page


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Text in rows; the first column names the row."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset((0,))
    """Indexes of text columns; the others are numbers."""
    total: Sequence[str] = ()
    more: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A single highlighted number."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A question, its answer in a sentence, a picture and a table."""

    name: str
    title: str
    says: str
    chart: Chart | None = None
    tables: Sequence[ReportTable] = field(default=())
    note: str = ""

    def picture(self, printing: bool) -> Markup:
        assert self.chart is not None
        return Markup(self.chart.in_print() if printing else self.chart.on_screen())


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Content of the page."""

    title: str
    whose: str
    made_at: datetime
    known_until: str
    """Time up to which usage is included, for people; empty: all of the month."""
    remarks: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[Section]

    def html(self) -> str:
        return page("report.html.j2", report=self, printing=False)

    def for_print(self) -> str:
        """Page that the PDF is made of."""
        return page("report.html.j2", report=self, printing=True)
