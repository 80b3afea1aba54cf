"""Commands of streams, their export and import, between real services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.frontend.kafka.test_real_service import KafkaServer
from tests.holdfast.command import holdfast
from tests.holdfast.transcripts import ServiceShell, Transcript, TwoShells, cases_of, replay
from tests.servers.server import Server

RECORDS = 3_000

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("source")) as running:
        yield running


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"REGION": "eu-west-1", "ACCOUNT": "111122223333"}
    with Server(tmp_path_factory.mktemp("target"), settings=settings) as running:
        running.region = "eu-west-1"
        yield running


@cases_of(__file__)
def test_transcript(source: KafkaServer, target: Server, tmp_path: Path, transcript: Transcript) -> None:
    replay(transcript, TwoShells(there=ServiceShell(source), here=ServiceShell(target)), folder=str(tmp_path))


def test_records_of_kafkas_clients_are_the_same_after_a_move(
    source: KafkaServer, target: Server, tmp_path: Path
) -> None:
    source.create("many", 3)
    with closing(KafkaProducer(**source.sign_in, compression_type="gzip", linger_ms=20)) as producer:
        for number in range(RECORDS):
            value = None if number % 7 == 0 else bytes([number % 256]) * (number % 90)
            headers = [("h", b"\xff"), ("h", b"")] if number % 5 == 0 else None
            producer.send(
                "many", value, b"key %d" % (number % 50), headers=headers, timestamp_ms=1_900_000_000_001 + number
            )
    exported, back = tmp_path / "many", tmp_path / "back"
    assert holdfast(source, "stream", "export", "many", "--file", exported).code == 0
    imported = holdfast(target, "stream", "import", exported)
    assert imported.code == 0, imported.err
    assert holdfast(target, "stream", "export", "many", "--file", back).code == 0
    first, second = ([json.loads(line) for line in path.read_text().splitlines()] for path in (exported, back))
    assert len(first) == RECORDS + 2
    assert first[1:] == second[1:]
