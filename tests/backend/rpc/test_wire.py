"""Frames: decoding returns what was encoded, in any pieces; and version 1 does not change."""

import json
from typing import Any
from zlib import crc32

import msgspec
import pytest

from backend import api
from backend.rpc import wire
from backend.rpc.handshake import Challenge, Goodbye, Hello, Proof, Welcome
from backend.stream_api import StreamError, StreamRefused
from tests.backend.rpc import stream_calls
from tests.backend.wired import FIXTURES

TARGET = api.Target(1 << 40, (1 << 62) + 3, 5)
ARN = "arn:aws:sqs:us-east-1:000000000000:queue"
TASK = api.MoveTask("task", "RUNNING", 1_700_000_000_000, 500, ARN, 10, 3, "why")
MESSAGE = api.NewMessage(b"\x00payload\xff", 7, "group ☃", b"t" * 16, b"a" * 16, b"r" * 32)
RECEIVED = api.ReceivedMessage(
    "id", "handle", b"\x00payload", 1 << 60, 3, 1_700_000_000_001, 1_700_000_000_000, "group ☃", ARN
)
PEEKED = api.Peeked("id", None, 8, api.PeekState.MOVING, 5, 6, 7, 8, "group", ARN)
SETTINGS = api.PartitionSettings(
    1 << 40, (1 << 62) + 3, 5, ARN, b"k" * 16, True, 345_600, 9, 20_000, 300, (1 << 61) + 1, 60
)

MEASURES = api.Measures(1 << 40, "queue", 1, 2, 3, 1 << 40, 5, 6, 7, 1 << 41, 9, 10, 11, 12, 13, None, 15)
PUBLICATION = api.Publication(
    b"\x00payload\xff",
    None,
    "group ☃",
    b"t" * 16,
    deliveries=[
        api.Delivery(TARGET, b"s" * 16, True, b"t" * 16, b"a" * 16),
        api.Delivery(api.Target(1 << 40, (1 << 62) + 3), b"u" * 16),
    ],
)
HANDOVER = api.Handover([api.TokenColumns(1 << 40, True, b"k" * 16, b"n" * 8, b"l" * 8, b"d" * 16)], 1 << 60)

CALLS: list[tuple[api.Command[Any], Any]] = [
    (api.Configure(SETTINGS), None),
    (api.Drop(TARGET), None),
    (api.Purge(TARGET, 7), None),
    (api.Send(TARGET, [MESSAGE, api.NewMessage(b"")]), [api.SendResult("id", 1 << 60), api.SendResult("id", 3, True)]),
    (api.Receive(TARGET, api.ReceiveOptions(10, 30, 20, api.DeadLetter(3, TARGET, True), "attempt")), [RECEIVED]),
    (api.Release(TARGET, ["one", "two"]), None),
    (api.Delete(TARGET, ["one"]), list(api.HandleOutcome)),
    (api.DeleteOnce(TARGET, ["one", "two"]), [True, False]),
    (api.ChangeVisibility(TARGET, [("one", 0), ("two", 43_200)]), [api.HandleOutcome.DONE]),
    (api.CountMessages(TARGET), api.Counters(1, 2, 3, 1 << 40)),
    (api.PeekMessages(TARGET, 100), [PEEKED]),
    (api.StartMove(TARGET, None, 0), TASK),
    (api.MoveMessages(TARGET, [1, 2], None), [1]),
    (api.ListMoves(TARGET), [TASK]),
    (api.CancelMove(TARGET, "task"), TASK),
    (api.AcceptTransfers(TARGET, 1 << 41, 7, [api.Transfer(8, b"\x00", 9, "group", b"i" * 16, ARN)]), [8]),
    (api.RejectTransfers(TARGET, 1 << 41, 7, [8, 9]), [9]),
    (api.Watch(TARGET, 19.5), True),
    (api.HandOverTokens(TARGET, 3, 15), HANDOVER),
    (api.PendingTokenSources(TARGET), [1 << 40]),
    (api.Retire(TARGET, 43_200), True),
    (api.Forget(TARGET), None),
    (api.QueueMeasures(TARGET), [MEASURES]),
    (api.AccountMeasures("000000000000", ["one", "two"], "after", 10), [MEASURES]),
    (api.AccountBytes("000000000000"), 1 << 40),
    (api.CountNotifications(TARGET, api.NotificationCounts(1, 1 << 40, 3, 4, 5, 6, 7, 8, 9, 10, 11)), None),
    (api.Publish(TARGET, [PUBLICATION, api.Publication(b"")]), [api.SendResult("id", 1 << 60)]),
    *stream_calls.CALLS,
]
"""Each command, with an answer."""
NAMES = [type(command).__name__ for command, _ in CALLS]

