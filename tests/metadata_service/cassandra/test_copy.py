"""Combination of readings of the metadata into a copy, without a Cassandra."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from auth.credentials import AccessKey, ApiKey, Tenant
from auth.encryption.data_keys import DataKey
from auth.encryption.named_keys import NamedKey
from metadata_service.cassandra.copy import (
    BATCH_BYTES,
    MetadataCopy,
    Spaces,
    _batches,
    maps_are_settled,
    metadata_filling,
    put_together,
)
from metadata_service.cassandra.credentials import text
from metadata_service.models import Partition, Queue, new_queue

ONE, TWO = "000000000001", "000000000002"


class Uses:
    """Source of keys' times of use."""

    async def key_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        return {key_id: len(key_id) for key_id in key_ids}


def a_queue(number: int, account: str = ONE, **attributes: str) -> Queue:
    return new_queue(number, [number], account, f"queue-{number}", attributes, {}, 0)


def spaces_of(*queues: Queue, account: str = ONE) -> Spaces:
    rows = {"account": '{"queues":77,"floor":5}', "source/gone\0x": "{}", "held/other": "12"}
    return {f"queues/{account}": rows | {f"queue/{queue.name}": text(queue) for queue in queues}}


def a_tenant(account: str, state: Any = "active", **rows: str) -> Spaces:
    tenant = text(Tenant(account, "t", state))
    return {f"tenant/{account}": {"tenant": tenant, "role/r": "{}", "access_key/gone": "{}", **rows}}


def a_key(key_id: str, account: str) -> Spaces:
    key = AccessKey(access_key_id=key_id, secret="s", account=account, principal_id="p")
    return {f"access_key/{key_id}": {"key": text(key)}}


def test_no_batch_is_larger_than_cassandra_takes() -> None:
    rows = {f"{number:03d}": "x" * (number * 100 % 20_000) for number in range(500)}
    batches = list(_batches(rows))
    assert {key: record for batch in batches for key, record in batch.items()} == rows
    assert max(sum(map(len, batch.values())) for batch in batches if len(batch) > 1) <= BATCH_BYTES
    assert list(_batches({})) == [{}]


async def copied(first: Spaces, last: Spaces) -> MetadataCopy:
    return await put_together(Uses(), first, last)  # type: ignore[arg-type]  # nothing else is asked of the store


def test_maps_of_queues_are_compared() -> None:
    queue = a_queue(1)
    tagged = msgspec.structs.replace(queue, tags={"a": "b"}, version=2)
    split = msgspec.structs.replace(queue, partitions=(*queue.partitions, Partition(9, awaits=(1,))), map_version=2)
    draining = msgspec.structs.replace(queue, partitions=(Partition(1, state="draining"),))
    gone_and_made_anew = a_queue(1)
    for before, after, settled in (
        ([queue], [queue], True),
        ([queue], [tagged], True),
        ([queue], [split], False),
        ([split], [msgspec.structs.replace(split, partitions=(*queue.partitions, Partition(9)))], False),
        ([split], [split], True),
        ([queue], [draining], False),
        ([], [queue], True),
        ([], [split], False),
        ([], [draining], False),
        ([queue, a_queue(2)], [queue], True),
        ([msgspec.structs.replace(queue, queue_id=7)], [gone_and_made_anew], True),
        ([msgspec.structs.replace(queue, queue_id=7)], [draining], False),
    ):
        assert maps_are_settled(spaces_of(*before), spaces_of(*after)) is settled, (before, after)
    assert maps_are_settled({}, spaces_of(queue) | {"tenant/x": {"tenant": "{}"}})


async def test_what_refers_to_something_finds_it() -> None:
    """Queues and keys come from the first reading; tenants, data keys and counters from the last."""
    dead = '{"deadLetterTargetArn":"arn:dead"}'
    data_key = text(DataKey(ONE, 1, "master", b"wrapped"))
    versions = (DataKey(ONE, 2, "gone", b""), DataKey(ONE, 3, "named", b"wrapped"))
    named_key = text(NamedKey(ONE, "alias/k", versions, 5, version=1))
    api_key = ApiKey(key_id="API", digest=b"d", account=ONE, principal_id="p")
    first = {
        **spaces_of(a_queue(1, RedrivePolicy=dead), a_queue(2)),
        **a_tenant("never-seen-again"),
        **a_key("AKIA1", ONE),
        **a_key("AKIA2", TWO),
        **a_key("AKIA3", "nobody"),
        "api_key/API": {"key": text(api_key)},
        "counter/queue": {"next": "2"},
        "schema": {"version": "1"},
        "queue_changes": {"last": "1"},
        "log/7": {"entry": "{}"},
        "shards": {"version": "x"},
        "backend_clusters": {"cluster/local": "{}"},
    }
    last = {
        **spaces_of(a_queue(3)),
        **a_tenant(ONE, **{"named_key/alias/k": named_key}),
        **a_tenant(TWO, "deleted"),
        **a_key("AKIA4", ONE),
        f"data_keys/{ONE}": {"0000000001": data_key},
        "counter/queue": {"next": "4"},
    }
    copy = await copied(first | spaces_of(a_queue(8, TWO), account=TWO), last)
    assert [queue.queue_id for queue in copy.queues()] == [1, 2], "queues of a tenant that was deleted are gone"
    assert copy.spaces[f"queues/{ONE}"].keys() == {
        *("account", "queue/queue-1", "queue/queue-2", "held/other", "source/arn:dead\0queue-1")
    }
    assert copy.spaces[f"queues/{ONE}"]["account"] == '{"queues":2,"floor":5}'
    assert copy.spaces[f"tenant/{ONE}"].keys() == {
        *("tenant", "role/r", "named_key/alias/k", "access_key/AKIA1", "api_key/API")
    }
    assert {space for space in copy.spaces if "key/" in space} == {"access_key/AKIA1", "api_key/API"}
    assert copy.uses == {"AKIA1": 5, "API": 3}
    assert [key.key_id for key in copy.data_keys()] == [1]
    assert [key.versions for key in copy.named_keys()] == [versions]
    assert copy.master_ids() == ["master", "named"], "of a destroyed version nothing needs its master key"
    marks = {(space, key) for space, key, _, _ in metadata_filling(copy).marks}
    assert ("data_keys", ONE) in marks
    assert copy.spaces["counter/queue"] == {"next": "4"}
    assert copy.spaces.keys() & {"schema", "queue_changes", "log/7", "shards"} == set()
    assert "backend_clusters" in copy.spaces
    assert "tenant/never-seen-again" not in copy.spaces
