"""Topics in Cassandra: the :class:`~metadata_service.store.TopicStore` part of the store.

Topics and subscriptions are rows of the space of their account's queues, so a topic and its hidden queue are created
and deleted in one transaction, and a subscription changes together with the counts in its topic's row.  A topic is
found by its id through the mark of its hidden queue's id.

Rows of subscriptions may be deleted, although no row is written with them that is never deleted: each transaction that
creates one is conditional on the ``change`` of the topic's row, which never recurs.

The hidden queue of a subscription is created and deleted in one transaction with it.

The rows of a deleted topic's subscriptions are removed after it, in several transactions; meanwhile nothing finds them
but their hidden queues, which get no more messages.  The mark of the topic's own hidden queue's id is removed last, so
that the collector finishes a removal that was interrupted.

Marks list the subscriptions of an account, to topics of all accounts: each is written before its subscription and
removed after it, and readers skip those that lead to none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256

import msgspec

from metadata_service.cassandra.changes import CassandraChanges
from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.records import BEYOND, Records, VersionedRecord, Writes, after, gather
from metadata_service.cassandra.places import ID_COUNTER, BelowFloor, IdPlace, IdPlaces
from metadata_service.cassandra.queues import (
    IDS,
    account_row,
    index_rows,
    mark_push,
    names_space,
    partition_ids_in,
    queue_row,
    queues_in,
)
from metadata_service.models import NewQueue, Queue
from metadata_service.store import (
    ConditionFailed,
    StoreError,
    StoreUnavailable,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManyFilterPolicies,
    TooManyPushedSubscriptions,
    TooManySubscriptions,
    TooManyTopics,
    TopicExists,
    TopicNotFound,
)
from metadata_service.topics import (
    HIDDEN_PREFIX,
    SUBSCRIPTION_PREFIX,
    NewSubscription,
    NewTopic,
    Subscription,
    SubscriptionChange,
    SubscriptionPage,
    Topic,
    exceeds_filter_policies,
    hidden_queue_name,
    is_hidden,
    recount,
    subscription_id_of,
    subscription_queue_name,
    with_subscription,
)

SUBSCRIBERS = "subscribers/"
"""Prefix of the spaces of marks of an account's subscriptions."""
_TOPIC = "topic/"
_SUBSCRIPTION = "subscription/"
_ENDPOINT = "endpoint/"
_COUNT = "topics"
"""Row with the account's number of topics."""
_REMOVED_TOGETHER = 50
"""Number of rows that a transaction removes."""

_decode_topic = msgspec.json.Decoder(Topic).decode
_decode_subscription = msgspec.json.Decoder(Subscription).decode
_decode_queue = msgspec.json.Decoder(Queue).decode


