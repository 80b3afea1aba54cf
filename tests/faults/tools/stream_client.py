"""A Kafka client of the fault tests, as a process: ``python -m tests.faults.tools.stream_client``.

It runs in the environment of Kafka's clients (confluent-kafka), not in that of the tests.  The first line of its input
has its settings as JSON; later lines are commands.  Each line of its output is a JSON list of events; the first item of
an event is its kind.  Times are those of the monotonic clock, which all processes of a machine share.

* ``producer``: sends records to all partitions, idempotently.  ``["sent", number, partition, at]``,
  ``["acked", number, offset, at]``; the offset is null if the client has concluded that from a later record.  It
  understands ``pause`` and ``resume``.
* ``member``: reads in a group, and commits.  ``["assigned", number, asked, {partition: offset or null}]``,
  ``["read", number, partition, offset, name, at]``,
  ``["commit", number, called, answered, {partition: offset}, outcome]``.
* ``reader``: reads all there is from given offsets on, and ends.  ``["stored", partition, offset, name]``,
  ``["ends", {partition: [first, next]}]``, ``["committed", {partition: offset or null}]``.

All of them: ``["error", text, is_fatal]``.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.faults.tools.bodies import body_of, key_of

WINDOW = 100
"""Records of a partition that a producer has under way at most, so that a slow partition stops no other one."""
BIG_BYTES = 20_000
BIG_SHARE = 0.1
SMALL_BYTES = 300
KEYS = 10
"""Keys of a partition's records."""
COMMIT_SECONDS = 0.2
POLL_SECONDS = 0.05
CALL_SECONDS = 5.0
"""Timeout of a call that is repeated."""
RETRY_SECONDS = 0.05
_REFUSED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
}
"""Errors of a commit that certainly has no effect."""

_EXPECTED = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
}
"""Errors of a client whose service is away for a while."""
LOST_IN_SIGN_IN = "Broker transport failure"
"""Text of a failed sign-in whose connection was lost."""

QUICK = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 300,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 300,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "socket.timeout.ms": 10_000,
    "log.connection.close": False,
}
"""Pauses of the client that are short beside those of the service."""


def name_of(producer: str, number: int, partition: int) -> tuple[str, bytes]:
    """Return the name of a record, and its key."""
    return f"{producer}-{number}", b"%d/%d" % (partition, number % KEYS)


def value_of(name: str) -> bytes:
    draw = random.Random(name)
    return body_of(name, draw.randrange(BIG_BYTES if draw.random() < BIG_SHARE else SMALL_BYTES)).encode()


def read_name(message: Message) -> str:
    """Return the name of a record, or for one that was not sent so its beginning."""
    value = (message.value() or b"").decode(errors="replace")
    name = key_of(value) or f"strange {value[:40]!r}"
    producer, _, number = name.rpartition("-")
    if number.isdigit() and message.key() != name_of(producer, int(number), message.partition())[1]:
        return f"{name} with the key {message.key()!r}"
    return name


