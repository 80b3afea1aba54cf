"""Parameters to members: lists and maps that are not flattened (those that are: tests/frontend/sqs/protocol)."""

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.query.parameters import read_parameters
from frontend.query.reading import QueryErrors, QueryReader
from frontend.query.shapes import BLOB, INTEGER, STRING, ListOf, MapOf, structure, wire_names
from tests.tables import table


class Refused(Exception):
    """A request is refused, by one of the four functions."""


READER = QueryReader(
    QueryErrors(
        lambda text: Refused("malformed", text),
        lambda value, where, reason: Refused("invalid", where, value),
        lambda where: Refused("not base64", where),
        lambda where: Refused("missing", where),
    )
)
INPUT = structure(
    "Input",
    ("Plain", STRING),
    ("Names", ListOf(STRING, "member")),
    ("Tags", ListOf(structure("Tag", ("Key", STRING), ("Value", STRING)), "member")),
    ("Attributes", MapOf(STRING, "key", "value", "entry")),
    ("Nested", MapOf(structure("Value", ("Bytes", BLOB), ("Count", INTEGER)), "Name", "Value", "entry")),
    ("Flat", ListOf(STRING)),
)


def members(form: str) -> dict[str, Any]:
    return READER.members(INPUT, read_parameters((form.encode(),), lambda text: Refused("malformed", text)))


@pytest.mark.parametrize(("form", "expected"), table(__file__, "members").items())
def test_members(form: str, expected: dict[str, Any]) -> None:
    assert members(form) == expected


@pytest.mark.parametrize(("form", "kind", "where"), table(__file__, "refused"))
def test_refused(form: str, kind: str, where: str) -> None:
    with pytest.raises(Refused) as caught:
        members(form)
    assert caught.value.args[0] == kind
    assert where in caught.value.args[1]


def test_names_of_parameters() -> None:
    names = [name for about in INPUT.members.values() for name in wire_names(about)]
    assert names == table(__file__, "names of parameters")


@given(st.data())
def test_no_parameters_make_anything_but_members_or_a_refusal(data: st.DataObject) -> None:
    parts = st.sampled_from([*INPUT.members, "member", "entry", "1", "2", "key", "value", "Name", "Value", "Key", ""])
    names = st.lists(parts, min_size=1, max_size=6).map(".".join)
    pairs = data.draw(st.lists(st.tuples(names, st.text(max_size=3)), max_size=6))
    try:
        found = members(urlencode(pairs))
    except Refused:
        return
    assert set(found) <= set(INPUT.members)
