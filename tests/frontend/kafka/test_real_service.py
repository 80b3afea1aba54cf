"""Kafka's clients at a real service: kafka-python signs in, produces and consumes in groups, also over kill -9."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from tests.frontend.kafka.kafka_access import KafkaAccess
from tests.runner.long import all_but
from tests.servers.server import Server, free_port
from tests.servers.several import Several
from tests.servers.waiting import wait_until

RECORDS = 300
PARTITIONS = 8
"""Partitions of the topic of several processes: each backend has some of them."""


class KafkaServer(KafkaAccess, Server):
    """A Holdfast in one process that serves Kafka's clients too."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.kafka_port = free_port()
        super().__init__(folder, {"KAFKA_PORT": str(self.kafka_port), **(settings or {})})


class KafkaProcesses(KafkaAccess, Several):
    """The same with two frontends and two backends."""

    def __init__(self, folder: Path) -> None:
        self.kafka_port = free_port()
        super().__init__(folder, {"KAFKA_PORT": str(self.kafka_port), "BACKENDS": "2"})

    def restart_all(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(lambda: "all frontends have been restarted" in self.log_text(), "all processes were restarted", 240)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path) as started:
        yield started


def test_nothing_is_lost_or_doubled_by_kill_9_and_groups_go_on(server: KafkaServer) -> None:
    server.create("orders", 3)
    places = dict(enumerate(server.produce("orders", 0, RECORDS)))
    consumed = server.consume("orders", RECORDS // 2, "readers")
    server.kill()
    server.start()
    places |= dict(enumerate(server.produce("orders", RECORDS, RECORDS), RECORDS))
    consumed += server.consume("orders", 2 * RECORDS - len(consumed), "readers")
    assert {number: (partition, offset) for partition, offset, number in consumed} == places
    assert len(consumed) == len(places)
    assert sum(server.last_offsets("orders", 3)) == len(places)
    for partition in range(3):
        offsets = sorted(offset for one, offset in places.values() if one == partition)
        assert offsets == list(range(len(offsets))), "offsets are dense"


def test_a_topic_that_is_created_again_is_empty(server: KafkaServer) -> None:
    server.create("orders")
    server.produce("orders", 0, 10)
    with closing(KafkaAdminClient(**server.sign_in)) as admin:
        admin.delete_topics(["orders"])
        assert admin.list_topics() == []
    server.create("orders")
    assert server.produce("orders", 0, 1) == [(0, 0)]
    server.kill()
    server.start()
    assert server.last_offsets("orders", 1) == [1]
    assert [number for _, _, number in server.consume("orders", 1, "readers")] == [0]


# --- several processes --------------------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[KafkaProcesses]:
    with KafkaProcesses(tmp_path) as started:
        yield started


def kill_again(name: str) -> Callable[[KafkaProcesses], None]:
    """Return a function that ends a process by kill -9, and waits until it is back."""

    def kill(server: KafkaProcesses) -> None:
        server.wait_again(name, server.kill_child(name))

    return kill


STRIKES: dict[str, Callable[[KafkaProcesses], None]] = {
    "kill -9 of a backend": kill_again("backend-1"),
    "kill -9 of a frontend": kill_again("frontend-1"),
    "restart one by one": KafkaProcesses.restart_all,
}


@pytest.mark.parametrize("strike", all_but(["kill -9 of a backend"], STRIKES))
def test_nothing_is_lost_or_doubled_when_a_process_ends_and_groups_go_on(
    processes: KafkaProcesses, strike: str
) -> None:
    processes.create("orders", PARTITIONS)
    places = dict(enumerate(processes.produce("orders", 0, RECORDS)))
    settings = {**processes.sign_in, "group_id": "readers", "auto_offset_reset": "earliest"}
    with (
        closing(KafkaProducer(**processes.sign_in, enable_idempotence=True)) as producer,
        closing(KafkaConsumer("orders", **settings, enable_auto_commit=False)) as consumer,
        ThreadPoolExecutor(1) as pool,
    ):
        consumed: list[tuple[int, int, int]] = []
        take(consumer, consumed, RECORDS // 2)
        struck = pool.submit(STRIKES[strike], processes)
        sent: list[Any] = []
        while not struck.done() or len(sent) < RECORDS:
            number = b"%d" % (RECORDS + len(sent))
            sent.append(producer.send("orders", number, number))
            sent[-1].get(120)  # one after the other, so that some are sent in each phase
            sent += [producer.send("orders", more, more) for more in numbers(RECORDS + len(sent), 2)]
        struck.result()
        places |= {RECORDS + index: (one.get(120).partition, one.get(120).offset) for index, one in enumerate(sent)}
        take(consumer, consumed, len(places))
    assert len(places) >= 2 * RECORDS
    assert {number: (partition, offset) for partition, offset, number in consumed} == places
    assert len(consumed) == len(places), "none twice"
    assert sum(processes.last_offsets("orders", PARTITIONS)) == len(places)
    for partition in range(PARTITIONS):
        offsets = sorted(offset for one, offset in places.values() if one == partition)
        assert offsets == list(range(len(offsets))), "offsets are dense"


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def take(consumer: KafkaConsumer, consumed: list[tuple[int, int, int]], count: int) -> None:
    """Consume until there are so many, and commit them."""

    def is_whole() -> bool:
        for records in consumer.poll(500, max_records=count - len(consumed)).values():
            consumed.extend((record.partition, record.offset, int(record.value)) for record in records)
        return len(consumed) == count

    wait_until(is_whole, f"{count} records were consumed", 120)
    consumer.commit()