class TrafficClient:
    """A client with its events and commands."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.topic: str = given["topic"]
        self.partitions: int = given["partitions"]
        self.name: str = given["name"]
        self.settings: dict[str, Any] = {
            **QUICK,
            "bootstrap.servers": given["address"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": given["user"],
            "sasl.password": given["password"],
            "client.id": self.name,
            "error_cb": self.failed,
            **given["settings"],
        }
        self.given = given
        self.is_paused = False
        self.is_ended = False
        self._events: list[list[Any]] = []
        threading.Thread(target=self._obey, daemon=True).start()

    def note(self, *event: Any) -> None:
        self._events.append(list(event))

    def flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            print(json.dumps(events, separators=(",", ":")), flush=True)

    def failed(self, error: KafkaError) -> None:
        """Note an error that the client reports, and goes on."""
        is_expected = not error.fatal() and (error.code() in _EXPECTED or LOST_IN_SIGN_IN in str(error))
        self.note("error", error.name() if is_expected else str(error), not is_expected)

    def _obey(self) -> None:
        for command in sys.stdin:
            self.is_paused = command == "pause\n"
        self.is_ended = True


# --- the producer -------------------------------------------------------------------------------------------


def produce(client: TrafficClient) -> None:
    producer = Producer({"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0, **client.settings})
    under_way = [0] * client.partitions
    number = 0

    def on_delivery(number: int, partition: int) -> Callable[[KafkaError | None, Message], None]:
        def deliver(error: KafkaError | None, message: Message) -> None:
            under_way[partition] -= 1
            if error is not None:
                client.note("error", f"{client.name}-{number} was not stored: {error}", True)
            else:
                client.note("acked", number, message.offset(), time.monotonic())

        return deliver

    while not client.is_ended:
        for partition in range(client.partitions):
            if not client.is_paused and under_way[partition] < WINDOW:
                name, key = name_of(client.name, number, partition)
                under_way[partition] += 1
                client.note("sent", number, partition, time.monotonic())
                producer.produce(
                    client.topic, value_of(name), key, partition, on_delivery=on_delivery(number, partition)
                )
                number += 1
        next_at = time.monotonic() + client.given["pause_seconds"]
        while (left := next_at - time.monotonic()) > 0:
            producer.poll(left)
        client.flush()


# --- a member of a group ------------------------------------------------------------------------------------


class TrafficConsumer:
    """A member of the group, which commits what it has read."""

    def __init__(self, client: TrafficClient) -> None:
        self._client = client
        self._number = 0
        """Number of the rebalance."""
        self._positions: dict[int, int] = {}
        """By partition: the next offset, where it is not committed."""
        self._consumer = Consumer(
            {
                "group.id": client.given["group"],
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 200,
                "fetch.error.backoff.ms": 50,
                **client.settings,
            }
        )

    def run(self) -> None:
        client, consumer = self._client, self._consumer
        consumer.subscribe(
            [client.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=lambda *_: self._forget()
        )
        committed_at = time.monotonic()
        while not client.is_ended:
            wait = POLL_SECONDS
            while (message := consumer.poll(wait)) is not None:
                self._read(message)
                wait = 0.0
                if time.monotonic() >= committed_at + COMMIT_SECONDS:
                    break
            if self._positions and time.monotonic() >= committed_at + COMMIT_SECONDS:
                self._commit()
                committed_at = time.monotonic()
            client.flush()
        consumer.close()
        client.flush()

    def _read(self, message: Message) -> None:
        if message.error() is not None:
            self._client.failed(message.error())
            return
        partition, offset = message.partition(), message.offset()
        self._client.note("read", self._number, partition, offset, read_name(message), time.monotonic())
        self._positions[partition] = offset + 1

    def _commit(self) -> None:
        called = time.monotonic()
        places = [TopicPartition(self._client.topic, *place) for place in self._positions.items()]
        errors: dict[int, KafkaError | None]
        try:
            answer = self._consumer.commit(offsets=places, asynchronous=False)
            errors = {place.partition: place.error for place in answer}
        except KafkaException as failed:
            errors = {place.partition: failed.args[0] for place in places}
        answered = time.monotonic()
        outcomes: dict[str, dict[int, int]] = {}
        for partition, error in errors.items():
            if error is None:
                outcomes.setdefault("done", {})[partition] = self._positions.pop(partition)
                continue
            outcome = "refused" if error.code() in _REFUSED else "unknown"
            outcomes.setdefault(outcome, {})[partition] = self._positions[partition]
            self._client.note("error", f"commit: {error.name()}", False)
        for outcome, offsets in outcomes.items():
            self._client.note("commit", self._number, called, answered, offsets, outcome)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._forget()
        self._number += 1
        asked = time.monotonic()
        found = committed_offsets(self._client, consumer, [place.partition for place in places])
        self._client.note("assigned", self._number, asked, found)
        for place in places:
            place.offset = found[place.partition] or 0
        consumer.assign(places)

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._positions:
            self._commit()
        self._forget()

    def _forget(self) -> None:
        """Forget the partitions, which the member has no more."""
        self._positions.clear()


def committed_offsets(client: TrafficClient, consumer: Consumer, partitions: list[int]) -> dict[int, int | None]:
    """Return the group's committed offsets, as of a moment after the call; the question is repeated."""
    places = [TopicPartition(client.topic, partition) for partition in partitions]
    while True:
        try:
            answer = consumer.committed(places, timeout=CALL_SECONDS)
            failed = next((place.error for place in answer if place.error is not None), None)
            if failed is None:
                return {place.partition: place.offset if place.offset >= 0 else None for place in answer}
            client.note("error", f"committed: {failed.name()}", False)
        except KafkaException as error:
            client.note("error", f"committed: {error.args[0].name()}", False)
        time.sleep(RETRY_SECONDS)


# --- a reader without a group -------------------------------------------------------------------------------


def read_all(client: TrafficClient) -> None:
    """Read from the given offsets to the end, and the group's committed offsets."""
    settings = {"group.id": client.given["group"], "enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer({**settings, **client.settings})
    ends = {partition: end_of(client, consumer, partition) for partition in range(client.partitions)}
    positions = {int(partition): int(offset) for partition, offset in client.given["from"].items()}
    consumer.assign([TopicPartition(client.topic, partition, offset) for partition, offset in positions.items()])
    while any(positions[partition] < after for partition, (_, after) in ends.items()):
        for message in consumer.consume(500, 1.0):
            if message.error() is not None:
                client.failed(message.error())
                continue
            client.note("stored", message.partition(), message.offset(), read_name(message))
            positions[message.partition()] = message.offset() + 1
        client.flush()
    client.note("ends", ends)
    client.note("committed", committed_offsets(client, consumer, list(range(client.partitions))))
    client.flush()
    consumer.close()


def end_of(client: TrafficClient, consumer: Consumer, partition: int) -> tuple[int, int]:
    """Return first and next offset of a partition; the question is repeated."""
    while True:
        try:
            first, after = consumer.get_watermark_offsets(TopicPartition(client.topic, partition), CALL_SECONDS)
            return first, after
        except KafkaException as error:
            client.note("error", f"watermarks: {error.args[0].name()}", False)
            time.sleep(RETRY_SECONDS)


def main() -> None:
    given = json.loads(sys.stdin.readline())
    client = TrafficClient(given)
    try:
        match given["role"]:
            case "producer":
                produce(client)
            case "member":
                TrafficConsumer(client).run()
            case "reader":
                read_all(client)
    finally:
        client.flush()


if __name__ == "__main__":
    main()
