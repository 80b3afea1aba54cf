"""Trace headers, valid and malformed."""

from __future__ import annotations

import pytest

from telemetry.headers import RemoteSpan, for_messages, read, read_parent, read_state, read_xray, unpack

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
XRAY = b"Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"
OURS = RemoteSpan(0xABC, 0xDEF, True)


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (PARENT, True),
        (PARENT[:-1] + b"0", False),
        (PARENT[:-2] + b"ff", True),
        (PARENT[:-2] + b"fe", False),
        (b" " + PARENT + b"\t", True),
        (b"01" + PARENT[2:], True),
        (b"cc" + PARENT[2:] + b"-what-comes-later", True),
    ],
)
def test_a_parent(value: bytes, sampled: bool) -> None:
    assert read_parent(value) == RemoteSpan(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        PARENT[:-1],
        PARENT + b"0",
        PARENT + b"-",
        PARENT + b"-00",
        b"01" + PARENT[2:] + b".",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT.replace(b"4bf92f35", b"4bf92g35"),
        PARENT.replace(b"4bf92f3577b34da6a3ce929d0e0e4736", b"0" * 32),
        PARENT.replace(b"00f067aa0ba902b7", b"0" * 16),
        PARENT.replace(b"-", b"_"),
        PARENT + b"," + PARENT,
        b"0" * 100_000,
        b"\xff" * 55,
        "00-４bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".encode(),
    ],
)
def test_what_is_no_parent(value: bytes) -> None:
    assert read_parent(value) is None
    assert read({b"traceparent": value, b"tracestate": b"a=1"}) is None


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7", "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
        (b" a=1 ,\t, b=2,", "a=1,b=2"),
        (b"tenant@system=x", "tenant@system=x"),
        (b",".join(b"k%d=1" % number for number in range(32)), ",".join(f"k{number}=1" for number in range(32))),
        (b",".join(b"k%d=1" % number for number in range(33)), ""),
        (b"a=1,a=2", ""),
        (b"a=1,b", ""),
        (b"A=1", ""),
        (b"a=", ""),
        (b"a=b=c", ""),
        (b"a=\x00", ""),
        (b"a=\xff", ""),
        (b"a=" + b"x" * 254 + b",b=" + b"y" * 253, "a=" + "x" * 254 + ",b=" + "y" * 253),
        (b"a=" + b"x" * 254 + b",b=" + b"y" * 254, ""),
        (b"a=" + b"x" * 300, ""),
        (b",", ""),
    ],
)
def test_a_state_is_kept_or_left_out_as_a_whole(value: bytes, state: str) -> None:
    assert read_state(value) == state
    assert read({b"traceparent": PARENT, b"tracestate": value}) == RemoteSpan(TRACE, SPAN, True, state)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (XRAY, RemoteSpan(TRACE, SPAN, True)),
        (XRAY.replace(b"Sampled=1", b"Sampled=0"), RemoteSpan(TRACE, SPAN, False)),
        (XRAY.replace(b"Sampled=1", b"Sampled=?"), RemoteSpan(TRACE, SPAN, None)),
        (XRAY.replace(b";", b"; ") + b";Lineage=a:1", RemoteSpan(TRACE, SPAN, True)),
        (XRAY.replace(b";Parent=00f067aa0ba902b7", b""), None),
        (XRAY.replace(b"Root=1-", b"Root=2-"), None),
        (XRAY.replace(b"00f067aa0ba902b7", b"0" * 16), None),
        (XRAY.replace(b"4bf92f35-77b34da6a3ce929d0e0e4736", b"0" * 8 + b"-" + b"0" * 24), None),
        (XRAY + b";" * 500, None),
        (XRAY + b"\n", None),
        (b"", None),
        (b";=;==", None),
    ],
)
def test_x_ray(value: bytes, place: RemoteSpan | None) -> None:
    assert read_xray(value) == place
    assert read({b"x-amzn-trace-id": value}) == place


def test_of_both_w3c_goes_first_and_what_is_no_parent_is_not_there() -> None:
    other = XRAY.replace(b"00f067aa0ba902b7", b"00f067aa0ba902b8")
    assert read({b"traceparent": PARENT, b"x-amzn-trace-id": other}) == RemoteSpan(TRACE, SPAN, True)
    assert read({b"traceparent": b"?", b"x-amzn-trace-id": other}) == RemoteSpan(TRACE, SPAN + 1, True)
    assert read({b"tracestate": b"a=1"}) is None


@pytest.mark.parametrize("place", [OURS, RemoteSpan((1 << 128) - 1, (1 << 64) - 1, False, "a=1,b=2")])
def test_what_is_packed_is_unpacked(place: RemoteSpan) -> None:
    assert unpack(place.pack()) == place


@pytest.mark.parametrize("packed", [b"", b"x" * 24, bytes(25), b"\1" * 16 + bytes(9)])
def test_what_is_no_place_is_none(packed: bytes) -> None:
    assert unpack(packed) is None


def test_what_messages_carry() -> None:
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
