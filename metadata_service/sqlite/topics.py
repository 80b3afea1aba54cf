"""Topics and subscriptions in the SQLite file: :class:`~metadata_service.store.TopicStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from metadata_service.sqlite.changes import record_change
from metadata_service.sqlite.queues import insert_queue
from metadata_service.sqlite.schema import text
from metadata_service.sqlite.thread import Worker
from metadata_service.store import (
    ConditionFailed,
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
    SUBSCRIPTION_PREFIX,
    NewSubscription,
    NewTopic,
    Subscription,
    SubscriptionChange,
    SubscriptionPage,
    Topic,
    exceeds_filter_policies,
    hidden_queue_name,
    with_subscription,
)

_decode_topic = msgspec.json.Decoder(Topic).decode
_decode_subscription = msgspec.json.Decoder(Subscription).decode


class SQLiteTopics:
    """Topics in the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    # --- topics ---

    async def create_topic(self, new: NewTopic) -> Topic:
        def create(db: sqlite3.Connection) -> Topic:
            found = _find(db, "account = ? AND name = ?", (new.account, new.name))
            if found is not None:
                raise TopicExists(found)
            if new.topics_max is not None:
                (count,) = db.execute("SELECT COUNT(*) FROM topics WHERE account = ?", (new.account,)).fetchone()
                if count >= new.topics_max:
                    raise TooManyTopics(f"account {new.account} has {count} topics of at most {new.topics_max}")
            topic = new.made(insert_queue(db, new.hidden_queue))
            db.execute(
                "INSERT INTO topics (topic_id, account, name, version, record) VALUES (?, ?, ?, ?, ?)",
                (topic.topic_id, topic.account, topic.name, topic.version, text(topic)),
            )
            return topic

        return await self._worker.write(create)

    async def get_topic(self, account: str, name: str) -> Topic:
        topic = await self._worker.read(lambda db: _find(db, "account = ? AND name = ?", (account, name)))
        if topic is None:
            raise TopicNotFound(name)
        return topic

    async def list_topics(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[Topic]:
        where, name_min = ("name >= ?", prefix) if prefix > after else ("name > ?", after)
        query = f"SELECT record FROM topics WHERE account = ? AND {where} AND name < ? ORDER BY name LIMIT ?"
        keys = (account, name_min, prefix + "\U0010ffff", limit)

        def page(db: sqlite3.Connection) -> list[Topic]:
            return [_decode_topic(record) for (record,) in db.execute(query, keys)]

        return await self._worker.read(page)

    async def update_topic(
        self,
        topic_id: int,
        version: int,
        *,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Topic:
        def update(db: sqlite3.Connection) -> Topic:
            topic = _topic(db, topic_id)
            _check_topic_version(topic, version)
            topic = msgspec.structs.replace(
                topic,
                version=version + 1,
                attributes=topic.attributes if attributes is None else dict(attributes),
                tags=topic.tags if tags is None else dict(tags),
            )
            _store_topic(db, topic)
            return topic

        return await self._worker.write(update)

    async def delete_topic(self, topic_id: int, *, version: int | None = None) -> Topic:
        def delete(db: sqlite3.Connection) -> Topic:
            topic = _topic(db, topic_id)
            if version is not None:
                _check_topic_version(topic, version)
            query = "SELECT record FROM subscriptions WHERE topic_id = ?"
            for (record,) in db.execute(query, (topic_id,)).fetchall():
                _delete_queue(db, _decode_subscription(record))
            db.execute("DELETE FROM topics WHERE topic_id = ?", (topic_id,))
            db.execute("DELETE FROM subscriptions WHERE topic_id = ?", (topic_id,))
            db.execute("DELETE FROM queues WHERE queue_id = ?", (topic_id,))
            record_change(db, topic.account, topic.name)
            record_change(db, topic.account, hidden_queue_name(topic.name))
            return topic

        return await self._worker.write(delete)

    # --- subscriptions ---

    async def create_subscription(self, new: NewSubscription) -> Subscription:
        def create(db: sqlite3.Connection) -> Subscription:
            topic = _topic(db, new.topic_id)
            row = db.execute(
                "SELECT record FROM subscriptions WHERE topic_id = ? AND protocol = ? AND endpoint = ?",
                (new.topic_id, new.protocol, new.endpoint),
            ).fetchone()
            if row is not None:
                raise SubscriptionExists(_decode_subscription(row[0]))
            if new.subscriptions_max is not None and topic.subscriptions >= new.subscriptions_max:
                raise TooManySubscriptions(
                    f"topic {topic.name!r} has {topic.subscriptions} subscriptions of at most {new.subscriptions_max}"
                )
            subscription = new.made(topic)
            _check_filter_policies(topic, None, subscription, new.filter_policies_max)
            db.execute(
                "INSERT INTO subscriptions (topic_id, subscription_id, owner, protocol, endpoint, record)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    topic.topic_id,
                    subscription.subscription_id,
                    subscription.owner,
                    subscription.protocol,
                    subscription.endpoint,
                    text(subscription),
                ),
            )
            hidden = new.hidden_queue(subscription)
            if hidden is not None:
                _check_pushed(db, topic.account, new.pushed_max)
                insert_queue(db, hidden)
            _store_topic(db, with_subscription(topic, None, subscription))
            return subscription

        return await self._worker.write(create)

    async def get_subscription(self, topic_id: int, subscription_id: bytes) -> Subscription:
        return await self._worker.read(lambda db: _subscription(db, topic_id, subscription_id))

    async def topic_subscriptions(self, topic_id: int, *, after: bytes = b"", limit: int) -> list[Subscription]:
        query = (
            "SELECT record FROM subscriptions WHERE topic_id = ? AND subscription_id > ?"
            " ORDER BY subscription_id LIMIT ?"
        )

        def page(db: sqlite3.Connection) -> list[Subscription]:
            return [_decode_subscription(record) for (record,) in db.execute(query, (topic_id, after, limit))]

        return await self._worker.read(page)

    async def owner_subscriptions(self, owner: str, *, after: str = "", limit: int) -> SubscriptionPage:
        query = (
            "SELECT record FROM subscriptions WHERE owner = ? AND subscription_id > ? ORDER BY subscription_id LIMIT ?"
        )

        def page(db: sqlite3.Connection) -> SubscriptionPage:
            rows = db.execute(query, (owner, bytes.fromhex(after), limit + 1)).fetchall()
            found = [_decode_subscription(record) for (record,) in rows[:limit]]
            return SubscriptionPage(found, found[-1].subscription_id.hex() if len(rows) > limit else "")

        return await self._worker.read(page)

    async def update_subscription(
        self,
        topic_id: int,
        subscription_id: bytes,
        version: int,
        change: SubscriptionChange,
        *,
        filter_policies_max: int | None = None,
    ) -> Subscription:
        def update(db: sqlite3.Connection) -> Subscription:
            before = _subscription(db, topic_id, subscription_id)
            _check_version(before, version)
            topic, now = _topic(db, topic_id), change.applied(before)
            _check_filter_policies(topic, before, now, filter_policies_max)
            db.execute(
                "UPDATE subscriptions SET record = ? WHERE topic_id = ? AND subscription_id = ?",
                (text(now), topic_id, subscription_id),
            )
            _store_topic(db, with_subscription(topic, before, now))
            return now

        return await self._worker.write(update)

    async def delete_subscription(
        self, topic_id: int, subscription_id: bytes, *, version: int | None = None
    ) -> Subscription:
        def delete(db: sqlite3.Connection) -> Subscription:
            before = _subscription(db, topic_id, subscription_id)
            if version is not None:
                _check_version(before, version)
            db.execute(
                "DELETE FROM subscriptions WHERE topic_id = ? AND subscription_id = ?", (topic_id, subscription_id)
            )
            _delete_queue(db, before)
            _store_topic(db, with_subscription(_topic(db, topic_id), before, None))
            return before

        return await self._worker.write(delete)


def _delete_queue(db: sqlite3.Connection, subscription: Subscription) -> None:
    """Delete the hidden queue of a subscription, if it has one."""
    name = subscription.queue_name
    if name is not None:
        db.execute("DELETE FROM queues WHERE account = ? AND name = ?", (subscription.topic_account, name))
        record_change(db, subscription.topic_account, name)


def _check_pushed(db: sqlite3.Connection, account: str, count_max: int | None) -> None:
    if count_max is None:
        return
    query = "SELECT COUNT(*) FROM queues WHERE account = ? AND name >= ?"  # these names sort after all others
    (count,) = db.execute(query, (account, SUBSCRIPTION_PREFIX)).fetchone()
    if count >= count_max:
        raise TooManyPushedSubscriptions(f"account {account} has {count} pushed subscriptions of at most {count_max}")


def _check_topic_version(topic: Topic, version: int) -> None:
    if topic.version != version:
        raise ConditionFailed(f"topic {topic.name!r} has version {topic.version}, not {version}")


def _check_version(subscription: Subscription, version: int) -> None:
    if subscription.version != version:
        raise ConditionFailed(
            f"subscription {subscription.subscription_id.hex()} has version {subscription.version}, not {version}"
        )


def _check_filter_policies(topic: Topic, before: Subscription | None, now: Subscription, count_max: int | None) -> None:
    if exceeds_filter_policies(topic, before, now, count_max):
        raise TooManyFilterPolicies(f"topic {topic.name!r} has {topic.filter_policies} filter policies")


def _find(db: sqlite3.Connection, where: str, keys: tuple[str | int, ...]) -> Topic | None:
    row = db.execute(f"SELECT record FROM topics WHERE {where}", keys).fetchone()
    return None if row is None else _decode_topic(row[0])


def _topic(db: sqlite3.Connection, topic_id: int) -> Topic:
    topic = _find(db, "topic_id = ?", (topic_id,))
    if topic is None:
        raise TopicNotFound(str(topic_id))
    return topic


def _store_topic(db: sqlite3.Connection, topic: Topic) -> None:
    """Store a newer version."""
    db.execute(
        "UPDATE topics SET version = ?, record = ? WHERE topic_id = ?", (topic.version, text(topic), topic.topic_id)
    )
    record_change(db, topic.account, topic.name)


def _subscription(db: sqlite3.Connection, topic_id: int, subscription_id: bytes) -> Subscription:
    row = db.execute(
        "SELECT record FROM subscriptions WHERE topic_id = ? AND subscription_id = ?", (topic_id, subscription_id)
    ).fetchone()
    if row is None:
        raise SubscriptionNotFound(subscription_id.hex())
    return _decode_subscription(row[0])
