"""Records of streams and groups: their bytes never change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.api import AckLevel
from backend.engine import records as queue_records
from backend.engine.records import UnknownRecord
from backend.stream_api import CommittedOffset, GroupSettings, StreamSettings
from backend.streams import records
from backend.streams.records import GROUP_KINDS, STREAM_KINDS, StoredMember, decode_head, encode_head

TOPIC_ID = bytes(range(16))
MEMBER = StoredMember("m-1", "i-1", "c", "/127.0.0.1", 30_000, 60_000, (("range", b"\x00\x01"),), b"\x02")
SETTINGS = StreamSettings(
    7, 3, 2, "000000000000", "orders", TOPIC_ID, 4, 1000, 2000, False, True, 3000, 4000, AckLevel.ALL
)
FROZEN: dict[str, tuple[Any, str]] = {
    "StreamConfigured": (
        records.StreamConfigured(SETTINGS),
        (
            "919e070302ac303030303030303030303030a66f7264657273c4100001020304"
            "05060708090a0b0c0d0e0f04cd03e8cd07d0c2c3cd0bb8cd0fa001"
        ),
    ),
    "Batches": (records.Batches(5, 3, 2, 10, 12, 11, 1, 99, 4, 17, 300), "9b0503020a0c0b01630411cd012c"),
    "Bound": (records.Bound(2, 9, 500, 4096, 1), "950209cd01f4cd100001"),
    "Trimmed": (records.Trimmed(400), "91cd0190"),
    "StreamDropped": (records.StreamDropped(3), "9103"),
    "GroupConfigured": (
        records.GroupConfigured(GroupSettings(8, 5, 1, "000000000000", "billing")),
        ("919b080501ac303030303030303030303030a762696c6c696e67cd0bb8cd1770ce001b7740cd03e8ce240c8400cd1000"),
    ),
    "GenerationStarted": (
        records.GenerationStarted(3, "consumer", "range", "m-1", (MEMBER,)),
        (
            "9503a8636f6e73756d6572a572616e6765a36d2d319198a36d2d31a3692d31a1"
            "63aa2f3132372e302e302e31cd7530cdea609192a572616e6765c4020001c401"
            "02"
        ),
    ),
    "OffsetsCommitted": (
        records.OffsetsCommitted([(TOPIC_ID, "orders", [(4, CommittedOffset(70, 2, "note", 1000, 2000))])]),
        ("919193c410000102030405060708090a0b0c0d0e0fa66f7264657273919204954602a46e6f7465cd03e8cd07d0"),
    ),
    "OffsetsDeleted": (records.OffsetsDeleted([(TOPIC_ID, 4)]), "919192c410000102030405060708090a0b0c0d0e0f04"),
    "GroupDropped": (records.GroupDropped(5), "9105"),
}


@pytest.mark.parametrize("name", FROZEN)
def test_the_bytes_of_a_record_are_as_they_were(name: str) -> None:
    record, frozen = FROZEN[name]
    assert encode_head(record).hex() == frozen
    assert decode_head(record.KIND, bytes.fromhex(frozen)) == record
    assert type(record).__name__ == name


def test_every_kind_is_frozen_and_none_is_a_queues() -> None:
    kinds = [type(record).KIND for record, _ in FROZEN.values()]
    assert sorted(kinds) == [32, 33, 34, 35, 36, 48, 49, 50, 51, 52]
    assert all(kind in STREAM_KINDS or kind in GROUP_KINDS for kind in kinds)
    for kind in kinds:
        with pytest.raises(UnknownRecord):
            queue_records.decode_head(kind, b"\x90")


@pytest.mark.parametrize("name", FROZEN)
def test_a_later_version_may_append_members(name: str) -> None:
    record, _ = FROZEN[name]
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_head(record)), "new"])
    assert decode_head(record.KIND, longer) == record


def test_members_with_defaults_may_be_missing() -> None:
    assert decode_head(33, msgspec.msgpack.encode([5, 3, 2])) == records.Batches(5, 3, 2)


@pytest.mark.parametrize(("kind", "head"), [(40, b"\x90"), (33, b"\x90"), (33, b"\xc1"), (35, b"\x91\xa1x"), (1, b"")])
def test_an_unreadable_record_is_named(kind: int, head: bytes) -> None:
    with pytest.raises(UnknownRecord, match=f"kind {kind} with a head of {len(head)} bytes"):
        decode_head(kind, head)
