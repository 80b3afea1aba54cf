"""Query parameters to members, results to XML, against an SDK from before the model dropped the Query names."""

from __future__ import annotations

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

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def read(action: str, **parameters: str) -> object:
    given = {name.replace("__", "."): value for name, value in parameters.items()}
    return read_form(action, given)


def read_form(action: str, parameters: dict[str, str]) -> dict[str, Any]:
    return query.read(action, query.read_parameters(urlencode(parameters).encode()))


def error_of(action: str, parameters: dict[str, str]) -> SqsError:
    with pytest.raises(SqsError) as caught:
        read_form(action, parameters)
    return caught.value


# --- requests ----------------------------------------------------------------------------------------------


def test_parameters_of_query_string_and_form() -> None:
    parameters = query.read_parameters(b"a=1&b=x%20y+z&&c", b"a=1&d=%E2%82%AC&=skipped")
    assert {name: parameters.get(name) for name in parameters} == {"a": "1", "b": "x y z", "c": "", "d": "€"}


def test_scalars() -> None:
    assert read("SendMessage", MessageBody="b", DelaySeconds="-5", Unknown="x", Action="SendMessage") == {
        "MessageBody": "b",
        "DelaySeconds": -5,
    }


def test_lists_are_numbered_in_any_order_with_gaps() -> None:
    parameters = {"AttributeName.10": "c", "AttributeName.2": "b", "AttributeName.1": "a"}
    assert read_form("GetQueueAttributes", parameters) == {"AttributeNames": ["a", "b", "c"]}


def test_a_list_of_one_without_a_number_and_an_empty_one() -> None:
    assert read("GetQueueAttributes", AttributeName="All") == {"AttributeNames": ["All"]}
    assert read("SendMessageBatch", Entries="") == {"Entries": []}


def test_maps() -> None:
    expected = {"Attributes": {"DelaySeconds": "5", "VisibilityTimeout": ""}}
    assert (
        read(
            "SetQueueAttributes",
            Attribute__1__Name="DelaySeconds",
            Attribute__1__Value="5",
            Attribute__2__Name="VisibilityTimeout",
            Attribute__2__Value="",
        )
        == expected
    )
    assert read("SetQueueAttributes", Attribute__Name="Policy", Attribute__Value="x") == {"Attributes": {"Policy": "x"}}
    assert read("CreateQueue", Tag__1__Key="k", Tag__1__Value="v") == {"tags": {"k": "v"}}


def test_batch_entries_with_attributes() -> None:
    entry = "SendMessageBatchRequestEntry.1"
    members = read_form(
        "SendMessageBatch",
        {
            f"{entry}.Id": "one",
            f"{entry}.MessageBody": "b",
            f"{entry}.DelaySeconds": "1",
            f"{entry}.MessageAttribute.1.Name": "text",
            f"{entry}.MessageAttribute.1.Value.DataType": "String",
            f"{entry}.MessageAttribute.1.Value.StringValue": "v",
            f"{entry}.MessageAttribute.2.Name": "bytes",
            f"{entry}.MessageAttribute.2.Value.DataType": "Binary",
            f"{entry}.MessageAttribute.2.Value.BinaryValue": "AP8=",
            f"{entry}.MessageSystemAttribute.1.Name": "AWSTraceHeader",
            f"{entry}.MessageSystemAttribute.1.Value.DataType": "String",
            f"{entry}.MessageSystemAttribute.1.Value.StringValue": "Root=1",
        },
    )
    assert members == {
        "Entries": [
            {
                "Id": "one",
                "MessageBody": "b",
                "DelaySeconds": 1,
                "MessageAttributes": {
                    "text": {"DataType": "String", "StringValue": "v"},
                    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
                },
                "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
            }
        ]
    }


