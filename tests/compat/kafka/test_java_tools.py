"""Kafka's command-line tools at a real service: topics, console producer and consumer, groups, configurations."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.builds import QUICK_START
from tests.compat.kafka.java import jars
from tests.compat.kafka.sessions import StreamServer
from tests.servers.server import clean_environment

TOOL_SECONDS = 100
TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"

Tool = Callable[..., list[str]]


@pytest.fixture
def tool(stream_server: StreamServer, tmp_path: Path) -> Tool:
    """Function that runs a tool, and returns the lines of its output."""
    sign_in = stream_server.sign_in()
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={sign_in.mechanism}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{sign_in.user}" password="{sign_in.password}";\n'
    )

    def run(name: str, *arguments: str, given: str = "") -> list[str]:
        server = ["--bootstrap-server", f"127.0.0.1:{sign_in.port}", "--command-config", str(file)]
        done = subprocess.run(
            ["java", *QUICK_START, "-cp", f"{jars()}/*", name, *server, *arguments],
            env=clean_environment(),
            input=given,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if line]

    return run


@pytest.mark.long
def test_topics_records_and_groups(tool: Tool) -> None:
    created = tool(TOPICS, "--create", "--topic", "tools", "--partitions", "2", "--config", "retention.ms=3600000")
    assert created == ["Created topic tools."]
    head, *partitions = tool(TOPICS, "--describe", "--topic", "tools")
    assert "PartitionCount: 2" in head
    assert "retention.ms=3600000" in head
    assert len(partitions) == 2
    lines = [f"key{number}:value {number}" for number in range(6)]
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool(PRODUCER, "--topic", "tools", *keyed, given="\n".join(lines) + "\n")
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"]
    group = ["--group", "tools-group", "--from-beginning", "--max-messages", "6"]
    assert sorted(tool(CONSUMER, "--topic", "tools", *group, *shown)) == lines
    ends = tool(OFFSETS, "--topic", "tools")
    assert sum(int(line.split(":")[2]) for line in ends) == 6
    assert "tools-group" in tool(GROUPS, "--list")
    described = [line.split() for line in tool(GROUPS, "--describe", "--group", "tools-group") if "tools-group" in line]
    lags = {int(row[2]): (row[3], row[5]) for row in described if row[0] == "tools-group"}
    assert lags == {int(line.split(":")[1]): (line.split(":")[2], "0") for line in ends}
    reset = ["--group", "tools-group", "--topic", "tools", "--reset-offsets", "--to-earliest", "--execute"]
    tool(GROUPS, *reset)
    again = tool(CONSUMER, "--topic", "tools", "--group", "tools-group", "--max-messages", "6", *shown)
    assert sorted(again) == lines
    tool(GROUPS, "--delete", "--group", "tools-group")
    assert "tools-group" not in tool(GROUPS, "--list")


@pytest.mark.long
def test_configurations_partitions_and_deletion(tool: Tool, tmp_path: Path) -> None:
    tool(TOPICS, "--create", "--topic", "changed", "--partitions", "1")
    entity = ["--entity-type", "topics", "--entity-name", "changed"]
    tool(CONFIGS, *entity, "--alter", "--add-config", "retention.ms=7200000")
    assert any("retention.ms=7200000" in line for line in tool(CONFIGS, *entity, "--describe"))
    tool(CONFIGS, *entity, "--alter", "--delete-config", "retention.ms")
    assert not any("retention.ms=7200000" in line for line in tool(CONFIGS, *entity, "--describe"))
    tool(TOPICS, "--alter", "--topic", "changed", "--partitions", "3")
    assert "PartitionCount: 3" in tool(TOPICS, "--describe", "--topic", "changed")[0]
    tool(PRODUCER, "--topic", "changed", "--compression-codec", "zstd", given="a\nb\nc\n")
    ends = {int(line.split(":")[1]): int(line.split(":")[2]) for line in tool(OFFSETS, "--topic", "changed")}
    partition, end = max(ends.items(), key=lambda one: one[1])
    wanted = tmp_path / "records.json"
    wanted.write_text(
        f'{{"partitions": [{{"topic": "changed", "partition": {partition}, "offset": {end}}}], "version": 1}}'
    )
    tool(DELETE_RECORDS, "--offset-json-file", str(wanted))
    first = tool(OFFSETS, "--topic", "changed", "--time", "earliest")
    assert f"changed:{partition}:{end}" in first
    tool(TOPICS, "--delete", "--topic", "changed")
    assert "changed" not in tool(TOPICS, "--list")
