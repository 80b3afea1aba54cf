"""Pages and PDF."""

import io
import sys
from pathlib import Path

import jinja2
import pytest
from pypdf import PdfReader

from billing.reports import documents
from billing.reports.documents import PdfUnavailable, padded, pdf_of
from tests.tables import table


def text_of(pdf: bytes) -> str:
    return "\n".join(one.extract_text() for one in PdfReader(io.BytesIO(pdf)).pages)


def test_a_page_becomes_pdf() -> None:
    pdf = pdf_of("<h1>Größe: 12 €</h1><svg width='9' height='9'><circle r='4' cx='4' cy='4'/></svg>")
    assert pdf.startswith(b"%PDF-")
    assert "Größe: 12 €" in text_of(pdf)


def test_a_pdf_has_nothing_of_the_network_or_of_other_files(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    picture.write_text(
        "<svg xmlns='http://www.w3.org/2000/svg' width='99' height='99'><text y='50'>SECRET</text></svg>"
    )
    content = "data:image/svg+xml;utf8," + picture.read_text().replace("SECRET", "INSIDE")
    pdf = pdf_of(f'<p>seen</p><img src="file://{picture}"><img src="http://127.0.0.1:9/x.png"><img src="{content}">')
    assert text_of(pdf).split() == ["seen", "INSIDE"]


def test_without_pango_the_error_names_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "weasyprint":
                raise OSError("cannot load library 'libpango-1.0-0'")

    monkeypatch.delitem(sys.modules, "weasyprint", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(PdfUnavailable, match=r"apt-get install libpango-1\.0-0.*cannot load"):
        pdf_of("<p>x</p>")


def test_texts_in_a_page_are_escaped_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = documents._environment()
    monkeypatch.setattr(
        environment, "loader", jinja2.DictLoader({"x.html.j2": "<p>{{ a }}</p>", "x.txt.j2": "{{ a }}"})
    )
    assert documents.page("x.html.j2", a="<b>") == "<p>&lt;b&gt;</p>"
    assert documents.page("x.txt.j2", a="<b>") == "<b>"
    with pytest.raises(jinja2.UndefinedError):
        documents.page("x.html.j2", b=1)


@pytest.mark.parametrize(("text", "shown"), table(__file__, "spaces after a number are as wide as what they stand for"))
def test_spaces_after_a_number_are_as_wide_as_what_they_stand_for(text: str, shown: str) -> None:
    assert padded(text) == shown
