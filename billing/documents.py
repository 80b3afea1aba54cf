"""Documents that people look at: pages made from the templates beside this module, and the same as PDF.

Nothing here reads from a network or from other files: what a page shows is in it.  Imported only by commands, never by
processes that serve.
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
    """PDF cannot be made on this machine; the text says what is missing.  HTML can."""


def page(template: str, **values: object) -> str:
    """The template of this name with these values in it.

    What is put into ``*.html.j2`` is escaped; a value that the template asks for and that is not given is an error.
    """
    return _environment().get_template(template).render(values)


def pdf_of(html: str) -> bytes:
    """The page as PDF.  Pictures are in the page (``data:`` or SVG), anything else is left out.

    Raises :class:`PdfUnavailable`.
    """
    try:
        from weasyprint import HTML
        from weasyprint.urls import URLFetcher
    except OSError as error:  # what it is made of is there, the system's library is not
        raise PdfUnavailable(f"{PDF_NEEDS}: {error}") from error
    pdf: bytes = HTML(string=html, url_fetcher=URLFetcher(allowed_protocols=("data",))).write_pdf()
    return pdf


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=PackageLoader("billing"),
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
    """Text that ends with spaces, so that it is as wide in a page: those of the width of digits and of a point."""
    shown = text.strip()
    spaces = len(text) - len(text.rstrip())
    point = "" if not spaces or "." in shown else "\N{PUNCTUATION SPACE}"
    return shown + point + "\N{FIGURE SPACE}" * (spaces - len(point))
