"""Calls of kafka-python at a service, for tests."""

from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.servers.waiting import wait_until


class KafkaAccess:
    """Calls of Kafka's clients at a service, in the name of the root tenant."""

    kafka_port: int
    access_key_id: str
    secret_access_key: str

    @property
    def sign_in(self) -> dict[str, Any]:
        """Settings of a client that signs in as the root tenant."""
        return {
            "bootstrap_servers": f"127.0.0.1:{self.kafka_port}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": self.access_key_id,
            "sasl_plain_password": self.secret_access_key,
        }

    def create(self, topic: str, partitions: int = 1) -> None:
        with closing(KafkaAdminClient(**self.sign_in)) as admin:
            admin.create_topics([NewTopic(topic, partitions, 1)])

    def produce(self, topic: str, first: int, count: int) -> list[tuple[int, int]]:
        """Partition and offset of each record, whose key and value are its number."""
        with closing(KafkaProducer(**self.sign_in, enable_idempotence=True)) as producer:
            numbers = [str(number).encode() for number in range(first, first + count)]
            sent = [producer.send(topic, number, number) for number in numbers]
            return [(one.get(60).partition, one.get(60).offset) for one in sent]

    def consume(self, topic: str, count: int, group: str) -> list[tuple[int, int, int]]:
        """Partition, offset and number of so many records of the group, which are committed."""
        found: list[tuple[int, int, int]] = []
        consumer = KafkaConsumer(topic, group_id=group, auto_offset_reset="earliest", **self.sign_in)
        with closing(consumer):

            def is_whole() -> bool:
                for records in consumer.poll(500, max_records=count - len(found)).values():
                    found.extend((record.partition, record.offset, int(record.value)) for record in records)
                return len(found) == count

            wait_until(is_whole, f"{count} records were consumed")
            consumer.commit()
        return found

    def last_offsets(self, topic: str, partitions: int) -> list[int]:
        with closing(KafkaConsumer(**self.sign_in)) as consumer:
            wanted = [TopicPartition(topic, number) for number in range(partitions)]
            ends = consumer.end_offsets(wanted)
            return [ends[each] for each in wanted]
