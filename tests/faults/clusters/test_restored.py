"""Backup, loss and restore of two backend clusters under load, and the comparison of their messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import LocalCluster
from bench.servers.cassandra_server import CassandraCluster
from tests.faults.clusters.restored import MOVED_MESSAGES, Compared, KnownMessage, TwoClusters, compare

KNOWN = {
    "old": KnownMessage("q", started=0, sent=1, id="id-old"),
    "gone": KnownMessage("q", started=0, sent=1, id="id-gone", delete_begun=2, deleted=3),
    "perhaps": KnownMessage("q", started=0, sent=1, id="id-perhaps", delete_begun=11, deleted=12),
    "late": KnownMessage("q", started=21, sent=22, id="id-late"),
    "moved": KnownMessage("source", started=0, sent=1, id="id-moved"),
    "first": KnownMessage("f", "f g", 1, 0, 1, "id-first"),
    "second": KnownMessage("f", "f g", 2, 1, 2, "id-second"),
}
"""Messages around a backup from time 10 to 20."""
RESTORED = {
    "q": [("old", "id-old"), ("perhaps", "id-perhaps")],
    "target": [("moved", "another id")],
    "f": [("first", "id-first"), ("second", "id-second")],
}


def compared(**there: list[tuple[str, str]]) -> list[str]:
    """Return the broken promises if the restored service has these messages in these queues."""
    seen = Compared()
    compare(KNOWN, {**RESTORED, **there}, ("source", "target"), 10, 20, seen)
    assert (seen.had_to_be_there, seen.had_to_be_gone) == (4, 2)
    return seen.broken


@pytest.mark.parametrize(
    ("there", "broken"),
    [
        ({}, []),
        ({"q": [("old", "id-old")]}, []),
        ({"q": []}, ["id-old (old) of q was acknowledged before, and is lost"]),
        ({"target": []}, ["id-moved (moved) of source was acknowledged before, and is lost"]),
        (
            {"q": [("old", "id-old"), ("gone", "id-gone")]},
            ["id-gone (gone) of q was deleted before or sent after, and is there"],
        ),
        (
            {"q": [("old", "id-old"), ("late", "id-late")]},
            ["id-late (late) of q was deleted before or sent after, and is there"],
        ),
        ({"source": [("moved", "id-moved")]}, ["moved is there 2 times"]),
        ({"q": [("old", "no id")]}, ["old was acknowledged as id-old, and is no id"]),
        ({"q": [], "other": [("old", "id-old")]}, ["old of q is in other"]),
        ({"f": [("second", "id-second"), ("first", "id-first")]}, ["first of group f g is out of order"]),
    ],
)
def test_what_is_lost_or_back_is_noticed(there: dict[str, list[tuple[str, str]]], broken: list[str]) -> None:
    assert compared(**there) == broken


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_all_that_was_acknowledged_before_the_backup_is_there_and_nothing_that_was_deleted(
    tmp_path: Path, cassandra: CassandraCluster, keyspace: str
) -> None:
    made = LocalCluster(
        cassandra=cassandra, metadata=1, backends=1, frontends=1, redis=False, managers=1, keyspace=keyspace[:20]
    )
    made.add_backend("east")
    try:
        seen = await TwoClusters(made, tmp_path, 1).run()
    finally:
        made.close()
    assert seen.broken == []
    assert seen.had_to_be_there > MOVED_MESSAGES
    assert seen.had_to_be_gone > 100