class CassandraTopics:
    """Topic calls of the store, kept in ``records``; changes are recorded in ``changes``."""

    def __init__(self, records: Records, changes: CassandraChanges) -> None:
        self._records = records
        self._changes = changes
        self._places = IdPlaces(records, IDS)

    # --- topics ---

    async def create_topic(self, new: NewTopic) -> Topic:
        space, row = names_space(new.account), _TOPIC + new.name
        queue_key = queue_row(hidden_queue_name(new.name))
        keys = ["account", _COUNT, row, queue_key]

        def check(rows: Mapping[str, VersionedRecord]) -> int:
            """Number of topics; raises an error if the topic cannot be created."""
            if row in rows:
                raise TopicExists(_decode_topic(rows[row].record))
            count = int(rows[_COUNT].record) if _COUNT in rows else 0
            if new.topics_max is not None and count >= new.topics_max:
                raise TooManyTopics(f"account {new.account} has {count} topics of at most {new.topics_max}")
            return count

        while True:
            check(await self._records.rows(space, keys))
            hidden = new.hidden_queue
            partition_ids = await partition_ids_in(self._records, hidden.clusters)
            queue = hidden.made(await self._records.next_id(ID_COUNTER), partition_ids)
            topic = new.made(queue)
            written = {row: text(topic), queue_key: text(queue)}

            def create(
                rows: dict[str, VersionedRecord], topic_id: int = topic.topic_id, written: Writes = written
            ) -> tuple[Writes, None]:
                count = check(rows)
                account, floor = account_row(rows)
                if topic_id < floor:
                    raise BelowFloor
                return {"account": account, _COUNT: str(count + 1), **written}, None

            await self._places.set(topic.topic_id, new.account, queue.name)
            try:
                await self._records.transact(space, keys, create)
            except BelowFloor:
                continue
            except StoreUnavailable:
                raise  # the topic may have been created: its mark stays, and the collector decides
            except StoreError:
                await self._places.forget(topic.topic_id)
                raise
            return topic

    async def get_topic(self, account: str, name: str) -> Topic:
        record = await self._records.get(names_space(account), _TOPIC + name)
        if record is None:
            raise TopicNotFound(name)
        return _decode_topic(record)

    async def list_topics(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[Topic]:
        row_min = _TOPIC + prefix if prefix > after else _first_row(_TOPIC, after)
        rows = await self._records.page(names_space(account), row_min, _TOPIC + prefix + BEYOND, limit)
        return [_decode_topic(record) for _, record in rows]

    async def update_topic(
        self,
        topic_id: int,
        version: int,
        *,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Topic:
        account, row = await self._placed(topic_id)

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, Topic]:
            topic = _found(rows, row, topic_id)
            _check_topic_version(topic, version)
            topic = msgspec.structs.replace(
                topic,
                version=version + 1,
                attributes=topic.attributes if attributes is None else dict(attributes),
                tags=topic.tags if tags is None else dict(tags),
            )
            return {row: text(topic)}, topic

        topic = await self._records.transact(names_space(account), [row], update)
        await self._changes.record(account, topic.name)
        return topic

    async def delete_topic(self, topic_id: int, *, version: int | None = None) -> Topic:
        account, row = await self._placed(topic_id)
        hidden = queue_row(HIDDEN_PREFIX + row.removeprefix(_TOPIC))

        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, Topic]:
            topic = _found(rows, row, topic_id)
            if version is not None:
                _check_topic_version(topic, version)
            count = int(rows[_COUNT].record) if _COUNT in rows else 1
            return {"account": account_row(rows)[0], _COUNT: str(count - 1), row: None, hidden: None}, topic

        topic = await self._records.transact(names_space(account), ["account", _COUNT, row, hidden], delete)
        await self._changes.record(account, topic.name)
        await self._changes.record(account, hidden_queue_name(topic.name))
        try:
            await self._remove_rows(account, topic_id)
            await self._places.remove(topic_id)
        except StoreUnavailable:
            pass  # the topic is deleted, and the collector removes the rest
        return topic

    # --- subscriptions ---

    async def create_subscription(self, new: NewSubscription) -> Subscription:
        account, row = await self._placed(new.topic_id)
        space = names_space(account)
        endpoint = _endpoint_row(new.topic_id, new.protocol, new.endpoint)

        def check(rows: Mapping[str, VersionedRecord]) -> Topic | bytes:
            """Return the topic, or the id of the endpoint's subscription."""
            topic = _found(rows, row, new.topic_id)
            if endpoint in rows:
                return bytes.fromhex(rows[endpoint].record)
            if new.subscriptions_max is not None and topic.subscriptions >= new.subscriptions_max:
                raise TooManySubscriptions(f"topic {topic.name!r} has {topic.subscriptions} subscriptions")
            return topic

        while True:
            found = check(await self._records.rows(space, [row, endpoint]))
            if isinstance(found, bytes):
                existing = await self._records.get(space, _subscription_row(new.topic_id, found), serial=True)
                if existing is None:
                    continue  # it was deleted in between
                raise SubscriptionExists(_decode_subscription(existing))
            subscription = new.made(found)
            sub_row = _subscription_row(new.topic_id, subscription.subscription_id)
            hidden = new.hidden_queue(subscription)
            if hidden is not None:
                await self._check_pushed(account, new.pushed_max)
            queue = None if hidden is None else await self._new_queue(hidden)

            def create(
                rows: dict[str, VersionedRecord],
                subscription: Subscription = subscription,
                sub_row: str = sub_row,
                queue: Queue | None = queue,
            ) -> tuple[Writes, bool]:
                topic = check(rows)
                if isinstance(topic, bytes):
                    return {}, False
                _check_filter_policies(topic, None, subscription, new.filter_policies_max)
                return {
                    row: text(with_subscription(topic, None, subscription)),
                    endpoint: subscription.subscription_id.hex(),
                    sub_row: text(subscription),
                    **({} if queue is None else _queue_rows(rows, queue)),
                }, True

            mark = mark_of_subscription(subscription)
            await self._records.mark(*mark)
            try:
                created = await self._records.transact(space, [row, endpoint, *_account_key(queue)], create)
            except StoreUnavailable:
                raise  # the subscription may have been created: its mark stays, and that of its queue
            except (StoreError, BelowFloor) as error:
                await self._unmark(mark)
                await self._forget(queue)
                if isinstance(error, BelowFloor):
                    continue
                raise
            if not created:
                await self._unmark(mark)
                await self._forget(queue)
                continue
            await self._changes.record(account, subscription.topic_name)
            return subscription

    async def _check_pushed(self, account: str, count_max: int | None) -> None:
        """Check the number of subscriptions with hidden queues, before one more is created."""
        if count_max is None:
            return
        prefix = queue_row(SUBSCRIPTION_PREFIX)
        count = len(await self._records.keys(names_space(account), prefix, prefix + BEYOND, count_max))
        if count >= count_max:
            raise TooManyPushedSubscriptions(f"account {account} has {count} pushed subscriptions")

    async def get_subscription(self, topic_id: int, subscription_id: bytes) -> Subscription:
        place = await self._places.get(topic_id)
        if place is not None:
            rows = await self._records.some(
                names_space(place.account), [_topic_row(place), _subscription_row(topic_id, subscription_id)]
            )
            found = list(_existing(place, topic_id, rows))
            if found:
                return found[0]
        raise SubscriptionNotFound(subscription_id.hex())

    async def topic_subscriptions(self, topic_id: int, *, after: bytes = b"", limit: int) -> list[Subscription]:
        place = await self._places.get(topic_id)
        if place is None:
            return []
        prefix, space = _subscription_prefix(topic_id), names_space(place.account)
        rows = await self._records.page(space, _first_row(prefix, after.hex()), prefix + BEYOND, limit)
        topic = await self._records.get(space, _topic_row(place))
        return list(_existing(place, topic_id, {**dict(rows), **({_topic_row(place): topic} if topic else {})}))

    async def owner_subscriptions(self, owner: str, *, after: str = "", limit: int) -> SubscriptionPage:
        marks = await self._records.marks(SUBSCRIBERS + owner, after + "\0" if after else "", limit + 1)
        page = marks[:limit]
        by_topic: dict[tuple[str, int, str], list[str]] = {}
        for key, name in page:
            account, number, subscription_id = key.split("/")
            by_topic.setdefault((account, int(number), name), []).append(subscription_id)
        found = await gather(partial(self._some, *topic, ids) for topic, ids in by_topic.items())
        subscriptions = [one for some in found for one in some if one.owner == owner]
        return SubscriptionPage(subscriptions, page[-1][0] if len(marks) > limit else "")

    async def update_subscription(
        self,
        topic_id: int,
        subscription_id: bytes,
        version: int,
        change: SubscriptionChange,
        *,
        filter_policies_max: int | None = None,
    ) -> Subscription:
        def update(topic: Topic, before: Subscription) -> Subscription:
            _check_version(before, version)
            now = change.applied(before)
            _check_filter_policies(topic, before, now, filter_policies_max)
            return now

        _, now = await self._change(topic_id, subscription_id, update)
        assert now is not None
        return now

    async def delete_subscription(
        self, topic_id: int, subscription_id: bytes, *, version: int | None = None
    ) -> Subscription:
        def delete(topic: Topic, before: Subscription) -> None:
            if version is not None:
                _check_version(before, version)

        before, _ = await self._change(topic_id, subscription_id, delete)
        await self._unmark(mark_of_subscription(before))
        return before

    # --- collector ---

    async def collect(self) -> int:
        """Remove what unfinished deletions of topics have left, and return the number of these topics.

        The collector of queues removes their marks afterwards.  May run at any time, in several processes at once.
        """
        removed = 0
        async for places in self._places.pages():
            for topic_id, place in places:
                if not is_hidden(place.name) or subscription_id_of(place.name) is not None:
                    continue
                record = await self._records.get(names_space(place.account), _topic_row(place), serial=True)
                if record is None or _decode_topic(record).topic_id != topic_id:
                    removed += await self._remove_rows(place.account, topic_id)
        return removed

    # --- parts of operations ---

    async def _placed(self, topic_id: int) -> tuple[str, str]:
        """Account and row of a topic that may exist.  Raises :class:`TopicNotFound`."""
        place = await self._places.get(topic_id)
        if place is None or not is_hidden(place.name):
            raise TopicNotFound(str(topic_id))
        return place.account, _topic_row(place)

    async def _change(
        self, topic_id: int, subscription_id: bytes, change: Callable[[Topic, Subscription], Subscription | None]
    ) -> tuple[Subscription, Subscription | None]:
        """Store the result of ``change``; None: the subscription is deleted.  Returns it before and afterwards."""
        try:
            account, row = await self._placed(topic_id)
        except TopicNotFound:
            raise SubscriptionNotFound(subscription_id.hex()) from None
        sub_row = _subscription_row(topic_id, subscription_id)
        queue_key = queue_row(subscription_queue_name(subscription_id))

        def store(
            rows: dict[str, VersionedRecord],
        ) -> tuple[Writes, tuple[Subscription, Subscription | None, Queue | None]]:
            topic = _decode_topic(rows[row].record) if row in rows else None
            if topic is None or topic.topic_id != topic_id or sub_row not in rows:
                raise SubscriptionNotFound(subscription_id.hex())
            before = _decode_subscription(rows[sub_row].record)
            now, queue = change(topic, before), None
            writes: dict[str, str | None] = {
                row: text(with_subscription(topic, before, now)),
                sub_row: None if now is None else text(now),
            }
            if now is None:
                writes[_endpoint_row(topic_id, before.protocol, before.endpoint)] = None
                if queue_key in rows:
                    queue = _decode_queue(rows[queue_key].record)
                    writes[queue_key] = None
                    writes |= index_rows(queue.name, queue.attributes, None)
            return writes, (before, now, queue)

        before, now, queue = await self._records.transact(names_space(account), [row, sub_row, queue_key], store)
        await self._changes.record(account, before.topic_name)
        if queue is not None:
            await self._places.forget(queue.queue_id)
            await self._changes.record(account, queue.name)
        return before, now

    async def _new_queue(self, hidden: NewQueue) -> Queue:
        """Make the hidden queue of a subscription, and mark its id and its account."""
        queue = hidden.made(
            await self._records.next_id(ID_COUNTER), await partition_ids_in(self._records, hidden.clusters)
        )
        await mark_push(self._records, queue.account, queue.attributes)
        await self._places.set(queue.queue_id, queue.account, queue.name)
        return queue

    async def _forget(self, queue: Queue | None) -> None:
        """Remove the mark of a queue that was not created."""
        if queue is not None:
            await self._places.forget(queue.queue_id)

    async def _some(self, account: str, topic_id: int, name: str, ids: list[str]) -> list[Subscription]:
        """Those of these subscriptions that exist, in this order."""
        place = IdPlace(account, hidden_queue_name(name))
        keys = [_topic_row(place), *(_subscription_prefix(topic_id) + one for one in ids)]
        rows = await self._records.some(names_space(account), keys)
        return list(_existing(place, topic_id, {key: rows[key] for key in keys if key in rows}))

    async def _unmark(self, mark: tuple[str, str, str]) -> None:
        try:
            await self._records.unmark(*mark[:2])
        except StoreUnavailable:
            pass  # readers skip it

    async def _remove_rows(self, account: str, topic_id: int) -> bool:
        """Remove the rows of a deleted topic's subscriptions and their queues; True if there were any."""
        space = names_space(account)
        rows = await self._records.all(space, _subscription_prefix(topic_id))
        endpoints = await self._records.all(space, f"{_ENDPOINT}{topic_id:020d}/")
        subscriptions = [_decode_subscription(record) for _, record in rows]
        queue_keys = [queue_row(one.queue_name) for one in subscriptions if one.queue_name is not None]
        queues = list(queues_in(await self._records.some(space, queue_keys))) if queue_keys else []
        await gather(partial(self._records.unmark, *mark_of_subscription(one)[:2]) for one in subscriptions)
        # the queues before their subscriptions, by which an interrupted removal finds them
        keys = [
            key for queue in queues for key in (queue_row(queue.name), *index_rows(queue.name, queue.attributes, None))
        ]
        keys += [key for key, _ in (*rows, *endpoints)]
        for first in range(0, len(keys), _REMOVED_TOGETHER):
            some = keys[first : first + _REMOVED_TOGETHER]
            await self._records.transact(space, some, partial(_removed, some))
        for queue in queues:
            await self._places.forget(queue.queue_id)
            await self._changes.record(account, queue.name)
        return bool(keys)


