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
    maps_are_unchanged,
    metadata_filling,
    put_together,
)
from metadata_service.cassandra.credentials import text
from metadata_service.models import NewQueue, Partition, Queue
from metadata_service.sqlite.copy import LOST_IDS, LOST_PRODUCER_IDS
from metadata_service.streams import NewStream
from metadata_service.topics import NewSubscription, NewTopic

ONE, TWO = "000000000001", "000000000002"


class Uses:
    """Store with a source of keys' times of use."""

    @property
    def credentials(self) -> Uses:
        return self

    async def key_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        return {key_id: len(key_id) for key_id in key_ids}


def a_queue(number: int, account: str = ONE, **attributes: str) -> Queue:
    return NewQueue(account, f"queue-{number}", attributes, {}, 0, 0).made(number, [number])


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
    split = msgspec.structs.replace(
        queue, partitions=(*queue.partitions, Partition(9, pending_token_sources=(1,))), map_version=2
    )
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
        assert maps_are_unchanged(spaces_of(*before), spaces_of(*after)) is settled, (before, after)
    assert maps_are_unchanged({}, spaces_of(queue) | {"tenant/x": {"tenant": "{}"}})


async def test_topics_are_copied_with_complete_subscriptions_only() -> None:
    new = NewTopic(ONE, "news", {"a": "b"}, {}, 0, {})
    queue, lone = new.hidden_queue.made(5, [7]), NewTopic(ONE, "lone", {}, {}, 0, {})
    topic = msgspec.structs.replace(new.made(queue), subscriptions=9, filter_policies=9, version=4)
    kept = NewSubscription(5, TWO, "sqs", "arn:q", {"FilterPolicy": "{}"}, 0).made(topic)
    left = msgspec.structs.replace(kept, topic_id=4, subscription_id=b"x" * 16)
    names = {
        "account": '{"queues":77,"floor":3}',
        "topics": "88",
        "queue/~news": text(queue),
        "topic/news": text(topic),
        "topic/lone": text(lone.made(lone.hidden_queue.made(6, [8]))),  # its queue was read before it was created
        f"subscription/{5:020d}/{kept.subscription_id.hex()}": text(kept),
        f"subscription/{4:020d}/{left.subscription_id.hex()}": text(left),
        f"endpoint/{4:020d}/x": "00",
    }
    half = NewTopic(ONE, "half", {}, {}, 0, {}).hidden_queue.made(9, [9])
    first = {f"queues/{ONE}": {**names, "queue/~half": text(half)}, **a_tenant(ONE)}
    copy = await copied(first, a_tenant(ONE))
    assert [one.name for one in copy.queues()] == ["~news"]
    assert copy.subscriptions() == [kept]
    rows = metadata_filling(copy).spaces[f"queues/{ONE}"]
    assert rows["account"] == '{"queues":0,"floor":3}'
    assert rows["topics"] == "1"
    assert rows["topic/news"] == text(msgspec.structs.replace(topic, subscriptions=1, filter_policies=1))
    (endpoint,) = [row for row in rows if row.startswith("endpoint/")]
    assert rows.keys() == {*("account", "topics", "queue/~news", "topic/news"), list(names)[5], endpoint}
    assert rows[endpoint] == kept.subscription_id.hex()
    marks = [mark for mark in metadata_filling(copy).marks if mark[0].startswith(("queue_ids/", "subscribers/"))]
    assert marks == [
        ("queue_ids/0", f"{5:020d}", f'["{ONE}","~news"]', 1),
        (f"subscribers/{TWO}", f"{ONE}/{5:020d}/{kept.subscription_id.hex()}", "news", 1),
    ]


async def test_subscriptions_are_copied_with_their_hidden_queues_only() -> None:
    new = NewTopic(ONE, "news", {}, {}, 0, {})
    queue = new.hidden_queue.made(5, [7])
    topic = new.made(queue)
    pushed = NewSubscription(5, ONE, "http", "http://e/", {}, 0, queue_attributes={"HoldfastPushUrl": "http://e/"})
    complete, without_queue, gone = (pushed.made(topic) for _ in range(3))
    rows = {"account": '{"queues":0,"floor":3}', "queue/~news": text(queue), "topic/news": text(topic)}
    for number, one in enumerate((complete, without_queue, gone)):
        if one is not gone:
            rows[f"subscription/{5:020d}/{one.subscription_id.hex()}"] = text(one)
        hidden = pushed.hidden_queue(one)
        assert hidden is not None
        if one is not without_queue:
            rows[f"queue/{hidden.name}"] = text(hidden.made(6 + number, [8 + number]))
    copy = await copied({f"queues/{ONE}": rows, **a_tenant(ONE)}, a_tenant(ONE))
    assert copy.subscriptions() == [complete]
    assert sorted(one.name for one in copy.queues()) == ["~news", complete.queue_name]
    filled = metadata_filling(copy)
    assert filled.spaces[f"queues/{ONE}"][f"push/{complete.queue_name}"] == "{}"
    assert ("push_accounts", ONE, "", 1) in filled.marks
    assert ("queue_ids/0", f"{6:020d}", f'["{ONE}","{complete.queue_name}"]', 1) in filled.marks


async def test_queues_that_push_are_found_in_a_copy() -> None:
    pushed = a_queue(1, HoldfastPushUrl="https://example.com/")
    spaces = spaces_of(pushed)
    (space,) = spaces
    account = space.removeprefix("queues/")
    copy = await copied(spaces | a_tenant(account), a_tenant(account))
    assert copy.spaces[space]["push/" + pushed.name] == "{}", "the row is computed from the queue"
    assert ("push_accounts", account, "", 1) in metadata_filling(copy).marks
    copy = await copied(spaces_of(a_queue(1)) | a_tenant(account), a_tenant(account))
    assert "push_accounts" not in {mark[0] for mark in metadata_filling(copy).marks}


async def test_streams_are_copied_with_their_numbers() -> None:
    streams = [
        NewStream(account, f"logs-{number}", {}, {}, 0).made(number, range(number * 10, number * 11))
        for number, account in enumerate((ONE, ONE, TWO), 1)
    ]
    first = {
        f"streams/{ONE}": {
            "account": '{"streams":77,"partitions":88,"floor":5}',
            "groups": "3",
            **{f"stream/{stream.name}": text(stream) for stream in streams[:2]},
        },
        f"streams/{TWO}": {f"stream/{streams[2].name}": text(streams[2])},
        **a_tenant(ONE),
    }
    last = {
        **a_tenant(ONE),
        **a_tenant(TWO, "deleted"),
        "counter/queue": {"next": "4"},
        "counter/producer": {"next": "1001"},
    }
    copy = await copied(first, last)
    assert copy.streams() == streams[:2], "streams of a tenant that was deleted are gone"
    filling = metadata_filling(copy)
    rows = filling.spaces[f"streams/{ONE}"]
    assert rows["account"] == '{"streams":2,"partitions":3,"floor":5}'
    assert rows.keys() == {"account", "groups", "stream/logs-1", "stream/logs-2"}
    assert f"streams/{TWO}" not in filling.spaces
    assert [mark for mark in filling.marks if mark[0].startswith("stream_ids/")] == [
        ("stream_ids/0", f"{number:020d}", f'["{ONE}","logs-{number}"]', 1) for number in (1, 2)
    ]
    assert filling.spaces["counter/queue"] == {"next": str(4 + LOST_IDS)}
    assert filling.spaces["counter/producer"] == {"next": str(1001 + LOST_PRODUCER_IDS)}


async def test_references_resolve() -> None:
    """Queues and keys are those of the first reading; tenants, data keys and counters those of the last."""
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
