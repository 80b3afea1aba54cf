"""Query parameters to members, results to XML, against an SDK from before the model dropped the Query names."""

import re
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.sqs.protocol import query
from frontend.sqs.protocol.errors import QUEUE_DOES_NOT_EXIST, SERVICE_UNAVAILABLE, SqsError
from frontend.sqs.protocol.model import ACTIONS
from tests.behaviour.cases import resolve
from tests.behaviour.match import differences
from tests.tables import table

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


# --- requests ----------------------------------------------------------------------------------------------


def test_parameters_of_query_string_and_form() -> None:
    parameters = query.read_parameters(b"a=1&b=x%20y+z&&c", b"a=1&d=%E2%82%AC&=skipped")
    assert {name: parameters.get(name) for name in parameters} == {"a": "1", "b": "x y z", "c": "", "d": "€"}


@pytest.mark.parametrize(("action", "form", "members"), table(__file__, "members of forms"))
def test_members_of_forms(action: str, form: str, members: dict[str, Any]) -> None:
    assert query.read(action, query.read_parameters(f"Action={action}&{form}".encode())) == members


def test_invalid_utf8_and_too_many_parameters() -> None:
    for text in resolve(table(__file__, "malformed parameters"), {}):
        source = text.encode("latin-1")
        with pytest.raises(SqsError) as caught:
            query.read_parameters(source).get("a")
        assert caught.value.kind.query_code == "MalformedInput"


def test_values_that_are_not_needed_are_not_decoded() -> None:
    parameters = query.read_parameters(b"a=%ff&b=1")
    assert query.read("SendMessage", parameters) == {}
    assert parameters.get("b") == "1"


def test_long_values() -> None:
    text = "x" * 100_000 + "\U0001f600"
    for value in (text.encode(), urlencode({"": text}).encode()[1:], text.encode() + b"+%2B"):
        expected = text + (" +" if value.endswith(b"+%2B") else "")
        assert query.read_parameters(b"a=" + value + b"&b=1").get("a") == expected


@pytest.mark.parametrize(("action", "code"), table(__file__, "too much content").items())
def test_more_content_than_any_valid_request_has(action: str, code: str) -> None:
    form = b"MessageBody=" + b"x" * 1_000_000
    assert query.read("SendMessage", query.read_parameters(form))
    with pytest.raises(SqsError) as caught:
        query.read(action, query.read_parameters(form + b"x" * 1_000_000))
    assert caught.value.kind.query_code == code
    escaped = b"MessageBody=" + b"%41" * 1_048_576
    assert query.read("SendMessage", query.read_parameters(escaped)) == {"MessageBody": "A" * 1_048_576}


def outcome(action: str, form: bytes) -> dict[str, Any] | int:
    """The members, or the status of the error."""
    try:
        return query.read(action, query.read_parameters(form))
    except SqsError as error:
        return error.kind.status


@given(st.sampled_from(sorted(ACTIONS)), st.data())
def test_no_parameters_make_anything_but_members_or_an_error(action: str, data: st.DataObject) -> None:
    wires = sorted({member.wire for member in ACTIONS[action].input.members.values()})
    parts = st.sampled_from([*wires, "1", "2", "Name", "Value", "Key", "Id", "x", ""])
    names = st.lists(parts, min_size=1, max_size=5).map(".".join)
    pairs = data.draw(st.lists(st.tuples(names, st.text(max_size=5)), max_size=6))
    result = outcome(action, urlencode(pairs).encode())
    assert isinstance(result, dict) or result == 400


# --- answers -----------------------------------------------------------------------------------------------


def parse(document: bytes) -> ET.Element:
    return ET.fromstring(document)


@given(st.text())
def test_any_text_makes_a_well_formed_document(text: str) -> None:
    document = query.write(ACTIONS["GetQueueUrl"], {"QueueUrl": text}, "id")
    found = parse(document).findtext(f"{NAMESPACE}GetQueueUrlResult/{NAMESPACE}QueueUrl")
    assert (found or "") == re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    parse(query.write_error(SqsError(QUEUE_DOES_NOT_EXIST, text), "id"))


def test_errors() -> None:
    assert query.write_error(SqsError(QUEUE_DOES_NOT_EXIST), "id-1") == (
        b'<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        b"<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>"
        b"<Message>The specified queue does not exist for this wsdl version.</Message><Detail/></Error>"
        b"<RequestId>id-1</RequestId></ErrorResponse>"
    )
    assert b"<Type>Receiver</Type>" in query.write_error(SqsError(SERVICE_UNAVAILABLE), "id")


@pytest.mark.parametrize("row", table(__file__, "answers as json"), ids=lambda row: row["action"])
def test_answers_as_json(row: dict[str, Any]) -> None:
    answer = orjson.loads(query.write_as_json(ACTIONS[row["action"]], resolve(row["answer"], {}), "id"))
    assert not differences(row["json"], answer)


def test_errors_as_json() -> None:
    answer = orjson.loads(query.write_error_as_json(SqsError(QUEUE_DOES_NOT_EXIST), "id"))
    assert answer == table(__file__, "error as json")
