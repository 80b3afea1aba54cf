"""Spark's source and sink of Kafka, in batches and as streams; another client produces and reads what they exchange."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_analytics.session import SPARK_ERRORS
from tests.compat.kafka.scenarios import NOW, ClientStep, create, numbered, places, produce, record, step
from tests.compat.kafka.sessions import ClientSignIn, StreamServer
from tests.compat.kafka.tried import QUICK_CLIENT, TRIED
from tests.servers.java import spark_connector
from tests.servers.waiting import wait_until

WAIT_SECONDS = 240.0
"""For a stream's batches, on a machine that has much else to do."""
MINUTE_MS = 60_000

pytestmark = [pytest.mark.long, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture(scope="module", autouse=True)
def connector() -> None:
    spark_connector.jars()


def options(sign_in: ClientSignIn) -> dict[str, str]:
    """Return the options with which Spark's users sign in."""
    return {
        "kafka.bootstrap.servers": f"127.0.0.1:{sign_in.port}",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": sign_in.mechanism,
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{sign_in.user}" password="{sign_in.password}";',
    }


def performed(server: StreamServer, *steps: ClientStep) -> list[Any]:
    """Return what another client gets from these steps."""
    results = TRIED[QUICK_CLIENT].program().run(server.sign_in(), {"steps": list(steps)})["steps"]
    assert len(results) == len(steps), results
    for one, result in zip(steps, results, strict=True):
        assert not (isinstance(result, dict) and result.keys() & {"failure", "error"}), (one, result)
    return results


def made(server: StreamServer, topic: str, partitions: int, count: int) -> None:
    """Create a topic whose partitions have ``count`` records each, one a minute."""
    minutes = [
        [record(f"{n}", f"key {n}", partition=partition, timestamp=NOW + n * MINUTE_MS) for n in range(count)]
        for partition in range(partitions)
    ]
    performed(
        server,
        create(topic, partitions, {"message.timestamp.after.max.ms": str(10**12)}),
        *(produce(topic, records, None) for records in minutes),
    )


def added(server: StreamServer, topic: str, first: int, count: int) -> None:
    """Produce records with the values ``value first`` and so on to partition 0."""
    performed(server, produce(topic, numbered(first, count), None))


def everything(server: StreamServer, topic: str) -> list[dict[str, Any]]:
    """Return all records of a topic, as another client reads them."""
    (partitions,) = performed(server, step("partitions", topic=topic))
    ends = performed(server, *(step("offsets", topic=topic, partition=number) for number in range(partitions)))
    wanted = [(number, end - start, start) for number, (start, end) in enumerate(ends) if end > start]
    found = performed(server, *(step("read", topic=topic, partition=n, offset=o, count=c) for n, c, o in wanted))
    return [{"partition": n, **one} for (n, _, _), of in zip(wanted, found, strict=True) for one in of]


def source(spark: SparkSession, server: StreamServer, topic: str, **more: Any) -> DataFrame:
    """Return the records of a topic, read once."""
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in more.items()}
    return spark.read.format("kafka").options(**options(server.sign_in()), subscribe=topic, **given).load()


def offsets(found: DataFrame) -> dict[int, list[int]]:
    """Return the offsets of each partition, in their order."""
    rows = found.select("partition", "offset").collect()
    return {
        partition: sorted(row.offset for row in rows if row.partition == partition)
        for partition in sorted({row.partition for row in rows})
    }


# --- batches ------------------------------------------------------------------------------------------------


def test_a_batch_is_written_with_keys_headers_partitions_and_topics(
    stream_server: StreamServer, spark: SparkSession
) -> None:
    first, second = "spark-written", "spark-written-too"
    performed(stream_server, create(first, 3), create(second, 1))
    rows = [
        (first, 0, "key", "value", [("name", b"one"), ("name", b"two")]),
        (first, 2, None, "", None),
        (first, 2, "", None, [("empty", b"")]),
        (second, 0, "ключ", "Füße" * 10_000, []),
    ]
    schema = "topic string, partition int, key string, value string, headers array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.format("kafka").options(**options(stream_server.sign_in()), includeHeaders="true").save()
    found = {topic: everything(stream_server, topic) for topic in (first, second)}
    written = [
        (topic, one["partition"], one["key"], one["value"], one["headers"]) for topic in found for one in found[topic]
    ]
    assert written == [
        (topic, partition, key, value, [[name, content.decode()] for name, content in headers or []])
        for topic, partition, key, value, headers in rows
    ]
    assert [one["offset"] for one in found[first]] == [0, 0, 1]