ERRORS: list[api.BackendError] = [
    api.NotOwner(7, "backend-2") if kind is api.NotOwner else kind(f"the text of {name}")
    for name, kind in sorted(vars(api).items())
    if isinstance(kind, type) and issubclass(kind, api.BackendError)
]
ERRORS.append(StreamRefused(StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER, "the text of StreamRefused"))


def samples() -> dict[str, bytes]:
    """Return every frame of the protocol, by name."""
    found = {
        "HELLO": wire.frame(wire.HELLO, 0, wire.encode(Hello(1, 1, b"c" * 32, "frontend-1"))),
        "CHALLENGE": wire.frame(wire.CHALLENGE, 0, wire.encode(Challenge(1, b"s" * 32, "backend-1"))),
        "PROOF": wire.frame(wire.PROOF, 0, wire.encode(Proof(b"p" * 32))),
        "WELCOME": wire.frame(wire.WELCOME, 0, wire.encode(Welcome(b"q" * 32, 1 << 26))),
        "GOODBYE": wire.frame(wire.GOODBYE, 0, wire.encode(Goodbye("why"))),
        "CANCEL": wire.frame(wire.CANCEL, 4_000_000_000),
        "CANCELLED": wire.frame(wire.CANCELLED, 4_000_000_000),
        "ALIVE": wire.frame(wire.ALIVE, 0),
        "DRAIN": wire.frame(wire.DRAIN, 0),
    }
    for command, answer in CALLS:
        name = type(command).__name__
        found[name] = wire.frame(command.KIND, 1, wire.encode_command(command))
        found[f"answer to {name}"] = wire.frame(wire.ANSWER, 1, wire.encode(answer))
        if isinstance(command, api.MessageCommand):
            traced = msgspec.structs.replace(command, trace=b"trace")
            found[f"traced {name}"] = wire.frame(command.KIND, 1, wire.encode_command(traced))
    for error in ERRORS:
        found[type(error).__name__] = wire.frame(wire.FAILED, 2, wire.encode_error(error))
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
    encoded = samples()
    for name, frozen in version_1().items():
        ((kind, call, before),) = whole(frozen)
        ((kind_now, call_now, now),) = whole(encoded[name])
        assert (kind_now, call_now, bool(now)) == (kind, call, bool(before)), name
        if before:
            assert goes_on(msgspec.msgpack.decode(now), msgspec.msgpack.decode(before)), name


def test_two_commands_of_one_kind_are_refused() -> None:
    class Resend:
        KIND = api.Send.KIND

    with pytest.raises(TypeError, match="Send and Resend have the same kind 35"):
        wire._by_kind([api.Send, Resend])  # type: ignore[list-item]


def test_every_command_has_a_frame() -> None:
    assert {type(command) for command, _ in CALLS} == set(wire.COMMANDS.values())
    assert len(wire.COMMANDS) == len(CALLS)


@pytest.mark.parametrize(("command", "answer"), CALLS, ids=NAMES)
def test_a_call_of_version_1_is_understood(command: api.Command[Any], answer: Any) -> None:
    name, frozen = type(command).__name__, version_1()
    ((kind, number, payload),) = whole(frozen[name])
    assert (wire.decode_command(kind, payload), number) == (command, 1)
    ((_, _, payload),) = whole(frozen[f"answer to {name}"])
    assert wire.decode_answer(kind, payload) == answer


@pytest.mark.parametrize("command", [command for command, _ in CALLS if isinstance(command, api.MessageCommand)])
def test_a_trace_header_is_ignored_by_servers_that_do_not_know_it(command: api.MessageCommand[Any]) -> None:
    encoded = wire.encode_command(msgspec.structs.replace(command, trace=b"trace"))
    later = wire.decode_command(command.KIND, memoryview(encoded))
    assert isinstance(later, api.MessageCommand)
    assert later.trace == b"trace"
    hints = [(name, Any) for name in command.__struct_fields__ if name != "trace"]
    former = msgspec.defstruct("Former", hints, array_like=True)
    before, now = (msgspec.msgpack.decode(each, type=former) for each in (wire.encode_command(command), encoded))
    assert now == before


