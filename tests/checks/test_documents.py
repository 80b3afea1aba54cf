"""Source files that documents name: each exists."""

import re

import pytest

from tests.checks.sources import ROOT, modules

DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*.md"))]
NAME = re.compile(r"`([\w./-]+\.py)`")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_source_files_that_exist(document: str) -> None:
    """A name is a path, or the end of one."""
    named = set(NAME.findall((ROOT / document).read_text()))
    assert [name for name in sorted(named) if not any(f"/{file}".endswith(f"/{name}") for file in modules())] == []
