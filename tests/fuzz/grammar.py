"""Bad input, derived from the form of good input.

Every generator draws from a ``random.Random``, so that one grammar serves the long seeded runs and Hypothesis,
which passes its own Random and shrinks what it drew.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote_plus

from botocore.model import Shape

from tests.behaviour import wire
from tests.behaviour.cases import resolve
from tests.tables import beside

_T = TypeVar("_T")

ACTIONS: tuple[str, ...] = tuple(wire.model().operation_names)
COMMON: tuple[str, ...] = tuple(action for action in ACTIONS if action not in ("DeleteQueue", "PurgeQueue"))
"""Actions that leave data for other calls."""
HOT = ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibility")
DICTIONARY: dict[str, Any] = resolve(beside(__file__, "dictionary.yaml"), {})
TEMPLATES: dict[str, dict[str, list[Any]]] = DICTIONARY["templates"]


def in_bytes(name: str) -> tuple[bytes, ...]:
    """Return a list of the dictionary as bytes."""
    return tuple(text.encode("latin-1") for text in DICTIONARY[name])


TEXTS: list[str] = DICTIONARY["texts"]
ATTRIBUTES: list[str] = DICTIONARY["attributes"]
DATES: list[str] = DICTIONARY["dates"]
BYTES = in_bytes("bytes")


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
        value = self.template(("redrive_policy", "redrive_allow_policy", "policy", "policy")[kind - 1])
        if self.chance(30):
            del value[self.one(list(value))]
        if self.chance(20):
            value[self.text()] = self.anything()
        text = json.dumps(value)
        if self.chance(15):
            return self.broken(text.encode()).decode(errors="replace")
        return text

    def statement(self) -> dict[str, Any]:
        statement = self.template("statement")
        if self.chance(30):
            del statement[self.one(list(statement))]
        return statement

    def template(self, name: str) -> dict[str, Any]:
        """A map of the dictionary, with one of the options of each member."""
        return {member: self._option(options) for member, options in TEMPLATES[name].items()}

    def _option(self, options: Sequence[Any]) -> Any:
        value = self.one(options)
        if isinstance(value, list):
            return [self._option((inner,)) for inner in value]
        if isinstance(value, str) and value.startswith("$"):
            return getattr(self, value[1:])()
        return value

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
        items = list(self.template("presigned").items())
        if self.chance(30):
            del items[self.below(len(items))]
        if self.chance(20):
            items.append(self.one(items))
        query = "&".join(f"{name}={quote_plus(value)}" for name, value in items).encode()
        return self.broken(query) if self.chance(25) else query

    def date(self) -> str:
        return self.one((*DATES, self.text()))

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
