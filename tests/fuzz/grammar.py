"""Bad input, derived from the form of good input.

Every generator draws from a ``random.Random``, so that one grammar serves the long seeded runs and Hypothesis,
which passes its own Random and shrinks what it drew.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote_plus

from botocore.model import Shape

from tests.behaviour import wire

_T = TypeVar("_T")

ACTIONS: tuple[str, ...] = tuple(wire.model().operation_names)
COMMON: tuple[str, ...] = tuple(action for action in ACTIONS if action not in ("DeleteQueue", "PurgeQueue"))
"""Actions that leave data for other calls."""
HOT = ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibility")
TEXTS: tuple[str, ...] = (
    "",
    " ",
    "x",
    "0",
    "-1",
    "1",
    "30",
    "43200",
    "9" * 30,
    "1e400",
    "true",
    "null",
    "All",
    ".*",
    "*",
    ".fifo",
    "q",
    "q.fifo",
    "d",
    "String",
    "Number",
    "Binary",
    "Number.int",
    "String.",
    "AWSTraceHeader",
    "aws.x",
    "..",
    "../../etc/passwd",
    "%00",
    "\x00",
    "\r\n",
    "\ud7ff\ue000\ufffd\U0010ffff",
    "\ufffe",
    "ünïcødé",
    "İıſK",
    "١٢٣",
    "<!DOCTYPE x [<!ENTITY a 'b'>]>&a;",
    "</Message>",
    "]]>",
    '{"a":1}',
    "{",
    "[" * 200,
    "a" * 81,
    "a" * 129,
    "a" * 300,
    "arn:aws:sqs:us-east-1:000000000000:q",
    "arn:aws:sqs:us-east-1:000000000000:d",
    "arn:aws:sqs::::",
    "http://localhost:9324/000000000000/q",
    "http://localhost:9324/000000000000/q.fifo",
    "https://sqs.us-east-1.amazonaws.com/000000000000/q",
    "//",
    "http://",
    "file:///etc/passwd",
    "AQEB" + "A" * 60,
)
BYTES: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"%",
    b"%zz",
    b"%C3",
    b"&",
    b"=",
    b"&&==",
    b";",
    b"+",
    b"\r\n",
    b'"',
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b"[",
    b"{",
    b"]",
    b"}",
    b",",
    b":",
    b"NaN",
    b"-",
    b"1e999",
    b"18446744073709551616",
    b".1",
    b".0",
    b".-1",
    b".99999999999",
    b"<",
    b"]]>",
)
ATTRIBUTES = (
    "DelaySeconds",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "ReceiveMessageWaitTimeSeconds",
    "VisibilityTimeout",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
    "Policy",
    "RedrivePolicy",
    "RedriveAllowPolicy",
    "HoldfastMaximumDelaySeconds",
    "HoldfastMaximumMessages",
    "HoldfastMaximumBytes",
    "HoldfastDeliveryGuarantee",
    "HoldfastAckLevel",
    "All",
    "QueueArn",
    "Nonsense",
)


class Draws:
    """Choices by one Random, cheap enough for a million inputs."""

    __slots__ = ("known", "random")

    def __init__(self, random: Random, known: Mapping[str, Sequence[str]] | None = None) -> None:
        self.random = random
        self.known = {} if known is None else known
        """Valid values in the service under test, by member name."""

    def one(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def below(self, bound: int) -> int:
        return self.random.randrange(bound)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def action(self) -> str:
        if self.chance(30):
            return self.one(HOT)
        return self.one(COMMON) if self.chance(98) else self.one(ACTIONS)

    # --- values ---

    def text(self) -> str:
        kind = self.below(10)
        if kind == 0 and self.known:
            return self.one(self.known[self.one(tuple(self.known))])
        if kind < 8:
            return self.one(TEXTS)
        if kind == 8:
            return "".join(
                chr(self.one((self.below(128), self.below(0xD800), 0x10000 + self.below(0x1000))))
                for _ in range(self.below(12))
            )
        return self.one(TEXTS) + self.one(TEXTS)

    def integer(self) -> int:
        kind = self.below(8)
        if kind < 5:
            return self.one((0, 0, 1, 1, 2, 5, 10, 20, 30, 43200, 900, -1, 11, 21, 43201, 901))
        if kind == 5:
            return self.below(1 << 70) - (1 << 69)
        return self.below(200) - 100

    def anything(self, depth: int = 3) -> Any:
        """A JSON value of any type."""
        kind = self.below(9 if depth else 7)
        if kind < 3:
            return self.text()
        if kind == 3:
            return self.integer()
        if kind == 4:
            return self.one((True, False, None))
        if kind == 5:
            return self.one((0.5, -0.0, 1e308, 1.0))
        if kind == 6:
            return self.one(([], {}))
        if kind == 7:
            return [self.anything(depth - 1) for _ in range(self.below(4))]
        return {self.text(): self.anything(depth - 1) for _ in range(self.below(4))}

    # --- parameters of an action ---

    def params(self, action: str) -> dict[str, Any]:
        """Parameters that mostly fit the model, with values that are often valid."""
        shape = wire.model().operation_model(action).input_shape
        params: dict[str, Any] = self._structure(shape, self.one((0, 0, 0, 12)))
        if self.chance(3):
            params[self.text()] = self.anything()
        return params

    def _shaped(self, shape: Shape, name: str, bad: int) -> Any:
        if bad and self.chance(bad):
            return self.anything()
        kind = shape.type_name
        if kind == "structure":
            return self._structure(shape, bad)
        if kind == "list":
            return [self._shaped(shape.member, name, bad) for _ in range(self.one((0, 1, 1, 1, 2, 3, 11)))]
        if kind == "map":
            count = self.one((0, 1, 1, 2, 11))
            return {self._key(name): self._mapped(shape.value, name, bad) for _ in range(count)}
        if kind in ("integer", "long"):
            return self.integer()
        if kind == "boolean":
            return self.chance(50)
        if kind == "blob":
            return base64.b64encode(self.text().encode()).decode()
        return self._named(name)

    def _structure(self, shape: Shape, bad: int) -> dict[str, Any]:
        required = shape.required_members
        return {
            name: self._shaped(member, name, bad)
            for name, member in shape.members.items()
            if (self.chance(97) if name in required else self.chance(35))
        }

    def _key(self, name: str) -> str:
        if name == "Attributes" and self.chance(85):
            return self.one(ATTRIBUTES)
        if name == "MessageSystemAttributes" and self.chance(80):
            return "AWSTraceHeader"
        return self.text()

    def _mapped(self, shape: Shape, name: str, bad: int) -> Any:
        if name == "Attributes" and self.chance(40):
            return self.policy_text()
        return self._shaped(shape, name, bad)

    def _named(self, name: str) -> str:
        """Text that is usually valid for a member of this name."""
        if self.chance(8):
            return self.text()
        if name in self.known:
            known = self.one(self.known[name])
            return self._tampered(known) if self.chance(15) else known
        if name == "DataType":
            return self.one(("String", "Number", "Binary", "String.x"))
        if name in ("Id", "Label", "QueueName", "QueueNamePrefix", "MessageGroupId", "MessageDeduplicationId"):
            return self.one(("a", "b", "q", "q.fifo", "g1", "x-1"))
        if name in ("AttributeNames", "MessageSystemAttributeNames", "MessageAttributeNames"):
            return self.one(("All", "SenderId", "*", "foo.*", "QueueArn", "Policy"))
        return self.one(("hello", "1", "12", "<&>", "x" * 100))

    def _tampered(self, token: str) -> str:
        """A changed token or handle, in part changed within its base64."""
        if self.chance(50):
            return self.broken(token.encode()).decode("utf-8", "replace")
        try:
            return base64.urlsafe_b64encode(self.broken(base64.urlsafe_b64decode(token))).decode()
        except ValueError:
            return token[::-1]

    # --- whole inputs ---

    def json_body(self, action: str) -> bytes:
        kind = self.below(20)
        if kind == 0:
            return self.one((b"[", b'{"a":', b"{" * 7)) * self.one((1, 100, 5000, 100_000))
        if kind == 1:
            return self.broken(json.dumps(self.anything()).encode())
        body = json.dumps(self.params(action), ensure_ascii=self.chance(50)).encode("utf-8", "surrogatepass")
        if kind < 5:
            return self.broken(body)
        return body

    def form(self, action: str) -> bytes:
        fields = wire.query_form(action, self.params(action))
        if self.chance(15):
            fields = [(self._field_name(name), value) for name, value in fields]
        if self.chance(10) and fields:
            fields += [self.one(fields) for _ in range(self.below(4))]
        pairs = [f"{quote_plus(name)}={quote_plus(value, errors='replace')}" for name, value in fields]
        if self.chance(8):
            pairs[-1 - self.below(max(1, len(pairs) - 2))] += self.one(
                ("%ff", "%ED%A0%80", "%C3", "%00", "%", "%zz", "+", "=")
            )
        body = "&".join(pairs).encode()
        if self.chance(15):
            return self.broken(body)
        return body

    def _field_name(self, name: str) -> str:
        if name in ("Action", "Version") or self.chance(60):
            return name
        kind = self.below(6)
        if kind == 0:
            return name + self.one((".1", ".x", ".", "..", ".1.1.1.1.1.1.1.1.1.1.1", ".Value", "." * 600))
        if kind == 1:
            return name.replace(
                ".1", self.one((".0", ".2", ".-1", ".01", ".1e1", ".999999", ".99999999999999999999", ".١", ""))
            )
        if kind == 2:
            return name.rpartition(".")[0]
        if kind == 3:
            return name.lower()
        return self.text()

    def policy_text(self) -> str:
        """JSON for Policy, RedrivePolicy or RedriveAllowPolicy."""
        kind = self.below(5)
        if kind == 0:
            return json.dumps(self.anything())
        value: dict[str, Any]
        if kind == 1:
            value = {
                "deadLetterTargetArn": self.text(),
                "maxReceiveCount": self.one((self.integer(), str(self.integer()), self.anything())),
            }
        elif kind == 2:
            value = {
                "redrivePermission": self.one(("allowAll", "denyAll", "byQueue", self.text(), self.anything())),
                "sourceQueueArns": self.one(([self.text()], [self.text() for _ in range(11)], self.anything())),
            }
        else:
            value = {
                "Version": "2012-10-17",
                "Id": self.anything(),
                "Statement": self.one((self._statement(), [self._statement(), self._statement()], self.anything())),
            }
        if self.chance(30):
            del value[self.one(list(value))]
        if self.chance(20):
            value[self.text()] = self.anything()
        text = json.dumps(value)
        if self.chance(15):
            return self.broken(text.encode()).decode(errors="replace")
        return text

    def _statement(self) -> dict[str, Any]:
        statement = {
            "Sid": self.anything(),
            "Effect": self.one(("Allow", "Deny", self.anything())),
            "Principal": self.one(("*", {"AWS": "000000000000"}, self.anything())),
            "Action": self.one(("sqs:*", ["sqs:SendMessage"], self.anything())),
            "Resource": self.one(("*", self.anything())),
            "Condition": self.anything(),
        }
        if self.chance(30):
            del statement[self.one(list(statement))]
        return statement

    def authorization(self) -> str:
        parts = [
            f"Credential={self.text()}/20270115/us-east-1/sqs/aws4_request"
            if self.chance(50)
            else "Credential=" + "/".join(self.text() for _ in range(self.below(7))),
            "SignedHeaders=" + self.one(("host", "host;x-amz-date", "x;host", "", ";", "host;host", self.text())),
            "Signature=" + self.one(("0" * 64, "f" * 64, "", "0" * 63, self.text())),
        ]
        if self.chance(20):
            del parts[self.below(3)]
        if self.chance(20):
            parts.append(self.one(parts) if parts else self.text())
        scheme = self.one(("AWS4-HMAC-SHA256",) * 8 + ("AWS4-HMAC-SHA512", "Basic", "", "Bearer", "AWS4-HMAC-SHA256  "))
        return (
            f"{scheme} {self.one((', ', ',', ' ', ' , '))}".rstrip(" ,") + " " + self.one((", ", ",", " ")).join(parts)
        )

    def presigned(self) -> bytes:
        fields = {
            "X-Amz-Algorithm": self.one(("AWS4-HMAC-SHA256",) * 6 + ("", self.text())),
            "X-Amz-Credential": self.one(("AKIDEXAMPLEEXAMPLE00/20270115/us-east-1/sqs/aws4_request", self.text())),
            "X-Amz-Date": self.date(),
            "X-Amz-Expires": self.one(("60", "604800", "604801", "0", "-1", "1.5", "", "١", self.text())),
            "X-Amz-SignedHeaders": self.one(("host", "host;x-amz-date", "", self.text())),
            "X-Amz-Signature": self.one(("0" * 64, self.text())),
        }
        items = list(fields.items())
        if self.chance(30):
            del items[self.below(len(items))]
        if self.chance(20):
            items.append(self.one(items))
        query = "&".join(f"{name}={quote_plus(value)}" for name, value in items).encode()
        return self.broken(query) if self.chance(25) else query

    def date(self) -> str:
        return self.one(
            (
                "20270115T080000Z",
                "20270115T080000Z",
                "00000000T000000Z",
                "00010101T000000Z",
                "99991231T235959Z",
                "20270230T250000Z",
                "20270115T080060Z",
                "20270115T080000",
                "Fri, 15 Jan 2027 08:00:00 GMT",
                "Fri, 99 Jan 99999 08:00:00 +9999",
                "Mon, 00 Foo 0 0:0",
                "1",
                self.text(),
            )
        )

    def respelled_path(self, path: bytes) -> bytes:
        """Another path, usually one that a client or a proxy may consider equal."""
        segments = path.split(b"/")
        at = 1 + self.below(len(segments) - 1)
        added = self.one(((b"",), (b".",), (b"x", b".."), (b"%2e",), (b"x",)))
        if self.chance(80):
            return b"/".join((*segments[:at], *added, *segments[at:]))
        return path + self.one((b"x", b"/", b"/.", b"//"))

    def broken(self, data: bytes) -> bytes:
        """The data with some bytes changed, doubled, lost or inserted."""
        for _ in range(self.one((1, 1, 1, 2, 5))):
            at = self.below(len(data) + 1)
            kind = self.below(6)
            if kind == 0:
                data = data[:at] + bytes((self.below(256),)) + data[at + 1 :]
            elif kind == 1:
                data = data[:at] + self.one(BYTES) + data[at:]
            elif kind == 2:
                data = data[:at] + data[at + self.one((1, 2, 16)) :]
            elif kind == 3:
                data = data[:at] + data[at : at + 20] * self.one((2, 3, 50)) + data[at + 20 :]
            elif kind == 4:
                data = data[:at]
            else:
                other = self.below(len(data) + 1)
                data = data[: min(at, other)] + data[max(at, other) :]
        return data