@pytest.mark.parametrize(
    ("action", "parameters", "code"),
    [
        ("SendMessage", {"DelaySeconds": "five"}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": ""}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": "1_0"}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": "٣"}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": "9" * 30}, "InvalidParameterValue"),
        ("SendMessage", {"MessageBody.1": "x"}, "MalformedInput"),
        ("SendMessage", {"MessageBody": "x", "MessageBody.1": "x"}, "MalformedInput"),
        ("SendMessage", {"MessageBody.1": "x", "MessageBody": "x"}, "MalformedInput"),
        ("GetQueueAttributes", {"AttributeName.x": "All"}, "MalformedInput"),
        ("GetQueueAttributes", {"AttributeName.1.x": "All"}, "MalformedInput"),
        ("GetQueueAttributes", {"AttributeName." + "9" * 300: "All"}, "MalformedInput"),
        ("GetQueueAttributes", {"AttributeName." + "1." * 20 + "1": "All"}, "MalformedInput"),
        ("SendMessageBatch", {"SendMessageBatchRequestEntry.1": "x"}, "MalformedInput"),
        ("TagQueue", {"Tag.1.Key": "k"}, "MissingParameter"),
        ("TagQueue", {"Tag.1.Value": "v"}, "MissingParameter"),
        ("TagQueue", {"Tag.1.Key.1": "k", "Tag.1.Value": "v"}, "MalformedInput"),
        ("TagQueue", {"Tag.1": "k"}, "MalformedInput"),
        (
            "TagQueue",
            {"Tag.1.Key": "k", "Tag.1.Value": "v", "Tag.2.Key": "k", "Tag.2.Value": "w"},
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            {"MessageAttribute.1.Name": "a", "MessageAttribute.1.Value.BinaryValue": "%%"},
            "InvalidParameterValue",
        ),
    ],
)
def test_what_does_not_fit_the_model(action: str, parameters: dict[str, str], code: str) -> None:
    assert error_of(action, parameters).kind.query_code == code


def test_invalid_utf8_and_too_many_parameters() -> None:
    for source in (
        b"a=1&a=2",
        b"a=%ff",
        b"%ff=a",
        b"a=\xff",
        b"a=%",
        b"a=%zz",
        b"a=" + b"x" * 10_000 + b"\xff",
        b"n" * 10_000 + b"=a",
        b"&".join([b"a=1"] * 6000),
    ):
        with pytest.raises(SqsError) as caught:
            query.read_parameters(source).get("a")
        assert caught.value.kind.query_code == "MalformedInput"


def test_values_that_nobody_asks_for_are_not_decoded() -> None:
    parameters = query.read_parameters(b"a=%ff&b=1")
    assert query.read("SendMessage", parameters) == {}
    assert parameters.get("b") == "1"


def test_long_values() -> None:
    text = "x" * 100_000 + "\U0001f600"
    for value in (text.encode(), urlencode({"": text}).encode()[1:], text.encode() + b"+%2B"):
        expected = text + (" +" if value.endswith(b"+%2B") else "")
        assert query.read_parameters(b"a=" + value + b"&b=1").get("a") == expected


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("SendMessage", "InvalidParameterValue"),
        ("SendMessageBatch", "AWS.SimpleQueueService.BatchRequestTooLong"),
        ("ListQueues", "RequestEntityTooLarge"),
    ],
)
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


def test_an_answer_without_a_result() -> None:
    document = parse(query.write(ACTIONS["DeleteQueue"], None, "id-1"))
    assert document.tag == NAMESPACE + "DeleteQueueResponse"
    assert [child.tag for child in document] == [NAMESPACE + "ResponseMetadata"]
    assert document[0][0].text == "id-1"


def test_an_empty_result() -> None:
    assert b"<ReceiveMessageResult/>" in query.write(ACTIONS["ReceiveMessage"], None, "id")
    assert b"<ListQueuesResult/>" in query.write(ACTIONS["ListQueues"], {}, "id")


