"""The usage stream of a real service, end to end: its records are those of the lake, also with kill -9 in between.

Several tenants call SQS, and a client of Kafka's calls topics.  The service publishes their usage to a topic of its
own, which Spark's stream and a consumer group of another client read.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from billing.lake import live
from billing.lake.lake import Lake
from billing.lake.live import summed
from billing.lake.upload import main as upload
from billing.metering.buffers import finished
from billing.metering.spool import waiting
from billing.metering.usage import COUNTS
from spark_analytics.__main__ import main
from spark_analytics.streaming.sources import KAFKA_VARIABLE
from tests.compat.kafka.scenarios import step
from tests.compat.kafka.sessions import ClientSignIn
from tests.compat.kafka.tried import QUICK_CLIENT, TRIED
from tests.frontend.kafka.kafka_access import KafkaAccess
from tests.servers.java import spark_connector
from tests.servers.server import ACCOUNT, Server, free_port
from tests.servers.waiting import wait_until
from tests.system.usage.metered_calls import MeteredCaller, calls_of, usage_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(900, func_only=True)]

TOPIC = "holdfast-usage"
PARTITIONS = 3
TENANTS = 2
CALLS_BETWEEN = 100
"""Number of answered calls between two faults."""
RECORDS = 200
NEVER = "86400"
IDS = {
    "usage": ("node", "boot", "sequence", "slot"),
    "storage": ("partition", "minute", "epoch", "sequence"),
}


@pytest.fixture(scope="module", autouse=True)
def connector() -> None:
    spark_connector.jars()


class StreamingServer(KafkaAccess, Server):
    """A Holdfast in one process that serves Kafka's clients, and publishes its usage."""

    def __init__(self, folder: Path) -> None:
        self.kafka_port = free_port()
        self.lake = folder / "lake"
        settings = {
            "KAFKA_PORT": str(self.kafka_port),
            "KAFKA_PARTITIONS": str(PARTITIONS),
            "USAGE": "on",
            "USAGE_LAKE": os.fspath(self.lake),
            "USAGE_UPLOAD_SECONDS": "1",
            "USAGE_STREAM": TOPIC,
        }
        super().__init__(folder, settings)

    @property
    def outbox(self) -> Path:
        return self.data / "usage-stream"

    @property
    def waiting_files(self) -> list[Path]:
        return sorted(self.outbox.glob("*.outbox"))

    def has_grown(self, sizes: dict[str, int]) -> bool:
        """Return whether a file of recorded storage is larger than at its first call with these sizes.

        It grows with each minute until its process ends.
        """
        files = {path.name: path.stat().st_size for path in (self.data / "usage").glob("*.storage")}
        return any(size > sizes.setdefault(name, size) for name, size in files.items())

    def published(self) -> int:
        """Number of records in the topic."""
        streams = self.rest("GET", "/v1/streams")["streams"]
        if TOPIC not in (stream["name"] for stream in streams):
            return 0
        client = performed(self, *(step("offsets", topic=TOPIC, partition=number) for number in range(PARTITIONS)))
        return sum(end for _, end in client)


class _Caller(MeteredCaller):
    def begin(self) -> None:
        self.call("CreateQueue", QueueName="q", tags={"team": self.account})
        self.call("CreateQueue", QueueName="kept")
        self.call("SendMessage", QueueUrl="kept", MessageBody="x" * 1000)
        super().begin()

    def work(self) -> None:
        self.call("SendMessage", QueueUrl="q", MessageBody="x")
        self.call("GetQueueUrl", QueueName="there is none!")
        for message in self.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10).get("Messages", ()):
            self.call("DeleteMessage", QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])
        self.stopping.wait(0.05)  # leaves CPU time to starting servers


def performed(server: StreamingServer, *steps: Any) -> list[Any]:
    """Return what another client gets from these steps."""
    sign_in = ClientSignIn(server.kafka_port, "SCRAM-SHA-256", server.access_key_id, server.secret_access_key)
    results = TRIED[QUICK_CLIENT].program().run(sign_in, {"steps": list(steps)})["steps"]
    assert not [one for one in results if isinstance(one, dict) and one.keys() & {"failure", "error"}], results
    return results


def consumed(server: StreamingServer, group: str) -> list[dict[str, Any]]:
    """Return the values of all records, as a consumer group reads them."""
    (found,) = performed(server, step("consume", topic=TOPIC, group=group, count=server.published()))
    return [json.loads(value) for _, _, value in found]


def stored(lake: Path, table: str) -> list[dict[str, Any]]:
    """Return the records of a table of the lake, as JSON has them."""
    return [
        {"table": table, **row, "minute": f"{row['minute']:%Y-%m-%dT%H:%M:%SZ}", "tags": dict(row["tags"])}
        for row in ds.dataset(lake / table).to_table().to_pylist()
    ]


