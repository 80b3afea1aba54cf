"""Large inputs: units that were expensive for some parser, repeated within otherwise good input."""

import json
from typing import Any

from tests.fuzz.grammar import ACTIONS, ATTRIBUTES, DICTIONARY, Draws, in_bytes

JSON_UNITS, TEXT_UNITS, FORM_UNITS = map(in_bytes, ("json_units", "text_units", "form_units"))
PATTERN_UNITS = DICTIONARY["pattern_units"]


def repeated(unit: bytes, length: int) -> bytes:
    return unit * max(1, length // len(unit))


def json_body(draws: Draws, length: int) -> tuple[str, bytes]:
    """An action, and a body of about this length with one large part."""
    action = draws.one(("SendMessage", "SendMessage", "SendMessageBatch", draws.one(ACTIONS)))
    params: dict[str, Any] = {"QueueUrl": "q", "MessageBody": "x"}
    wide = draws.one((b"", b"", b"\\ud800", b"\xf0\x9f\x98\x80", b"\\ud83d\\ude00"))
    if draws.chance(50):
        member = draws.one(("MessageBody", "QueueUrl", "Z", "MessageGroupId", "ReceiptHandle", "Label", "Policy"))
        filling = b'"%b%b"' % (repeated(draws.one(TEXT_UNITS), length), wide)
        if draws.chance(20):
            filling = b'{"a":{"DataType":"Binary","BinaryValue":%b}}' % filling
            member = "MessageAttributes"
        if member == "Policy":
            member, filling = "Attributes", b'{"%b":%b}' % (draws.one((b"Policy", b"RedrivePolicy", b"x")), filling)
    elif draws.chance(70):
        member = draws.one(
            ("Z", "MessageBody", "Entries", "AttributeNames", "MessageAttributeNames", "TagKeys", "AWSAccountIds")
        )
        filling = b"[" + repeated(draws.one(JSON_UNITS), length)[:-1] + b"]"
    else:
        member = draws.one(("Z", "Attributes", "MessageAttributes", "Tags", "tags"))
        value = draws.one((b"0", b'""', b"{}", b'{"DataType":"String","StringValue":"x"}', b"null"))
        count = max(1, length // (len(value) + 10))
        filling = b"{" + b",".join(b'"%d":%b' % (number, value) for number in range(count)) + b"}"
    params.pop(member, None)
    if wide and member != "MessageBody":
        params["MessageBody"] = "\ud800" if wide == b"\\ud800" else "\U0001f600"
    head = json.dumps(params).encode()[:-1]
    return action, head + b',"%b":%b}' % (member.encode(), filling)


def form(draws: Draws, length: int) -> tuple[str, bytes]:
    """An action, and a form of about this length with one large parameter, or many."""
    action = draws.one(("SendMessage", "SendMessage", "SendMessageBatch", draws.one(ACTIONS)))
    head = f"Action={action}&Version=2012-11-05&QueueUrl=q&".encode()
    kind = draws.below(4)
    if kind == 0:
        count = min(draws.one((100, 1_190, 10_000)), max(1, length // 20))
        value = b"x" * max(0, length // count - 20)
        stem = draws.one((b"AttributeName.%d=%b", b"A%d=%b", b"SendMessageBatchRequestEntry.%d.MessageBody=%b"))
        return action, head + b"&".join(stem % (number, value) for number in range(count))
    name = draws.one((b"A", b"MessageBody", b"MessageAttribute.1.Value.BinaryValue", b"AttributeName.1", b"Version"))
    wide = draws.one((b"", b"", b"%F0%9F%98%80", b"\xf0\x9f\x98\x80"))
    if kind == 1:
        return action, head + repeated(draws.one(FORM_UNITS), length) + b"=x"
    return action, head + name + b"=" + repeated(draws.one(FORM_UNITS), length) + wide


def policy(draws: Draws, length: int) -> str:
    """A policy with many patterns, or long ones."""
    filling = draws.one(PATTERN_UNITS)
    one = filling * max(1, draws.one((1, 5, 100, 500, 2_000, length)) // len(filling))
    count = max(1, min(length, 8_000) // (len(one) + 3))
    patterns = [one + draws.one(("", "b", "b*", "*")) for _ in range(count)]
    operator = draws.one(("StringLike", "StringNotLike", "ForAnyValue:StringLike", "StringEqualsIgnoreCase", "ArnLike"))
    statement = {
        "Effect": draws.one(("Allow", "Deny")),
        "Principal": "*",
        "Action": draws.one(("sqs:*", ["sqs:" + one[:100]])),
        "Resource": draws.one(("*", [f"arn:aws:sqs:*:*:{pattern}" for pattern in patterns])),
        "Condition": {operator: {draws.one(("aws:UserAgent", "aws:Referer", "aws:x")): patterns}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": statement})


def answer(draws: Draws, length: int) -> dict[str, Any]:
    """Messages with large bodies, as in an answer to a receive."""
    units = ("&", "<", '"', "\r", "a", "\u00e9", "\U0001f600", "\t", "]]>", "\\")
    count = 1 + draws.below(10)
    body = draws.one(units)
    body *= max(1, min(1_048_576, length // count) // len(body.encode()))
    return {"Messages": [{"MessageId": "1", "Body": body, "Attributes": {"SenderId": "x"}}] * count}


def authorization(draws: Draws, length: int) -> dict[bytes, bytes]:
    """Headers of a signed request, up to the maximum size of a head."""
    length = min(length, HEAD_BYTES_MAX)
    unit = draws.one(("a", ",", ";", "=", "/", "a=,", "a;", " ", "%", ".", "\u00e9"))
    long = unit * (length // len(unit.encode()))
    names = ";".join(["host", *(f"{number:05}" for number in range(length // 6))])
    scope = "20270115/us-east-1/sqs/aws4_request"
    signature = "0" * 64
    text = draws.one(
        (
            long,
            f"AWS4-HMAC-SHA256 {long}",
            f"AWS4-HMAC-SHA256 Credential={long}, SignedHeaders=host, Signature={signature}",
            f"AWS4-HMAC-SHA256 Credential=a/{scope}, SignedHeaders={names}, Signature={signature}",
            f"AWS4-HMAC-SHA256 Credential=a/{scope}, SignedHeaders={long}, Signature={signature}",
            f"AWS4-HMAC-SHA256 Credential=a/{scope}, SignedHeaders=host, Signature={long}",
            "AWS4-HMAC-SHA256 " + ",".join(f"a{number}=" for number in range(length // 8)),
        )
    )
    headers = {b"host": b"localhost:9324", b"x-amz-date": b"20270115T080000Z", b"authorization": text.encode()}
    if draws.chance(30):
        headers[draws.one((b"x-amz-date", b"date", b"host", b"x-amz-security-token"))] = long.encode()
    return headers


def presigned(draws: Draws, length: int) -> bytes:
    """A query string of a signed request, up to the maximum size of a head."""
    length = min(length, HEAD_BYTES_MAX)
    name = draws.one((b"X-Amz-Credential", b"X-Amz-Date", b"X-Amz-SignedHeaders", b"X-Amz-Signature", b"a", b"Action"))
    query = draws.presigned() + b"&" + name + b"=" + repeated(draws.one(FORM_UNITS), length)
    if draws.chance(30):
        query += b"".join(b"&X-Amz-%d=%%41" % number for number in range(draws.one((500, 5_000))))
    return query[:length]


def tampered(draws: Draws, length: int) -> bytes:
    """Body of a request that is changed after signing."""
    return repeated(draws.one(FORM_UNITS + TEXT_UNITS), length)


def values(draws: Draws, length: int) -> dict[str, Any]:
    """Attributes of queues and messages, and an address, one of them large."""
    unit = draws.one(("a", "/", "9", "[", "[],", '"', ":", ".", "\u00e9", "\U0001f600", "-", "0.", "\\", "&"))
    long = draws.one(("", "arn:aws:sqs:us-east-1:000000000000:", "http://", '{"a":[', "1.")) + unit * (
        length // len(unit)
    )
    many = {str(number): "1" for number in range(length // 10)}
    binary = long.encode()
    kind = draws.below(5)
    return {
        "queue": many if kind == 0 else {draws.one(ATTRIBUTES): long} if kind < 3 else {},
        "message": {
            draws.one(("a", long if kind == 3 else "b")): {
                "DataType": draws.one(("String", "Number", "Binary", long if kind == 4 else "Number")),
                "StringValue": long,
                "BinaryValue": draws.one((b"", binary)),
            }
        },
        "url": long,
    }


def size(given: Any) -> int:
    """The length of an input, as bytes that a client sends."""
    match given:
        case bytes():
            return len(given)
        case str():
            return len(given.encode("utf-8", "surrogatepass"))
        case dict():
            return sum(size(name) + size(value) for name, value in given.items())
        case list() | tuple():
            return sum(map(size, given))
    return 1


HEAD_BYTES_MAX = 64 * 1024
SIZES: tuple[int, ...] = (20_000, 100_000, 1_000_000, 1_500_000, 3_000_000, 8_000_000)
"""Lengths of large inputs, in bytes."""