@pytest.mark.parametrize(("command", "answer"), CALLS, ids=NAMES)
def test_a_later_version_may_append_members(command: api.Command[Any], answer: Any) -> None:
    plain = msgspec.msgpack.decode(wire.encode(command))
    if isinstance(plain[0], list):
        plain[0].append("unheard of")
    later = memoryview(wire.encode([*plain, "unheard of"]))
    assert wire.decode_command(command.KIND, later) == command


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_the_same_class_with_its_text(error: api.BackendError) -> None:
    arrived = wire.decode_error(memoryview(wire.encode_error(error)))
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.retryable, vars(arrived)) == (str(error), error.retryable, vars(error))


def test_a_refusal_with_an_unknown_error_arrives_as_an_error_of_the_backend() -> None:
    arrived = wire.decode_error(memoryview(wire.encode(["StreamRefused", "text", False, 0, None, 30_000])))
    assert (type(arrived), str(arrived), arrived.retryable) == (api.BackendError, "text", False)


def test_an_unknown_error_has_at_least_its_retryability() -> None:
    class Later(api.Unavailable):
        pass

    assert type(wire.decode_error(memoryview(wire.encode_error(Later("text"))))) is api.Unavailable
    for retryable in (True, False):
        arrived = wire.decode_error(memoryview(wire.encode(["Unheard", "text", retryable])))
        assert (type(arrived), str(arrived), arrived.retryable) == (api.BackendError, "text", retryable)
    assert api.BackendError.retryable is False


def test_frames_are_reassembled_from_any_pieces() -> None:
    encoded = list(samples().values())
    stream = b"".join(encoded)
    expected = [(kind, call, bytes(payload)) for data in encoded for kind, call, payload in whole(data)]
    for size in (1, 2, 3, 7, 13, 14, 64, 1000, len(stream)):
        frames, received = opened(), []
        for start in range(0, len(stream), size):
            received += [
                (kind, call, bytes(payload)) for kind, call, payload in frames.feed(stream[start : start + size])
            ]
        assert received == expected, f"in pieces of {size}"
        assert not frames.torn


def test_a_truncated_frame_is_not_decoded() -> None:
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
                received = opened().feed(bytes(changed))
            except wire.WireError:
                continue
            assert received == [], "a length that is too long waits for more"


def test_a_frame_longer_than_allowed_is_refused_by_its_head() -> None:
    frames = wire.Frames()
    frames.payload_bytes_max = 1000
    assert len(frames.feed(wire.frame(wire.ANSWER, 1, b"x" * 1000))) == 1
    with pytest.raises(wire.WireError, match="1001 bytes"):
        frames.feed(wire.frame(wire.ANSWER, 1, b"x" * 1001)[: wire.HEAD.size])


def test_a_frame_that_would_be_too_long_is_not_made() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return wire.FRAME_BYTES_MAX + 1

    with pytest.raises(wire.FrameTooLarge, match=str(wire.FRAME_BYTES_MAX)):
        wire.frame(wire.ANSWER, 1, Long())


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9])
def test_another_protocol_is_noticed_at_once(garbage: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.Frames().feed(garbage)


@pytest.mark.parametrize(
    "payload", [b"", b"\x90", b"\xc1", wire.encode([[1], "no list"]), wire.encode({"target": 1}), b"\xff" * 40]
)
def test_unreadable_frames_are_no_calls_and_no_answers(payload: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_command(api.Send.KIND, memoryview(payload))
    with pytest.raises(wire.WireError):
        wire.decode_answer(api.StartMove.KIND, memoryview(payload))
    with pytest.raises(wire.WireError):
        wire.decode_error(memoryview(payload))


def test_a_method_that_does_not_exist_is_no_call() -> None:
    with pytest.raises(wire.WireError, match="no method 250"):
        wire.decode_command(250, memoryview(wire.encode([])))


def test_the_header_has_the_documented_format() -> None:
    data = wire.frame(wire.ANSWER, 258, b"abc")
    assert data == crc32(data[4:]).to_bytes(4, "little") + b"\x03\0\0\0" + b"\x08" + b"\x02\x01\0\0" + b"abc"


def opened() -> wire.Frames:
    frames = wire.Frames()
    frames.payload_bytes_max = wire.FRAME_BYTES_MAX
    return frames


def whole(data: bytes) -> list[tuple[int, int, memoryview]]:
    return opened().feed(data)