# --- spaces and keys --------------------------------------------------------------------------------------


def mark_of_subscription(subscription: Subscription) -> tuple[str, str, str]:
    """Space, key and value of the mark that lists a subscription among those of its owner."""
    key = f"{subscription.topic_account}/{subscription.topic_id:020d}/{subscription.subscription_id.hex()}"
    return SUBSCRIBERS + subscription.owner, key, subscription.topic_name


def topics_in(rows: Mapping[str, str]) -> list[Topic]:
    """The topics among the records of an account's space."""
    return [_decode_topic(record) for row, record in rows.items() if row.startswith(_TOPIC)]


def subscriptions_in(rows: Mapping[str, str]) -> list[Subscription]:
    """The subscriptions among the records of an account's space."""
    return [_decode_subscription(record) for row, record in rows.items() if row.startswith(_SUBSCRIPTION)]


def recomputed_topics(rows: Mapping[str, str]) -> dict[str, str]:
    """Recompute the records of topics in an account's space: those of topics and subscriptions that are complete."""
    topics = {topic.topic_id: topic for topic in topics_in(rows) if queue_row(hidden_queue_name(topic.name)) in rows}
    if not topics:
        return {}
    of_topics: dict[int, list[Subscription]] = {topic_id: [] for topic_id in topics}
    for subscription in subscriptions_in(rows):
        name = subscription.queue_name
        if subscription.topic_id in topics and (name is None or queue_row(name) in rows):
            of_topics[subscription.topic_id].append(subscription)
    found = {_COUNT: str(len(topics))}
    for topic_id, subscriptions in of_topics.items():
        topic = recount(topics[topic_id], subscriptions)
        found[_TOPIC + topic.name] = text(topic)
        for one in subscriptions:
            found[_subscription_row(topic_id, one.subscription_id)] = text(one)
            found[_endpoint_row(topic_id, one.protocol, one.endpoint)] = one.subscription_id.hex()
    return found


