"""Trace headers, valid and malformed."""

import pytest

from telemetry.headers import RemoteSpan, for_messages, read, read_parent, read_state, read_xray, unpack
from tests.behaviour.cases import resolve
from tests.tables import beside

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
XRAY = b"Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"
OURS = RemoteSpan(0xABC, 0xDEF, True)


CASES = resolve(beside(__file__, "headers.yaml"), {})


@pytest.mark.parametrize(("text", "sampled"), CASES["traceparent"], ids=lambda value: ascii(value)[:60])
def test_a_traceparent_is_a_parent_or_none(text: str, sampled: bool | None) -> None:
    value = text.encode("latin-1")
    assert read_parent(value) == (None if sampled is None else RemoteSpan(TRACE, SPAN, sampled))
    if sampled is None:
        assert read({b"traceparent": value, b"tracestate": b"a=1"}) is None


@pytest.mark.parametrize(("text", "state"), CASES["tracestate"], ids=lambda value: ascii(value)[:60])
def test_a_state_is_kept_or_left_out_as_a_whole(text: str, state: str) -> None:
    value = text.encode("latin-1")
    assert read_state(value) == state
    assert read({b"traceparent": PARENT, b"tracestate": value}) == RemoteSpan(TRACE, SPAN, True, state)


@pytest.mark.parametrize(("text", "sampled"), CASES["x-ray"], ids=lambda value: ascii(value)[:60])
def test_an_x_ray_header_is_a_parent_or_none(text: str, sampled: bool | str | None) -> None:
    place = None if isinstance(sampled, str) else RemoteSpan(TRACE, SPAN, sampled)
    assert read_xray(text.encode("latin-1")) == place
    assert read({b"x-amzn-trace-id": text.encode("latin-1")}) == place


def test_a_traceparent_has_precedence_over_an_x_ray_header() -> None:
    other = XRAY.replace(b"00f067aa0ba902b7", b"00f067aa0ba902b8")
    assert read({b"traceparent": PARENT, b"x-amzn-trace-id": other}) == RemoteSpan(TRACE, SPAN, True)
    assert read({b"traceparent": b"?", b"x-amzn-trace-id": other}) == RemoteSpan(TRACE, SPAN + 1, True)
    assert read({b"tracestate": b"a=1"}) is None


@pytest.mark.parametrize("place", [OURS, RemoteSpan((1 << 128) - 1, (1 << 64) - 1, False, "a=1,b=2")])
def test_a_packed_span_is_unpacked(place: RemoteSpan) -> None:
    assert unpack(place.pack()) == place


@pytest.mark.parametrize("packed", [b"", b"x" * 24, bytes(25), b"\1" * 16 + bytes(9)])
def test_other_bytes_are_no_span(packed: bytes) -> None:
    assert unpack(packed) is None


def test_messages_carry_the_senders_trace() -> None:
    ours = "Root=1-00000000-000000000000000000000abc;Parent=0000000000000def;Sampled=1"
    assert for_messages({}, OURS) is None, "the sender has said nothing"
    assert for_messages({b"traceparent": PARENT}, OURS) == ours
    assert for_messages({b"traceparent": PARENT}, None) == XRAY.decode()
    assert for_messages({b"traceparent": PARENT[:-1] + b"0"}, None) == XRAY.decode()[:-1] + "0"
    assert for_messages({b"traceparent": b"00-0"}, OURS) is None
    given = b"Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Self=1-00-00"
    assert for_messages({b"x-amzn-trace-id": given, b"traceparent": PARENT}, OURS) == given.decode()
    assert for_messages({b"x-amzn-trace-id": b"Root=hello"}, OURS) is None
    assert for_messages({b"x-amzn-trace-id": given + b";" * 500}, OURS) is None
