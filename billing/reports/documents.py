"""HTML pages made from the templates beside this module, and their PDF.

Nothing here reads from a network or from other files: a page contains all that it shows.  Imported only by commands,
never by processes that serve.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jinja2 import Environment

PDF_NEEDS: Final = (
    "PDF is made by WeasyPrint, which needs the library Pango "
    "(Debian, Ubuntu: sudo apt-get install libpango-1.0-0 libpangoft2-1.0-0; macOS: brew install pango)"
)


class PdfUnavailable(Exception):
    """PDF cannot be made on this machine, while HTML can; the text says what is missing."""


def page(template: str, **values: object) -> str:
    """Render the template of this name with these values.

    Values in ``*.html.j2`` are escaped.  A value that the template uses and that is not given is an error.
    """
    return _environment().get_template(template).render(values)


def pdf_of(html: str) -> bytes:
    """Convert a page to PDF.  Pictures must be in the page (``data:`` or SVG); references to others are left out.

    Raises :class:`PdfUnavailable`.
    """
    try:
        from weasyprint import HTML
        from weasyprint.urls import URLFetcher
    except OSError as error:  # the Python package is installed, a system library it needs is not
        raise PdfUnavailable(f"{PDF_NEEDS}: {error}") from error
    pdf: bytes = HTML(string=html, url_fetcher=URLFetcher(allowed_protocols=("data",))).write_pdf()
    return pdf


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=PackageLoader("billing.reports"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["grouped"] = "{:,}".format
    made.filters["padded"] = padded
    return made


def padded(text: str) -> str:
    """Replace trailing spaces by fixed-width ones, as wide as a digit or a point, so that columns align."""
    shown = text.strip()
    spaces = len(text) - len(text.rstrip())
    point = "" if not spaces or "." in shown else "\N{PUNCTUATION SPACE}"
    return shown + point + "\N{FIGURE SPACE}" * (spaces - len(point))