def test_keys_choose_the_same_partitions_as_with_kafkas_client(
    stream_server: StreamServer, spark: SparkSession
) -> None:
    topic, other = "spark-keyed", "spark-keyed-rest"
    performed(stream_server, create(topic, 5), create(other, 5))
    keys = [f"key {number}" for number in range(200)]
    frame = spark.createDataFrame([(key, "") for key in keys], "key string, value string").repartition(4)
    frame.write.format("kafka").options(**options(stream_server.sign_in()), topic=topic).save()
    stream_server.rest("POST", f"/v1/streams/{other}/records", {"records": [{"key": key, "value": ""} for key in keys]})
    of_spark, of_rest = (
        sorted((one["key"], one["partition"]) for one in everything(stream_server, name)) for name in (topic, other)
    )
    assert of_spark == of_rest
    assert [key for key, _ in of_spark] == sorted(keys)


def test_a_batch_is_read_from_and_to_positions(stream_server: StreamServer, spark: SparkSession) -> None:
    topic = "spark-read"
    made(stream_server, topic, 2, 10)
    all_of_them = {0: list(range(10)), 1: list(range(10))}
    assert offsets(source(spark, stream_server, topic)) == all_of_them
    assert offsets(source(spark, stream_server, topic, minPartitions="6")) == all_of_them
    between = {"startingOffsets": {topic: {"0": 3, "1": -2}}, "endingOffsets": {topic: {"0": 7, "1": -1}}}
    assert offsets(source(spark, stream_server, topic, **between)) == {0: [3, 4, 5, 6], 1: list(range(10))}
    at = {n: NOW + n * MINUTE_MS for n in range(11)}
    from_time = {"startingTimestamp": str(at[4] - 1), "endingTimestamp": str(at[6])}
    assert offsets(source(spark, stream_server, topic, **from_time)) == {0: [4, 5], 1: [4, 5]}
    by_partition = {
        "startingOffsetsByTimestamp": {topic: {"0": at[8], "1": at[1] + 1}},
        "endingOffsetsByTimestamp": {topic: {"0": at[10], "1": at[3]}},
    }
    assert offsets(source(spark, stream_server, topic, **by_partition)) == {0: [8, 9], 1: [2]}
    with pytest.raises(SPARK_ERRORS, match="No offset matched"):
        offsets(source(spark, stream_server, topic, startingTimestamp=str(at[10])))
    performed(stream_server, step("delete_records", topic=topic, partition=0, before=6))
    assert offsets(source(spark, stream_server, topic)) == {0: [6, 7, 8, 9], 1: list(range(10))}


def test_a_read_record_has_all_its_fields(stream_server: StreamServer, spark: SparkSession) -> None:
    topic = "spark-fields"
    sent = [
        record("value", "key", headers=[["name", "one"], ["name", "two"]]),
        record(None, "", timestamp=NOW + 1),
        record("", None, timestamp=NOW + 2),
    ]
    performed(stream_server, create(topic), produce(topic, sent[:2], None, "zstd"), produce(topic, sent[2:], None))
    found = source(spark, stream_server, topic, includeHeaders="true").orderBy("offset")
    times = F.unix_millis("timestamp").alias("ms")
    rows = found.select("key", "value", "topic", "partition", "offset", times, "headers").collect()
    assert [tuple(row)[:6] for row in rows] == [
        (b"key", b"value", topic, 0, 0, NOW),
        (b"", None, topic, 0, 1, NOW + 1),
        (None, b"", topic, 0, 2, NOW + 2),
    ]
    assert [[tuple(header) for header in row.headers or []] for row in rows] == [
        [("name", b"one"), ("name", b"two")],
        [],
        [],
    ]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_only_a_right_secret_signs_in(stream_server: StreamServer, spark: SparkSession, mechanism: str) -> None:
    topic = f"spark-{mechanism}"
    made(stream_server, topic, 1, 2)
    right = options(stream_server.sign_in(mechanism))
    wrong = {name: value.replace('password="', 'password="x') for name, value in right.items()}
    assert spark.read.format("kafka").options(**right, subscribe=topic).load().count() == 2
    with pytest.raises(SPARK_ERRORS, match="Authentication failed"):
        spark.read.format("kafka").options(**wrong, subscribe=topic).load().count()


