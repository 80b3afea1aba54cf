"""The generator: its files are those of the table, and a wrong table is refused."""

from __future__ import annotations

import pytest

from frontend.kafka.protocol.generator import modules, table
from frontend.kafka.protocol.generator.__main__ import GENERATED
from frontend.kafka.protocol.generator.table import MalformedTable, VersionRange, layouts

TABLE = """
file sample
api Sample key 7 versions 1-6 flexible 5+
  request
    name      string?2+   1-4 = null
    items     Item[]      3+
      number  int32
      note    string      6+ tag 2 = "-"
  response
    code      int16
"""


def test_generated_files_are_those_of_the_table() -> None:
    written = modules.write(table.read())
    kept = {path.name: path.read_text() for path in GENERATED.glob("*.py")}
    assert kept == written, "run python -m frontend.kafka.protocol.generator"


def test_table_is_read() -> None:
    (api,) = table.read(TABLE)
    name, items = api.request.fields
    number, note = items.fields
    assert (api.name, api.key, api.versions, api.flexible_min, api.file) == ("Sample", 7, (1, 6), 5, "sample")
    assert (name.kind, name.versions, name.nullable, name.default) == ("string", (1, 4), (2, 4), "null")
    assert (items.kind, items.is_array, items.versions, items.tag) == ("SampleRequestItem", True, (3, 6), None)
    assert (number.kind, number.versions) == ("int32", (3, 6))
    assert (note.versions, note.tag, note.default) == ((6, 6), 2, '"-"')
    assert layouts(api.request) == [(1, 1), (2, 2), (3, 4), (5, 5), (6, 6)]
    assert layouts(api.response) == [VersionRange(1, 4), VersionRange(5, 6)]


@pytest.mark.parametrize("line", ["    name", "    name string 3", "name string", "api Sample key 7", "    a b c d"])
def test_wrong_lines_of_a_table_are_refused(line: str) -> None:
    with pytest.raises(MalformedTable, match="line 5"):
        table.read("file a\napi Sample key 7 versions 1-6\n  request\n\n" + line)