def with_hidden_queues(rows: Mapping[str, str], topics: Mapping[str, str]) -> dict[str, str]:
    """Remove the hidden queues from the records of an account's space whose owners are not among ``topics``."""
    hidden = queue_row(HIDDEN_PREFIX)
    owned = {queue_row(hidden_queue_name(topic.name)) for topic in topics_in(topics)}
    owned |= {queue_row(one.queue_name) for one in subscriptions_in(topics) if one.queue_name is not None}
    return {row: record for row, record in rows.items() if not row.startswith(hidden) or row in owned}


def _account_key(queue: Queue | None) -> list[str]:
    """Key of the account's row, if a queue is created."""
    return [] if queue is None else ["account"]


def _queue_rows(rows: Mapping[str, VersionedRecord], queue: Queue) -> Writes:
    """Writes that create the hidden queue of a subscription.  Raises :class:`BelowFloor`."""
    account, floor = account_row(rows)
    if queue.queue_id < floor:
        raise BelowFloor
    return {"account": account, queue_row(queue.name): text(queue), **index_rows(queue.name, None, queue.attributes)}


def _check_topic_version(topic: Topic, version: int) -> None:
    if topic.version != version:
        raise ConditionFailed(f"topic {topic.name!r} has version {topic.version}, not {version}")


