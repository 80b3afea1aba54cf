"""Single values that the behaviour tables do not reach: characters of bodies, payloads."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from frontend.queues import payload
from frontend.queues.payload import Payload
from frontend.sqs.protocol import validation

# --- bodies ------------------------------------------------------------------------------------------------


@given(st.text())
def test_characters_that_a_body_may_have(body: str) -> None:
    def allowed(letter: str) -> bool:
        code = ord(letter)
        return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF

    assert validation.has_invalid_characters(body.encode()) is not all(map(allowed, body))


# --- payloads ----------------------------------------------------------------------------------------------


def test_payloads_are_decoded_as_encoded() -> None:
    stored = Payload(
        payload.FORMAT,
        "body é\r\n",
        b"\x01" * 16,
        "sender",
        (("a", "String", "x"), ("b", "Binary", b"\xff")),
        b"\x02" * 16,
        "dedup",
        "Root=1",
    )
    assert payload.decode(payload.encode(stored)) == stored


def test_payloads_without_the_later_fields_can_be_read() -> None:
    old = msgspec.msgpack.encode([1, "body", b"\x01" * 16, "sender"])
    assert payload.decode(old) == Payload(1, "body", b"\x01" * 16, "sender")
