"""aiokafka: a client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import BrokerResponseError, for_code

from tests.compat.kafka.clients.kit import WAIT_SECONDS, data, main, shares, text
from tests.compat.kafka.clients.members import HEARTBEAT_MS, SESSION_MS, GroupScenarios, PollingMember

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class GivenToken(AbstractTokenProvider):  # type: ignore[misc]
    """A token that was given."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class AioKafka(GroupScenarios):
    """Operations of scenarios."""

    cooperative_assignor = None  # type: ignore[assignment]
    fenced_member = None  # type: ignore[assignment]

    def __init__(self, sign_in: dict[str, Any]) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap_servers": sign_in["address"],
            "security_protocol": "SASL_SSL" if sign_in["certificate"] else "SASL_PLAINTEXT",
            "sasl_mechanism": sign_in["mechanism"],
        }
        if sign_in["certificate"]:
            self._settings["ssl_context"] = ssl.create_default_context(cafile=sign_in["certificate"])
        if sign_in["mechanism"] == "OAUTHBEARER":
            self._settings["sasl_oauth_token_provider"] = GivenToken(sign_in["password"])
        else:
            self._settings |= {"sasl_plain_username": sign_in["user"], "sasl_plain_password": sign_in["password"]}

    # --- topics ---------------------------------------------------------------------------------------------

    async def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        async with self._admin() as admin:
            _check(await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)]), "topic_errors")

    async def topics(self, prefix: str) -> list[str]:
        async with self._admin() as admin:
            return sorted(name for name in await admin.list_topics() if name.startswith(prefix))

    async def partitions(self, topic: str) -> int:
        async with self._admin() as admin:
            (described,) = await admin.describe_topics([topic])
        return len(described["partitions"])

    async def grow(self, topic: str, partitions: int) -> None:
        async with self._admin() as admin:
            _check(await admin.create_partitions({topic: NewPartitions(partitions)}), "topic_errors")

    async def configs(self, topic: str, names: list[str]) -> dict[str, str]:
        async with self._admin() as admin:
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        ((_, _, _, _, entries),) = answer.resources
        found = {name: value for name, value, *_ in entries}
        return {name: found[name] for name in names}

    async def alter(self, topic: str, configs: dict[str, str]) -> None:
        async with self._admin() as admin:
            (answer,) = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
        ((code, *_),) = answer.resources
        if code:
            raise for_code(code)

    async def delete(self, topic: str) -> None:
        async with self._admin() as admin:
            _check(await admin.delete_topics([topic]), "topic_error_codes")

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        async with self._admin() as admin:
            return int((await admin.delete_records({place: RecordsToDelete(before)}))[place])

    # --- records --------------------------------------------------------------------------------------------

    async def produce(
        self, topic: str, records: list[dict[str, Any]], codec: str, idempotent: bool, acks: str
    ) -> list[list[int]]:
        compression = None if codec == "none" else codec
        settings = {"compression_type": compression, "enable_idempotence": idempotent, "acks": acks, "linger_ms": 20}
        async with AIOKafkaProducer(**self._settings, **settings) as producer:
            sent = [
                await producer.send(
                    topic,
                    key=data(record["key"]),
                    value=data(record["value"]),
                    headers=[(name, data(value)) for name, value in record["headers"]],
                    partition=record["partition"],
                    timestamp_ms=record["timestamp"],
                )
                for record in records
            ]
            answers = await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)
        return [[one.partition, one.offset] for one in answers]

    async def read(self, topic: str, partition: int, offset: int, count: int) -> list[dict[str, Any]]:
        async with self._consumer(None) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return [_record(one) for one in await _take(consumer, count)]

    async def seek(self, topic: str, partition: int, offsets: list[int], count: int) -> list[list[int]]:
        found = []
        async with self._consumer(None) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            await _take(consumer, 1)
            for offset in offsets:
                consumer.seek(place, offset)
                found.append([one.offset for one in await _take(consumer, count)])
        return found

    async def offsets(self, topic: str, partition: int) -> list[int]:
        place = TopicPartition(topic, partition)
        async with self._consumer(None) as consumer:
            first = await consumer.beginning_offsets([place])
            end = await consumer.end_offsets([place])
        return [first[place], end[place]]

    async def offset_at(self, topic: str, partition: int, timestamp: int) -> int:
        place = TopicPartition(topic, partition)
        async with self._consumer(None) as consumer:
            return int((await consumer.offsets_for_times({place: timestamp}))[place].offset)

    # --- groups ---------------------------------------------------------------------------------------------

    async def consume(self, topic: str, group: str, count: int) -> list[list[Any]]:
        async with self._consumer(group, topic) as consumer:
            found = [[one.partition, one.offset, text(one.value)] for one in await _take(consumer, count)]
            await consumer.commit()
        return sorted(found)

    async def rebalance(self, topic: str, group: str, partitions: int) -> list[list[int]]:
        async with self._consumer(group, topic) as first:
            alone = await _balanced([first], [partitions])
            async with self._consumer(group, topic) as second:
                shared = await _balanced([first, second], [partitions // 2, partitions // 2])
            return [
                *alone,
                sorted(number for member in shared for number in member),
                *await _balanced([first], [partitions]),
            ]

    async def committed(self, topic: str, group: str) -> list[list[int]]:
        async with self._admin() as admin:
            found = await admin.list_consumer_group_offsets(group)
        return sorted([place.partition, one.offset] for place, one in found.items() if place.topic == topic)

    async def reset(self, topic: str, group: str, partition: int, offset: int) -> None:
        async with self._consumer(group) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            await consumer.commit({place: offset})

    async def groups(self, prefix: str) -> list[str]:
        async with self._admin() as admin:
            return sorted(name for name, *_ in await admin.list_consumer_groups() if name.startswith(prefix))

    async def group_state(self, group: str) -> str:
        async with self._admin() as admin:
            (answer,) = await admin.describe_consumer_groups([group])
        ((error, _, state, *_),) = answer.groups
        if error:
            raise for_code(error)
        return str(state).lower()

    def member(self, topic: str, group: str, assignor: str, instance: str | None = None) -> AioKafkaMember:
        settings = {
            **self._settings,
            "group_id": group,
            "group_instance_id": instance,
            "partition_assignment_strategy": [ASSIGNORS[assignor]],
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "session_timeout_ms": SESSION_MS,
            "enable_auto_commit": False,
        }
        return AioKafkaMember(settings, topic)

    @staticmethod
    def error_code(error: Exception) -> int | None:
        return error_code(error)

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(**self._settings)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def _consumer(self, group: str | None, *topics: str) -> AIOKafkaConsumer:
        settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        return AIOKafkaConsumer(*topics, **self._settings, **settings)


class AioKafkaMember(PollingMember):
    """A member of a group that reports its partitions."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        super().__init__()
        self._settings = settings
        self._topic = topic

    def poll(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
                member.assign(assigned)

            def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
                member.revoke(revoked)

        consumer = AIOKafkaConsumer(**self._settings)
        consumer.subscribe([self._topic], listener=Listener())
        async with consumer:
            while not self.stopped.is_set():
                await consumer.getmany(timeout_ms=50)


def _check(answer: Any, errors: str) -> None:
    """Raise the error of a topic: the client returns it in the answer."""
    for _, code, *_ in getattr(answer, errors):
        if code:
            raise for_code(code)


def _record(one: Any) -> dict[str, Any]:
    return {
        "offset": one.offset,
        "key": text(one.key),
        "value": text(one.value),
        "headers": [[name, text(value)] for name, value in one.headers],
        "timestamp": one.timestamp,
    }


async def _take(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        return [await consumer.getone() for _ in range(count)]


async def _balanced(consumers: list[AIOKafkaConsumer], counts: list[int]) -> list[list[int]]:
    """Wait until the members have so many partitions; returns the partitions of each."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        for consumer in consumers:
            await consumer.getmany(timeout_ms=100)
        if (found := shares(consumers, counts, deadline)) is not None:
            return found


def error_code(error: Exception) -> int | None:
    """Return the error code of the service, or None."""
    return error.errno if isinstance(error, BrokerResponseError) else None


if __name__ == "__main__":
    main(AioKafka, error_code)
