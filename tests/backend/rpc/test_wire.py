"""Frames: decoding returns what was encoded, in any pieces; and version 1 does not change."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import msgspec
import pytest

from backend import api
from backend.api import (
    BackendError,
    Counters,
    DeadLetter,
    HandleOutcome,
    Handover,
    Measures,
    MoveTask,
    NewMessage,
    NotOwner,
    PartitionSettings,
    Peeked,
    PeekState,
    Receive,
    ReceivedMessage,
    SendResult,
    Target,
    TokenColumns,
    Transfer,
    Unavailable,
)
from backend.rpc import wire
from backend.rpc.handshake import Challenge, Goodbye, Hello, Proof, Welcome
from backend.rpc.wire import (
    ANSWER,
    FAILED,
    FRAME_BYTES_MOST,
    HEAD,
    REQUESTS,
    Frames,
    FrameTooLarge,
    Request,
    WireError,
    decode_answer,
    decode_error,
    decode_request,
    encode,
    encode_error,
    frame,
)
from tests.backend.wired import FIXTURES

TARGET = Target(1 << 40, (1 << 62) + 3, 5)
ARN = "arn:aws:sqs:us-east-1:000000000000:queue"
TASK = MoveTask("task", "RUNNING", 1_700_000_000_000, 500, ARN, 10, 3, "why")
MESSAGE = NewMessage(b"\x00payload\xff", 7, "group ☃", b"t" * 16, b"a" * 16, b"r" * 32)
RECEIVED = ReceivedMessage(
    "id", "handle", b"\x00payload", 1 << 60, 3, 1_700_000_000_001, 1_700_000_000_000, "group ☃", ARN
)
PEEKED = Peeked("id", None, 8, PeekState.MOVING, 5, 6, 7, 8, "group", ARN)
SETTINGS = PartitionSettings(
    1 << 40, (1 << 62) + 3, 5, ARN, b"k" * 16, True, 345_600, 9, 20_000, 300, (1 << 61) + 1, 60
)

MEASURES = Measures(1 << 40, "queue", 1, 2, 3, 1 << 40, 5, 6, 7, 1 << 41, 9, 10, 11, 12, 13, None, 15)
HANDOVER = Handover([TokenColumns(1 << 40, True, b"k" * 16, b"n" * 8, b"l" * 8, b"d" * 16)], 1 << 60)

CALLS: dict[int, tuple[tuple[Any, ...], Any]] = {
    wire.Configure.KIND: ((SETTINGS,), None),
    wire.Drop.KIND: ((TARGET,), None),
    wire.Purge.KIND: ((TARGET, 7), None),
    wire.Send.KIND: ((TARGET, [MESSAGE, NewMessage(b"")]), [SendResult("id", 1 << 60), SendResult("id", 3, True)]),
    wire.ReceiveCall.KIND: ((TARGET, Receive(10, 30, 20, DeadLetter(3, TARGET, True), "attempt")), [RECEIVED]),
    wire.Release.KIND: ((TARGET, ["one", "two"]), None),
    wire.Delete.KIND: ((TARGET, ["one"]), list(HandleOutcome)),
    wire.ChangeVisibility.KIND: ((TARGET, [("one", 0), ("two", 43_200)]), [HandleOutcome.DONE]),
    wire.Count.KIND: ((TARGET,), Counters(1, 2, 3, 1 << 40)),
    wire.PeekMessages.KIND: ((TARGET, 100, 0), [PEEKED]),
    wire.StartMove.KIND: ((TARGET, None, 0, None), TASK),
    wire.ListMoves.KIND: ((TARGET,), [TASK]),
    wire.CancelMove.KIND: ((TARGET, "task"), TASK),
    wire.Take.KIND: ((TARGET, 1 << 41, 7, [Transfer(8, b"\x00", 9, "group", b"i" * 16, ARN)]), [8]),
    wire.Never.KIND: ((TARGET, 1 << 41, 7, [8, 9]), [9]),
    wire.Watch.KIND: ((TARGET, 19.5), True),
    wire.HandOver.KIND: ((TARGET, 3, 15), HANDOVER),
    wire.Awaited.KIND: ((TARGET,), [1 << 40]),
    wire.Retire.KIND: ((TARGET, 43_200), True),
    wire.Forget.KIND: ((TARGET,), None),
    wire.Measure.KIND: ((TARGET,), [MEASURES]),
    wire.MeasureAccount.KIND: (("000000000000", ["one", "two"], "after", 10), [MEASURES]),
    wire.StoredBytes.KIND: (("000000000000",), 1 << 40),
}
"""A call for each method, with its answer."""

ERRORS: list[BackendError] = [
    NotOwner(7, "backend-2") if kind is NotOwner else kind(f"the text of {name}")
    for name, kind in sorted(vars(api).items())
    if isinstance(kind, type) and issubclass(kind, BackendError)
]


def samples() -> dict[str, bytes]:
    """Return every frame of the protocol, by name."""
    found = {
        "HELLO": frame(wire.HELLO, 0, encode(Hello(1, 1, b"c" * 32, "frontend-1"))),
        "CHALLENGE": frame(wire.CHALLENGE, 0, encode(Challenge(1, b"s" * 32, "backend-1"))),
        "PROOF": frame(wire.PROOF, 0, encode(Proof(b"p" * 32))),
        "WELCOME": frame(wire.WELCOME, 0, encode(Welcome(b"q" * 32, 1 << 26))),
        "GOODBYE": frame(wire.GOODBYE, 0, encode(Goodbye("why"))),
        "CANCEL": frame(wire.CANCEL, 4_000_000_000),
        "CANCELLED": frame(wire.CANCELLED, 4_000_000_000),
        "ALIVE": frame(wire.ALIVE, 0),
        "DRAIN": frame(wire.DRAIN, 0),
    }
    for each in REQUESTS:
        arguments, answer = CALLS[each.KIND]
        found[each.method_name()] = frame(each.KIND, 1, encode(arguments))
        found[f"answer to {each.method_name()}"] = frame(ANSWER, 1, encode(answer))
    for error in ERRORS:
        found[type(error).__name__] = frame(FAILED, 2, encode_error(error))
    return found


def version_1() -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in json.loads((FIXTURES / "wire-1.json").read_text()).items()}


def goes_on(now: Any, before: Any) -> bool:
    """Return whether an encoding is unchanged, except for appended members."""
    if isinstance(now, list) and isinstance(before, list):
        return len(now) >= len(before) and all(map(goes_on, now, before))
    return type(now) is type(before) and bool(now == before)


def test_version_1_is_what_it_was() -> None:
    """If this fails, running programs of earlier versions are not understood: add a new version, keep the file."""
    said = samples()
    for name, frozen in version_1().items():
        ((kind, call, before),) = whole(frozen)
        ((kind_now, call_now, now),) = whole(said[name])
        assert (kind_now, call_now, bool(now)) == (kind, call, bool(before)), name
        if before:
            assert goes_on(msgspec.msgpack.decode(now), msgspec.msgpack.decode(before)), name


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.method_name())
def test_a_call_of_version_1_is_understood(kind: type[Request]) -> None:
    arguments, answer = CALLS[kind.KIND]
    frozen = version_1()
    ((method, number, payload),) = whole(frozen[kind.method_name()])
    request = decode_request(method, payload)
    assert (type(request), number) == (kind, 1)
    assert msgspec.structs.astuple(request) == arguments + left_out(kind, arguments)
    ((_, _, payload),) = whole(frozen[f"answer to {kind.method_name()}"])
    assert decode_answer(method, payload) == answer


def left_out(kind: type[Request], arguments: tuple[Any, ...]) -> tuple[None, ...]:
    """Return the further members of a call, with their defaults."""
    return (None,) * (len(kind.__struct_fields__) - len(arguments))


@pytest.mark.parametrize("kind", wire.TRACED, ids=lambda kind: kind.method_name())
def test_the_trace_of_a_call_is_passed_over_by_who_does_not_know_it(kind: type[Request]) -> None:
    arguments, _ = CALLS[kind.KIND]
    said = encode((*arguments, b"trace"))
    (trace,) = msgspec.structs.astuple(decode_request(kind.KIND, memoryview(said)))[len(arguments) :]
    assert trace == b"trace"
    hints = [(name, Any) for name in kind.__struct_fields__ if name != "trace"]
    former = msgspec.defstruct("Former", hints, array_like=True)
    before, now = (msgspec.msgpack.decode(each, type=former) for each in (encode(arguments), said))
    assert now == before


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.method_name())
def test_a_later_version_may_append_members(kind: type[Request]) -> None:
    arguments, _ = CALLS[kind.KIND]
    arguments += left_out(kind, arguments)
    plain = msgspec.msgpack.decode(encode(arguments))
    if isinstance(plain[0], list):
        plain[0].append("unheard of")
    later = memoryview(encode([*plain, "unheard of"]))
    assert msgspec.structs.astuple(decode_request(kind.KIND, later)) == arguments


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_the_same_class_with_its_text(error: BackendError) -> None:
    arrived = decode_error(memoryview(encode_error(error)))
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.retryable, vars(arrived)) == (str(error), error.retryable, vars(error))


def test_an_error_that_is_not_known_says_at_least_whether_to_try_again() -> None:
    class Later(Unavailable):
        pass

    assert type(decode_error(memoryview(encode_error(Later("text"))))) is Unavailable
    for retryable in (True, False):
        arrived = decode_error(memoryview(encode(["Unheard", "text", retryable])))
        assert (type(arrived), str(arrived), arrived.retryable) == (BackendError, "text", retryable)
    assert BackendError.retryable is False


def test_frames_come_out_whole_however_they_are_cut() -> None:
    said = list(samples().values())
    stream = b"".join(said)
    expected = [(kind, call, bytes(payload)) for data in said for kind, call, payload in whole(data)]
    for size in (1, 2, 3, 7, 13, 14, 64, 1000, len(stream)):
        frames, heard = opened(), []
        for start in range(0, len(stream), size):
            heard += [(kind, call, bytes(payload)) for kind, call, payload in frames.feed(stream[start : start + size])]
        assert heard == expected, f"in pieces of {size}"
        assert not frames.torn


def test_a_frame_that_is_cut_off_anywhere_says_nothing() -> None:
    data = samples()["Send"]
    for size in range(len(data)):
        frames = opened()
        assert frames.feed(data[:size]) == []
        assert frames.torn == bool(size)
        assert len(frames.feed(data[size:])) == 1


def test_no_bit_may_change() -> None:
    data = samples()["Delete"]
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            try:
                heard = opened().feed(bytes(changed))
            except WireError:
                continue
            assert heard == [], "a length that is too long waits for more"


def test_a_frame_longer_than_allowed_is_refused_by_its_head() -> None:
    frames = Frames()
    frames.most = 1000
    assert len(frames.feed(frame(ANSWER, 1, b"x" * 1000))) == 1
    with pytest.raises(WireError, match="1001 bytes"):
        frames.feed(frame(ANSWER, 1, b"x" * 1001)[: HEAD.size])


def test_a_frame_that_would_be_too_long_is_not_made() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return FRAME_BYTES_MOST + 1

    with pytest.raises(FrameTooLarge, match=str(FRAME_BYTES_MOST)):
        frame(ANSWER, 1, Long())


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9])
def test_another_protocol_is_noticed_at_once(garbage: bytes) -> None:
    with pytest.raises(WireError):
        Frames().feed(garbage)


@pytest.mark.parametrize(
    "payload", [b"", b"\x90", b"\xc1", encode([[1], "no list"]), encode({"target": 1}), b"\xff" * 40]
)
def test_what_cannot_be_read_is_no_call_and_no_answer(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(wire.Send.KIND, memoryview(payload))
    with pytest.raises(WireError):
        decode_answer(wire.StartMove.KIND, memoryview(payload))
    with pytest.raises(WireError):
        decode_error(memoryview(payload))


def test_a_method_that_does_not_exist_is_no_call() -> None:
    with pytest.raises(WireError, match="no method 250"):
        decode_request(250, memoryview(encode([])))


def test_the_head_is_what_the_documentation_says() -> None:
    data = frame(ANSWER, 258, b"abc")
    assert data == crc32(data[4:]).to_bytes(4, "little") + b"\x03\0\0\0" + b"\x08" + b"\x02\x01\0\0" + b"abc"


def opened() -> Frames:
    frames = Frames()
    frames.most = FRAME_BYTES_MOST
    return frames


def whole(data: bytes) -> list[tuple[int, int, memoryview]]:
    return opened().feed(data)
