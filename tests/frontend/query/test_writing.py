"""Results to XML."""

from frontend.query import writing
from frontend.query.shapes import BOOLEAN, STRING, ListOf, MapOf, structure

OUTPUT = structure(
    "Output",
    ("Topics", ListOf(structure("Topic", ("Arn", STRING)), "member")),
    ("Attributes", MapOf(STRING, "key", "value", "entry")),
    ("Flat", ListOf(STRING), "One"),
    ("Done", BOOLEAN),
)


def test_escapes_are_exact() -> None:
    assert writing.escape("a&b<c>d\"e\rf\ng\th'") == "a&amp;b&lt;c&gt;d&quot;e&#xD;f\ng\th'"
    assert writing.escape("a\x00b\x1fc\ufffe") == "a\ufffdb\ufffdc\ufffd"


def test_lists_and_maps_that_are_not_flattened_have_an_element_of_their_own() -> None:
    result = {"Topics": [{"Arn": "a"}, {}], "Attributes": {"k": "<"}, "Flat": ["x", "y"], "Done": True}
    assert writing.write_answer("urn:x", "List", OUTPUT, result, "id") == (
        b'<?xml version="1.0"?><ListResponse xmlns="urn:x"><ListResult>'
        b"<Topics><member><Arn>a</Arn></member><member/></Topics>"
        b"<Attributes><entry><key>k</key><value>&lt;</value></entry></Attributes>"
        b"<One>x</One><One>y</One><Done>true</Done></ListResult>"
        b"<ResponseMetadata><RequestId>id</RequestId></ResponseMetadata></ListResponse>"
    )
    assert b"<Topics></Topics><Attributes></Attributes>" in writing.write_answer(
        "urn:x", "List", OUTPUT, {"Topics": [], "Attributes": {}, "Flat": []}, "id"
    )
    assert b"Result" not in writing.write_answer("urn:x", "Delete", None, None, "id")


def test_errors() -> None:
    assert writing.write_error("urn:x", "Sender", "Code", "a & b", "<Detail/>", "id") == (
        b'<?xml version="1.0"?><ErrorResponse xmlns="urn:x"><Error><Type>Sender</Type><Code>Code</Code>'
        b"<Message>a &amp; b</Message><Detail/></Error><RequestId>id</RequestId></ErrorResponse>"
    )
