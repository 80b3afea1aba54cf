"""kafka-python: a client in Python alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import BrokerResponseError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from tests.compat.kafka.clients.kit import WAIT_SECONDS, data, main, shares, text
from tests.compat.kafka.clients.members import HEARTBEAT_MS, SESSION_MS, GroupScenarios, PollingMember

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class FixedToken(AbstractTokenProvider):  # type: ignore[misc]
    """A token that was given."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class KafkaPython(GroupScenarios):
    """Operations of scenarios."""

    def __init__(self, sign_in: dict[str, Any]) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap_servers": sign_in["address"],
            "security_protocol": "SASL_SSL" if sign_in["certificate"] else "SASL_PLAINTEXT",
            "sasl_mechanism": sign_in["mechanism"],
            "ssl_cafile": sign_in["certificate"],
        }
        if sign_in["mechanism"] == "OAUTHBEARER":
            self._settings["sasl_oauth_token_provider"] = FixedToken(sign_in["password"])
        else:
            self._settings |= {"sasl_plain_username": sign_in["user"], "sasl_plain_password": sign_in["password"]}
        self._admin = KafkaAdminClient(**self._settings)

    # --- topics ---------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])

    def topics(self, prefix: str) -> list[str]:
        return sorted(name for name in self._admin.list_topics() if name.startswith(prefix))

    def partitions(self, topic: str) -> int:
        (described,) = self._admin.describe_topics([topic])
        return len(described["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions({topic: partitions})

    def configs(self, topic: str, names: list[str]) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(names))
        found = self._admin.describe_configs([resource], config_filter="all")
        return {name: found["topic"][topic][name]["value"] for name in names}

    def alter(self, topic: str, configs: dict[str, str]) -> None:
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        return int(self._admin.delete_records({place: before})[place]["low_watermark"])

    # --- records --------------------------------------------------------------------------------------------

    def produce(
        self, topic: str, records: list[dict[str, Any]], codec: str, idempotent: bool, acks: str
    ) -> list[list[int]]:
        compression = None if codec == "none" else codec
        settings = {"compression_type": compression, "enable_idempotence": idempotent, "acks": acks, "linger_ms": 20}
        with closing(KafkaProducer(**self._settings, **settings)) as producer:
            sent = [
                producer.send(
                    topic,
                    key=data(record["key"]),
                    value=data(record["value"]),
                    headers=[(name, data(value)) for name, value in record["headers"]],
                    partition=record["partition"],
                    timestamp_ms=record["timestamp"],
                )
                for record in records
            ]
            answers = [one.get(WAIT_SECONDS) for one in sent]
        return [[one.partition, one.offset] for one in answers]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[dict[str, Any]]:
        with closing(self._consumer(None)) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return [_record(one) for one in _take(consumer, count)]

    def seek(self, topic: str, partition: int, offsets: list[int], count: int) -> list[list[int]]:
        found = []
        with closing(self._consumer(None)) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            _take(consumer, 1)
            for offset in offsets:
                consumer.seek(place, offset)
                found.append([one.offset for one in _take(consumer, count)])
        return found

    def offsets(self, topic: str, partition: int) -> list[int]:
        place = TopicPartition(topic, partition)
        with closing(self._consumer(None)) as consumer:
            return [consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]]

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int:
        place = TopicPartition(topic, partition)
        with closing(self._consumer(None)) as consumer:
            return int(consumer.offsets_for_times({place: timestamp})[place].offset)

    # --- groups ---------------------------------------------------------------------------------------------

    def consume(self, topic: str, group: str, count: int) -> list[list[Any]]:
        with closing(self._consumer(group, topic)) as consumer:
            found = [[one.partition, one.offset, text(one.value)] for one in _take(consumer, count)]
            consumer.commit()
        return sorted(found)

    def rebalance(self, topic: str, group: str, partitions: int) -> list[list[int]]:
        with closing(self._consumer(group, topic)) as first:
            alone = _balanced([first], [partitions])
            with closing(self._consumer(group, topic)) as second:
                shared = _balanced([first, second], [partitions // 2, partitions // 2])
            return [*alone, sorted(number for member in shared for number in member), *_balanced([first], [partitions])]

    def committed(self, topic: str, group: str) -> list[list[int]]:
        found = self._admin.list_group_offsets(group)[group]
        return sorted([place.partition, one.offset] for place, one in found.items() if place.topic == topic)

    def reset(self, topic: str, group: str, partition: int, offset: int) -> None:
        place = TopicPartition(topic, partition)
        self._admin.alter_group_offsets(group, {place: OffsetAndMetadata(offset, "", -1)})

    def forget(self, topic: str, group: str, partition: int) -> None:
        self._admin.delete_group_offsets(group, [TopicPartition(topic, partition)])

    def groups(self, prefix: str) -> list[str]:
        return sorted(one["group_id"] for one in self._admin.list_groups() if one["group_id"].startswith(prefix))

    def group_state(self, group: str) -> str:
        return str(self._admin.describe_groups([group])[group]["group_state"]).lower()

    def delete_group(self, group: str) -> None:
        self._admin.delete_groups([group])

    def member(self, topic: str, group: str, assignor: str, instance: str | None = None) -> KafkaPythonMember:
        return KafkaPythonMember(
            self._consumer(
                group,
                partition_assignment_strategy=[ASSIGNORS[assignor]],
                heartbeat_interval_ms=HEARTBEAT_MS,
                session_timeout_ms=SESSION_MS,
                group_instance_id=instance,
                enable_auto_commit=True,  # only a commit shows that the member is fenced
                auto_commit_interval_ms=HEARTBEAT_MS,
            ),
            topic,
        )

    @staticmethod
    def error_code(error: Exception) -> int | None:
        return error_code(error)

    def _consumer(self, group: str | None, *topics: str, **more: Any) -> KafkaConsumer:
        settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        return KafkaConsumer(*topics, **{**self._settings, **settings, **more})


class KafkaPythonMember(PollingMember):
    """A member of a group that reports its partitions."""

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        super().__init__()
        self._consumer = consumer
        self._topic = topic

    def poll(self) -> None:
        """Join within one poll that ends with a record, as the others do once the member has joined.

        This client forgets that it has joined if that happens between two polls, and joins again: if it is the group's
        leader, all others have to join again too.
        """
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
                for place in assigned:
                    member._consumer.seek(place, 0)  # where there is a record
                member.assign(assigned)

            def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
                member.revoke(revoked)

        with closing(self._consumer):
            self._consumer.subscribe([self._topic], listener=Listener())
            self._consumer.poll(WAIT_SECONDS * 1000)
            while not self.stopped.is_set():
                self._consumer.poll(200)


def _record(one: Any) -> dict[str, Any]:
    return {
        "offset": one.offset,
        "key": text(one.key),
        "value": text(one.value),
        "headers": [[name, text(value)] for name, value in one.headers],
        "timestamp": one.timestamp,
    }


def _take(consumer: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} of {count} records")
        for records in consumer.poll(500, max_records=count - len(found)).values():
            found += records
    return found


def _balanced(consumers: list[KafkaConsumer], counts: list[int]) -> list[list[int]]:
    """Poll until the members have so many partitions; returns the partitions of each.

    All are polled at the same time: this client forgets that it has joined the group if that happens between two polls,
    and joins again, so members that are polled in turns may never stop.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    with ThreadPoolExecutor(len(consumers)) as threads:
        while True:
            for _ in threads.map(lambda consumer: consumer.poll(1000), consumers):
                pass
            if (found := shares(consumers, counts, deadline)) is not None:
                return found


def error_code(error: Exception) -> int | None:
    """Return the error code of the service, or None."""
    return error.errno if isinstance(error, BrokerResponseError) else None


if __name__ == "__main__":
    main(KafkaPython, error_code)
