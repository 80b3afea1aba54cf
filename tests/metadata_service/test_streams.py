"""Names and ids of streams, and ids of consumer groups."""

import base64

import pytest

from metadata_service.models import CLUSTERS_MAX, cluster_of, partition_id
from metadata_service.streams import (
    GROUP_BIT,
    NewStream,
    check_stream_name,
    group_id,
    group_partition,
    is_group,
    stream_id_of,
    with_more_partitions,
)

ACCOUNT = "000000000000"


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "a" * 249, "__consumer_offsets"])
def test_names_of_kafka(name: str) -> None:
    assert check_stream_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "a:b", "ä", "a\n", "a\0"])
def test_other_names(name: str) -> None:
    with pytest.raises(ValueError, match="it has to be 1 to 249 letters"):
        check_stream_name(name)


def test_a_topic_id_names_its_stream_and_cannot_be_guessed() -> None:
    new = NewStream(ACCOUNT, "logs", {}, {}, 0)
    ids = [new.made(number, [1]).topic_id for number in range(1, 200)]
    assert [stream_id_of(topic_id) for topic_id in ids] == list(range(1, 200))
    assert len({topic_id[:8] for topic_id in ids}) == 199
    assert not any(base64.urlsafe_b64encode(topic_id).startswith(b"-") for topic_id in ids)
    assert [stream_id_of(other) for other in (b"", b"\xff" * 15, b"\xff" * 17)] == [0, 0, 0]


def test_partitions_are_added_behind_the_others() -> None:
    stream = NewStream(ACCOUNT, "logs", {}, {}, 0).made(1, [7, 3])
    grown = with_more_partitions(stream, [5])
    assert (grown.partition_ids, grown.partitions, stream.partitions) == ((7, 3, 5), 3, 2)


# --- consumer groups --------------------------------------------------------------------------------------


def test_ids_of_groups_never_change() -> None:
    """They are not stored: another function would lose all groups."""
    assert group_partition(ACCOUNT, "billing") == 0x4CB00023AB6D4CEF
    assert group_partition(ACCOUNT, "billing", 4095) == 0x4CB00023AB6D4CEF | 4095 << 40
    assert group_id(ACCOUNT, "billing") == 0x72C5E087F765766D


def test_no_group_has_the_id_of_a_queue_or_a_partition() -> None:
    highest = partition_id(CLUSTERS_MAX - 1, (1 << 40) - 1)
    for number in (1, highest, 1 << 60):
        assert not is_group(number)
    for name in ("", "a", "a/b", "ä", "x" * 1000):
        for cluster in (0, 1, CLUSTERS_MAX - 1):
            number = group_partition(ACCOUNT, name, cluster)
            assert is_group(number)
            assert is_group(group_id(ACCOUNT, name))
            assert highest < GROUP_BIT <= number < 1 << 63
            assert cluster_of(number) == cluster


def test_a_partitions_cluster_is_what_it_was() -> None:
    for cluster in (0, 1, 77, CLUSTERS_MAX - 1):
        assert cluster_of(partition_id(cluster, 1)) == cluster_of(partition_id(cluster, (1 << 40) - 1)) == cluster


def test_groups_differ_by_account_and_name() -> None:
    groups = [(account, f"g{number}") for account in (ACCOUNT, "111111111111") for number in range(20_000)]
    partitions = {group_partition(*group) for group in groups}
    assert len(partitions) == len({group_id(*group) for group in groups}) == len(groups)
    mixed = 0
    for number in partitions:
        mixed |= number
    assert mixed == GROUP_BIT | ((1 << 62) - 1) & ~((CLUSTERS_MAX - 1) << 40), "every bit of the hash is used"