def _check_version(subscription: Subscription, version: int) -> None:
    if subscription.version != version:
        raise ConditionFailed(
            f"subscription {subscription.subscription_id.hex()} has version {subscription.version}, not {version}"
        )


def _removed(keys: Iterable[str], rows: Mapping[str, VersionedRecord]) -> tuple[Writes, None]:
    return {key: None for key in keys if key in rows}, None


def _topic_row(place: IdPlace) -> str:
    return _TOPIC + place.name.removeprefix(HIDDEN_PREFIX)


def _subscription_prefix(topic_id: int) -> str:
    return f"{_SUBSCRIPTION}{topic_id:020d}/"


def _subscription_row(topic_id: int, subscription_id: bytes) -> str:
    return _subscription_prefix(topic_id) + subscription_id.hex()


def _endpoint_row(topic_id: int, protocol: str, endpoint: str) -> str:
    return f"{_ENDPOINT}{topic_id:020d}/{sha256(f'{protocol} {endpoint}'.encode()).hexdigest()}"


def _first_row(prefix: str, beyond: str) -> str:
    return after(prefix + beyond) if beyond else prefix


def _existing(place: IdPlace, topic_id: int, rows: Mapping[str, str]) -> Iterable[Subscription]:
    """The subscriptions among these rows, if their topic exists."""
    topic = rows.get(_topic_row(place))
    if topic is None or _decode_topic(topic).topic_id != topic_id:
        return ()
    return subscriptions_in(rows)


def _found(rows: Mapping[str, VersionedRecord], row: str, topic_id: int) -> Topic:
    topic = _decode_topic(rows[row].record) if row in rows else None
    if topic is None or topic.topic_id != topic_id:
        raise TopicNotFound(str(topic_id))
    return topic


def _check_filter_policies(topic: Topic, before: Subscription | None, now: Subscription, count_max: int | None) -> None:
    if exceeds_filter_policies(topic, before, now, count_max):
        raise TooManyFilterPolicies(f"topic {topic.name!r} has {topic.filter_policies} filter policies")
