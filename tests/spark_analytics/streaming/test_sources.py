"""Sources of the stream: what of a topic is a record, and how a topic and the settings of Kafka's client are given."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from billing.lake.lake import Lake, table_of
from billing.metering.json_records import encode_calls, encode_storage
from billing.metering.storage import StorageKey, StorageRecord
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from spark_analytics import records
from spark_analytics.__main__ import main
from spark_analytics.session import frame_of, read_files
from spark_analytics.streaming import sources as module
from spark_analytics.streaming.job import arguments, source_of
from spark_analytics.streaming.sources import CONNECTOR, LakeFiles, UsageTopic, parse_properties, records_of
from tests.servers.java import spark_connector
from tests.servers.java.spark_connector import POM
from tests.servers.server import free_port

MINUTE = 1_800_000_000 // 60 * 60
ARRIVED = datetime(2027, 1, 15, 9, 1, 2, 345_000, tzinfo=UTC)
COUNTED = [
    UsageRecord(
        "node ü",
        "00" * 8,
        number,
        number % 3,
        MINUTE + 60 * number,
        UsageKey("000000000001", 'q "1"', 2**40, "fair", "SendMessage", (("team", "ä"), ("x", ""))[: number % 3]),
        tuple(2**62 + place for place in range(len(COUNTS))),
    )
    for number in range(5)
]
STORED = StorageRecord("node", 1, MINUTE, 1, StorageKey("000000000001", "q", 7, "standard"), 5, 1, 1, 0, 0, 0, 1, 1)


def test_records_of_a_topic_are_those_of_the_lake(spark: SparkSession, lake: Lake) -> None:
    lake.write_table("records.parquet", table_of(COUNTED))
    rows = [(encode_calls(record), ARRIVED) for record in COUNTED]
    raw = spark.createDataFrame(rows, "value binary, timestamp timestamp")
    found = records_of(raw)
    assert found.where(F.col("arrived") == F.lit(ARRIVED)).count() == len(COUNTED)
    of_lake = read_files(spark, lake, ["records.parquet"], records.USAGE).orderBy("sequence")
    assert found.drop("arrived").schema == records.USAGE
    assert found.drop("arrived").orderBy("sequence").toArrow().to_pylist() == of_lake.toArrow().to_pylist()


def test_anything_else_in_a_topic_is_left_out(spark: SparkSession) -> None:
    (right,) = (encode_calls(record) for record in COUNTED[:1])
    others = [
        None,
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"table": "usage"}',
        right[: len(right) // 2],
        right.replace(b'"table":"usage"', b'"table":"other"'),
        right.replace(b'"account":"000000000001"', b'"account":null'),
        right.replace(b'"minute":"', b'"minute":"x'),
        encode_storage(STORED),
    ]
    rows = [(value, ARRIVED) for value in (*others, right)]
    found = records_of(spark.createDataFrame(rows, "value binary, timestamp timestamp"))
    assert [row["sequence"] for row in found.collect()] == [COUNTED[0].sequence]


def test_a_frame_without_records_has_their_columns(spark: SparkSession) -> None:
    found = records_of(frame_of(spark, [], spark.createDataFrame([], "value binary, timestamp timestamp").schema))
    assert found.columns == [*records.USAGE.names, "arrived"]


@pytest.mark.parametrize(
    ("url", "servers", "topic"),
    [
        ("kafka://host:9092/usage", "host:9092", "usage"),
        ("kafka://a:1,b.example:29092/a.b_c-1", "a:1,b.example:29092", "a.b_c-1"),
    ],
)
def test_a_topic_is_given_by_its_url(url: str, servers: str, topic: str) -> None:
    found = UsageTopic.parse(url)
    assert (found.servers, found.topic) == (servers, topic)


@pytest.mark.parametrize(
    "url", ["", "host:9092/usage", "kafka://host/usage", "kafka://host:1", "kafka://host:1/", "kafka://u:secret@h:1/t"]
)
def test_another_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="--from is like kafka://host:9092/holdfast-usage") as refused:
        UsageTopic.parse(url)
    assert "secret" not in str(refused.value)


def test_settings_of_kafkas_client_are_those_of_a_properties_file() -> None:
    assert parse_properties(
        "# sign-in\n\n! of the job\nsecurity.protocol = SASL_SSL\n"
        'sasl.jaas.config=Module required \\\n    username="a=b" \\\n    password="c#d";\nempty=\n'
    ) == {
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": 'Module required username="a=b" password="c#d";',
        "empty": "",
    }
    assert parse_properties("") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a=1\nmy secret", "line 2 of the settings of Kafka's client is not like name=value"),
        ("=my secret", "line 1"),
        ("a=my secret\\", "end within a value"),
    ],
)
def test_bad_settings_are_refused_without_their_values(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_properties(text)
    assert "secret" not in str(refused.value)


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args(given)


def test_the_options_name_the_source(lake: Lake, tmp_path: Path) -> None:
    assert isinstance(source_of(options(), lake, {}), LakeFiles)
    topic = "--from", "kafka://host:1/t"
    variables = {"HOLDFAST_KAFKA_SETTINGS": "a=of the environment"}
    found = source_of(options(*topic, "--records", "5"), lake, variables)
    assert isinstance(found, UsageTopic)
    assert (found.settings, found.records_max) == ({"a": "of the environment"}, 5)
    file = tmp_path / "client.properties"
    file.write_text("a=of the file")
    found = source_of(options(*topic, "--kafka-settings", str(file)), lake, variables)
    assert isinstance(found, UsageTopic)
    assert (found.settings, found.records_max) == ({"a": "of the file"}, None)


def test_options_that_do_not_belong_together_are_refused(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, why in (
        (["--records", "5"], "are for a topic: name it with --from"),
        (["--kafka-settings", "x"], "are for a topic: name it with --from"),
        (["--from", "kafka://h:1/t", "--kafka-settings", str(tmp_path / "none")], "cannot be read: [Errno 2]"),
        (["--from", "h:1/t"], "--from is like kafka://"),
    ):
        with pytest.raises(SystemExit):
            main(["stream", "--lake", lake.url, *given])
        assert why in capsys.readouterr().err


def test_the_connector_is_the_one_that_tests_run() -> None:
    _, name, version = CONNECTOR.split(":")
    assert f"<artifactId>{name}</artifactId>\n      <version>{version}</version>" in POM.read_text()


def test_what_spark_lacks_for_a_topic_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, more = tmp_path / "spark", tmp_path / "more"
    for folder in (own, more):
        folder.mkdir()
    monkeypatch.setattr(module, "JARS", own)
    topic = UsageTopic.parse("kafka://host:1/t")
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", f"{more}/*")
    assert topic.missing_packages() == (CONNECTOR,)
    connector = more / "spark-sql-kafka-0-10_2.13-4.2.0.jar"
    connector.touch()
    assert topic.missing_packages() == ()
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", str(connector))
    assert topic.missing_packages() == ()
    monkeypatch.delenv("SPARK_DIST_CLASSPATH")
    assert topic.missing_packages() != ()
    (own / connector.name).touch()
    assert topic.missing_packages() == ()


@pytest.mark.usefixtures("spark")
def test_a_topic_that_cannot_be_read_ends_the_job_with_an_error_without_secrets(
    lake: Lake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark_connector.jars()
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="me" password="my-secret-word";\n'
        "default.api.timeout.ms=1000\nrequest.timeout.ms=500\n"
    )
    topic = "--from", f"kafka://127.0.0.1:{free_port()}/holdfast-usage"
    assert main(["stream", "--lake", lake.url, "--once", *topic, "--kafka-settings", str(settings)]) == 1
    printed = "".join(capfd.readouterr())
    assert "TimeoutException" in printed
    assert "my-secret-word" not in printed