def once(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return records by their id."""
    return {(row["table"], *(row[name] for name in IDS[row["table"]])): row for row in rows}


def streamed(lake: Path, *source: str) -> live.Live:
    """Return the live tables of the streaming job over all that is there."""
    given = ["stream", "--lake", str(lake), "--once", "--partitions", "2", "--late-after", "7200", *source]
    assert main(given) == 0
    found = live.read(Lake(str(lake)))
    assert found is not None
    return found


def sums(found: live.Live) -> Counter[tuple[Any, ...]]:
    """Return the counts of each day, account, kind and action."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for day, rows in found.days.items():
        for row in summed([rows], ["account", "kind", "action"]).to_pylist():
            for name in ("records", *COUNTS):
                counted[day, row["account"], row["kind"], row["action"], name] += row[name]
    return +counted


def minutes(found: live.Live) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in found.minutes.to_pylist())


@pytest.fixture
def callers() -> Iterator[list[_Caller]]:
    made: list[_Caller] = []
    yield made
    for caller in made:
        caller.stop()


def test_the_usage_stream_has_the_records_of_the_lake_though_the_service_is_killed(
    tmp_path: Path, spark: SparkSession, callers: list[_Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    with StreamingServer(tmp_path) as server:
        monkeypatch.setenv(
            KAFKA_VARIABLE,
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
            f'  username="{server.access_key_id}" password="{server.secret_access_key}";\n',
        )
        from_topic = tmp_path / "from-topic"
        topic = "--from", f"kafka://127.0.0.1:{server.kafka_port}/{TOPIC}"

        def wait_for_answers() -> None:
            before = answered()
            wait_until(lambda: answered() >= before + CALLS_BETWEEN, "calls are answered")

        def answered() -> int:
            return sum(caller.answered.total() for caller in callers)

        for number in range(TENANTS):
            account = server.rest("POST", "/v1/tenants", {"name": f"Tenant {number}"})["account"]
            key = server.rest("POST", f"/v1/keys?account={account}", {"name": "app", "role": "admin"})
            keys = {"aws_access_key_id": key["id"], "aws_secret_access_key": key["secret"]}
            callers.append(_Caller(server, account, **keys))
        for caller in callers:
            caller.begin()
        server.create("orders", 2)
        server.produce("orders", 0, RECORDS)
        server.consume("orders", RECORDS, "readers")
        wait_for_answers()
        server.kill()
        server.start()  # it uploads and publishes what the killed one has counted
        wait_until(lambda: server.published() > 0, "usage is published", 120)
        first = streamed(from_topic, *topic)
        assert sums(first), "the job has read what was published until now"
        wait_for_answers()
        server.produce("orders", RECORDS, RECORDS)
        server.kill()
        server.start()
        wait_for_answers()
        sizes: dict[str, int] = {}
        wait_until(lambda: server.has_grown(sizes), "a minute of storage is recorded", 180)
        for caller in callers:
            caller.stop()
        assert server.stop() == 0

        # The rest is uploaded while no service runs, and some of it is in the outbox twice, as after a kill between the
        # publication and its note.
        where = ["--outbox", str(server.outbox), str(server.data / "usage"), str(server.lake)]
        wait_until(lambda: upload(where) == 0 and not any(finished(server.data / "usage")), "all is uploaded")
        assert server.waiting_files, "the service has not published the rest yet"
        for number, path in enumerate(server.waiting_files):
            shutil.copyfile(path, path.with_name(f"{number:012d}-again-{path.name.rpartition('-')[2]}"))
        server.settings["HOLDFAST_USAGE_UPLOAD_SECONDS"] = NEVER
        server.start()
        wait_until(lambda: not server.waiting_files, "all is published", 120)
        assert waiting(server.outbox).files == 0

        found = consumed(server, "billing")
        by_topic = streamed(from_topic, *topic)
        assert server.stop() == 0
    by_lake = streamed(server.lake)

    expected = once([*stored(server.lake, "usage"), *stored(server.lake, "storage")])
    own = {id_ for id_, row in expected.items() if row["table"] == "storage" and row["queue"] == TOPIC}
    assert own, "the topic's own storage is in the lake"
    for id_ in own:
        del expected[id_]
    assert once(found) == expected
    assert len(found) > len(expected), "some were published twice"
    assert {row["queue"] for row in found if row["table"] == "storage"} >= {"kept", "orders"}
    assert not [row for row in found if row["queue"] == TOPIC and row["action"] == "Produce"], "it is not counted"

    assert sums(by_topic) == sums(by_lake)
    assert minutes(by_topic) == minutes(by_lake)
    assert len(by_topic.late) == len(by_lake.late) == 0
    billed = calls_of(usage_in(server.lake))
    totals: Counter[tuple[str, str]] = Counter()
    for (_, account, _, action, name), count in sums(by_topic).items():
        if name in ("calls", "refused", "throttled", "failed"):
            totals[account, action] += count
    assert totals == +billed
    for caller in callers:
        for action in ("SendMessage", "ReceiveMessage", "DeleteMessage"):
            name = caller.account, action
            assert 0 < caller.answered[name] <= totals[name] <= caller.answered[name] + caller.in_doubt[name], name
    assert totals[ACCOUNT, "Produce"] >= 2, "the client's own"
