"""confluent-kafka: librdkafka's client for Python."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.compat.kafka.clients.kit import WAIT_SECONDS, data, main, shares, text
from tests.compat.kafka.clients.members import HEARTBEAT_MS, SESSION_MS, GroupScenarios, PollingMember

FENCED = KafkaError(KafkaError.FENCED_INSTANCE_ID)


class Confluent(GroupScenarios):
    """Operations of scenarios."""

    def __init__(self, sign_in: dict[str, Any]) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": sign_in["address"],
            "security.protocol": "SASL_SSL" if sign_in["certificate"] else "SASL_PLAINTEXT",
            "sasl.mechanism": sign_in["mechanism"],
        }
        if sign_in["certificate"]:
            self._settings["ssl.ca.location"] = sign_in["certificate"]
        if sign_in["mechanism"] == "OAUTHBEARER":
            self._settings["oauth_cb"] = lambda _: (sign_in["password"], time.time() + 3600)
        else:
            self._settings |= {"sasl.username": sign_in["user"], "sasl.password": sign_in["password"]}
        self._admin = AdminClient(dict(self._settings))

    # --- topics ---------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(WAIT_SECONDS)

    def topics(self, prefix: str) -> list[str]:
        return sorted(name for name in self._admin.list_topics(timeout=WAIT_SECONDS).topics if name.startswith(prefix))

    def partitions(self, topic: str) -> int:
        described = self._admin.describe_topics(TopicCollection([topic]))[topic].result(WAIT_SECONDS)
        return len(described.partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_SECONDS)

    def configs(self, topic: str, names: list[str]) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(WAIT_SECONDS)
        return {name: entries[name].value for name in names}

    def alter(self, topic: str, configs: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(WAIT_SECONDS)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition, before)
        answer = self._admin.delete_records([place])[place].result(WAIT_SECONDS)
        return int(answer.low_watermark)

    # --- records --------------------------------------------------------------------------------------------

    def produce(
        self, topic: str, records: list[dict[str, Any]], codec: str, idempotent: bool, acks: str
    ) -> list[list[int]]:
        settings = {"compression.type": codec, "enable.idempotence": idempotent, "acks": acks, "linger.ms": 20}
        producer = Producer({**self._settings, **settings})
        places: dict[int, list[int]] = {}
        errors: list[KafkaError] = []
        for number, record in enumerate(records):

            def on_delivery(error: KafkaError | None, message: Any, number: int = number) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    places[number] = [message.partition(), message.offset()]

            producer.produce(
                topic,
                key=data(record["key"]),
                value=data(record["value"]),
                headers=[(name, data(value)) for name, value in record["headers"]],
                partition=record["partition"],
                timestamp=record["timestamp"],
                on_delivery=on_delivery,
            )
        producer.flush(WAIT_SECONDS)
        if errors:
            raise KafkaException(errors[0])
        return [places[number] for number in range(len(records))]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[dict[str, Any]]:
        with closing(self._consumer("read")) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return [_record(message) for message in _take(consumer, count)]

    def seek(self, topic: str, partition: int, offsets: list[int], count: int) -> list[list[int]]:
        found = []
        with closing(self._consumer("seek")) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0)])
            _take(consumer, 1)
            for offset in offsets:
                consumer.seek(TopicPartition(topic, partition, offset))
                found.append([message.offset() for message in _take(consumer, count)])
        return found

    def offsets(self, topic: str, partition: int) -> list[int]:
        with closing(self._consumer("offsets")) as consumer:
            return list(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_SECONDS))

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int:
        place = TopicPartition(topic, partition)
        answer = self._admin.list_offsets({place: OffsetSpec.for_timestamp(timestamp)})[place].result(WAIT_SECONDS)
        return int(answer.offset)

    # --- groups ---------------------------------------------------------------------------------------------

    def consume(self, topic: str, group: str, count: int) -> list[list[Any]]:
        with closing(self._consumer(group)) as consumer:
            consumer.subscribe([topic])
            found = [[one.partition(), one.offset(), text(one.value())] for one in _take(consumer, count)]
            places = {partition: offset + 1 for partition, offset, _ in sorted(found)}
            consumer.commit(
                offsets=[TopicPartition(topic, partition, offset) for partition, offset in places.items()],
                asynchronous=False,
            )
        return sorted(found)

    def rebalance(self, topic: str, group: str, partitions: int) -> list[list[int]]:
        with closing(self._consumer(group)) as first:
            first.subscribe([topic])
            alone = _balanced([first], [partitions])
            with closing(self._consumer(group)) as second:
                second.subscribe([topic])
                shared = _balanced([first, second], [partitions // 2, partitions // 2])
            return [*alone, sorted(number for member in shared for number in member), *_balanced([first], [partitions])]

    def committed(self, topic: str, group: str) -> list[list[int]]:
        wanted = [ConsumerGroupTopicPartitions(group)]
        answer = self._admin.list_consumer_group_offsets(wanted)[group].result(WAIT_SECONDS)
        return sorted([one.partition, one.offset] for one in answer.topic_partitions if one.topic == topic)

    def reset(self, topic: str, group: str, partition: int, offset: int) -> None:
        wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])]
        self._admin.alter_consumer_group_offsets(wanted)[group].result(WAIT_SECONDS)

    def groups(self, prefix: str) -> list[str]:
        answer = self._admin.list_consumer_groups().result(WAIT_SECONDS)
        return sorted(one.group_id for one in answer.valid if one.group_id.startswith(prefix))

    def group_state(self, group: str) -> str:
        answer = self._admin.describe_consumer_groups([group])[group].result(WAIT_SECONDS)
        return str(answer.state.name).lower()

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(WAIT_SECONDS)

    def member(self, topic: str, group: str, assignor: str, instance: str | None = None) -> ConfluentMember:
        settings: dict[str, Any] = {
            "partition.assignment.strategy": assignor,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        return ConfluentMember(self._consumer(group, settings), topic)

    @staticmethod
    def error_code(error: Exception) -> int | None:
        return error_code(error)

    def _consumer(self, group: str, more: Mapping[str, Any] = MappingProxyType({})) -> Consumer:
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return Consumer({**self._settings, **settings, **more})


class ConfluentMember(PollingMember):
    """A member of a group that reports its partitions."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        super().__init__()
        self._consumer = consumer
        self._topic = topic

    def poll(self) -> None:
        with closing(self._consumer):
            self._consumer.subscribe(
                [self._topic],
                on_assign=lambda _, partitions: self.assign(partitions),
                on_revoke=lambda _, partitions: self.revoke(partitions),
            )
            while not self.stopped.is_set():
                message = self._consumer.poll(0.05)
                if message is not None and message.error():
                    raise KafkaException(message.error())


def _record(message: Any) -> dict[str, Any]:
    return {
        "offset": message.offset(),
        "key": text(message.key()),
        "value": text(message.value()),
        "headers": [[name, text(value)] for name, value in message.headers() or []],
        "timestamp": message.timestamp()[1],
    }


def _take(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} of {count} records")
        message = consumer.poll(0.5)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
    return found


def _balanced(consumers: list[Consumer], counts: list[int]) -> list[list[int]]:
    """Poll until the members have so many partitions; returns the partitions of each."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        for consumer in consumers:
            consumer.poll(0.1)
        if (found := shares(consumers, counts, deadline)) is not None:
            return found


def error_code(error: Exception) -> int | None:
    """Return the error code of the service, or None."""
    if isinstance(error, KafkaException):
        code = int(error.args[0].code())
        if code == KafkaError._FATAL and FENCED.str() in error.args[0].str():  # the only place where it is named
            return int(FENCED.code())
        return code if code > 0 else None  # librdkafka's own are negative
    return None


if __name__ == "__main__":
    main(Confluent, error_code)