# --- streams ------------------------------------------------------------------------------------------------


def copied(
    spark: SparkSession, server: StreamServer, topics: Sequence[str], checkpoint: Path, per_batch: int = 1000
) -> StreamingQuery:
    """Start a stream that writes the records of one topic to another."""
    given = options(server.sign_in())
    read = spark.readStream.format("kafka").options(
        **given, subscribe=topics[0], startingOffsets="earliest", maxOffsetsPerTrigger=str(per_batch)
    )
    written = read.load().select("key", "value").writeStream.format("kafka")
    return written.options(**given, topic=topics[1], checkpointLocation=str(checkpoint)).start()


@pytest.fixture
def stopping(spark: SparkSession) -> Iterator[None]:
    """Stop the streams that a test leaves running."""
    yield
    for query in spark.streams.active:
        query.stop()


def values(found: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(one["value"] for one in found)


def once(count: int) -> Counter[str]:
    return Counter(f"value {number}" for number in range(count))


def rows_read(query: StreamingQuery) -> int:
    """Records that the stream has copied since its start.  Fails if it has ended."""
    error = query.exception()
    assert error is None, error
    return sum(progress.numInputRows for progress in query.recentProgress)


@pytest.mark.usefixtures("stopping")
def test_a_stream_goes_on_from_its_checkpoint(stream_server: StreamServer, spark: SparkSession, tmp_path: Path) -> None:
    topics = "spark-from", "spark-to"
    performed(stream_server, create(topics[0], 2), create(topics[1], 2))
    added(stream_server, topics[0], 0, 50)
    query = copied(spark, stream_server, topics, tmp_path / "checkpoint")
    query.processAllAvailable()
    assert values(everything(stream_server, topics[1])) == once(50)
    added(stream_server, topics[0], 50, 50)
    query.processAllAvailable()
    query.stop()
    added(stream_server, topics[0], 100, 50)
    performed(stream_server, produce(topics[0], numbered(150, 50, 1), places(0, 50, 1)))
    assert values(everything(stream_server, topics[1])) == once(100)
    query = copied(spark, stream_server, topics, tmp_path / "checkpoint")
    query.processAllAvailable()
    assert rows_read(query) == 100, "the records before the checkpoint are not read again"
    # Spark's sink stores each record at least once.  No task was repeated here, so it is once.
    assert values(everything(stream_server, topics[1])) == once(200)


@pytest.mark.usefixtures("stopping")
def test_a_stream_runs_on_when_the_service_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    topics = "spark-killed-from", "spark-killed-to"
    with StreamServer(tmp_path / "server") as server:
        performed(server, create(topics[0], 1), create(topics[1], 2))
        added(server, topics[0], 0, 600)
        query = copied(spark, server, topics, tmp_path / "checkpoint", per_batch=50)
        for rows, first in ((0, 600), (200, 700)):
            wait_until(lambda rows=rows: rows_read(query) > rows, "the stream copies", WAIT_SECONDS)  # type: ignore[misc]
            assert rows_read(query) < 600, "it is killed while the stream copies"
            server.kill()
            server.start()
            added(server, topics[0], first, 100)
        wait_until(lambda: rows_read(query) == 800, "the stream has copied everything", WAIT_SECONDS)
        query.stop()
        found = everything(server, topics[1])
    # The query never failed, so Spark repeated no task; and what its idempotent producers repeated is stored once.
    assert values(found) == once(800)


def test_a_trigger_for_what_is_there_takes_several_batches_and_ends(
    stream_server: StreamServer, spark: SparkSession, tmp_path: Path
) -> None:
    topic = "spark-available"
    made(stream_server, topic, 2, 60)
    counts: list[int] = []

    def run() -> list[int]:
        read = spark.readStream.format("kafka").options(
            **options(stream_server.sign_in()),
            subscribe=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger="25",
        )
        query = (
            read.load()
            .writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(WAIT_SECONDS))
        taken = counts[:]
        counts.clear()
        return taken

    taken = run()
    assert sum(taken) == 120
    assert len(taken) == 5
    assert run() == []
    performed(stream_server, produce(topic, [record("last")], None))
    assert run() == [1]