def test_a_message_with_everything() -> None:
    body = 'a<b>&"c"\r\n\t\r😀'
    message = {
        "MessageId": "m",
        "Body": body,
        "Attributes": {"SenderId": "s", "SentTimestamp": "1"},
        "MessageAttributes": {
            "n": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            "t": {"DataType": "String", "StringValue": "v"},
        },
    }
    document = parse(query.write(ACTIONS["ReceiveMessage"], {"Messages": [message, message]}, "id"))
    found = document.findall(f"{NAMESPACE}ReceiveMessageResult/{NAMESPACE}Message")
    assert len(found) == 2
    assert found[0].findtext(f"{NAMESPACE}Body") == body
    attributes = [[child.text for child in item] for item in found[0].findall(f"{NAMESPACE}Attribute")]
    assert attributes == [["SenderId", "s"], ["SentTimestamp", "1"]]
    value = found[0].find(f"{NAMESPACE}MessageAttribute/{NAMESPACE}Value/{NAMESPACE}BinaryValue")
    assert value is not None
    assert value.text == "AP8="


def test_escapes_are_exact() -> None:
    assert query.escape("a&b<c>d\"e\rf\ng\th'") == "a&amp;b&lt;c&gt;d&quot;e&#xD;f\ng\th'"
    assert query.escape("a\x00b\x1fc\ufffe") == "a\ufffdb\ufffdc\ufffd"


@given(st.text())
def test_any_text_makes_a_well_formed_document(text: str) -> None:
    document = query.write(ACTIONS["GetQueueUrl"], {"QueueUrl": text}, "id")
    found = parse(document).findtext(f"{NAMESPACE}GetQueueUrlResult/{NAMESPACE}QueueUrl")
    assert (found or "") == re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    parse(query.write_error(SqsError(QUEUE_DOES_NOT_EXIST, text), "id"))


def test_numbers_and_booleans() -> None:
    failed = {"Failed": [{"Id": "1", "SenderFault": True, "Code": "c"}]}
    assert b"<SenderFault>true</SenderFault>" in query.write(ACTIONS["SendMessageBatch"], failed, "id")
    moved = {"ApproximateNumberOfMessagesMoved": 0}
    document = query.write(ACTIONS["CancelMessageMoveTask"], moved, "id")
    assert b"<ApproximateNumberOfMessagesMoved>0</ApproximateNumberOfMessagesMoved>" in document


def test_errors() -> None:
    assert query.write_error(SqsError(QUEUE_DOES_NOT_EXIST), "id-1") == (
        b'<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        b"<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>"
        b"<Message>The specified queue does not exist for this wsdl version.</Message><Detail/></Error>"
        b"<RequestId>id-1</RequestId></ErrorResponse>"
    )
    assert b"<Type>Receiver</Type>" in query.write_error(SqsError(SERVICE_UNAVAILABLE), "id")


def test_answers_as_json() -> None:
    answer = orjson.loads(query.write_as_json(ACTIONS["ListQueues"], {"QueueUrls": ["u"]}, "id"))
    assert answer == {
        "ListQueuesResponse": {
            "ListQueuesResult": {"queueUrls": ["u"], "NextToken": None},
            "ResponseMetadata": {"RequestId": "id"},
        }
    }
    answer = orjson.loads(
        query.write_as_json(
            ACTIONS["ReceiveMessage"],
            {"Messages": [{"Body": "b", "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": b"\xff"}}}]},
            "id",
        )
    )
    message = answer["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0]
    assert message["Body"] == "b"
    assert message["Attributes"] is None
    assert message["MessageAttributes"][0]["Name"] == "a"
    assert message["MessageAttributes"][0]["Value"]["BinaryValue"] == "/w=="
    assert orjson.loads(query.write_error_as_json(SqsError(QUEUE_DOES_NOT_EXIST), "id")) == {
        "Error": {
            "Code": "AWS.SimpleQueueService.NonExistentQueue",
            "Message": "The specified queue does not exist for this wsdl version.",
            "Type": "Sender",
        },
        "RequestId": "id",
    }
