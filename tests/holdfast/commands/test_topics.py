"""``holdfast topic`` against a real ``holdfast serve``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.commandline.client import CommandFailed
from holdfast.migrate.definition import ArnMapping
from holdfast.migrate.topic_files import read_topics
from metadata_service.arn import QueueArn
from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
from tests.servers.server import Server

HEADING = '{"type":"topics","version":1,"region":"r","account":"111111111111","exported":""}'
TOPIC = '{"type":"topic","name":"t","attributes":{},"tags":{}}'
SUBSCRIPTION = '{"type":"subscription","topic":"t","protocol":"sqs","endpoint":"e","attributes":{}}'
END = '{"type":"end","topics":0,"subscriptions":0}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service")) as running:
        yield running


@cases_of(__file__)
def test_transcript(server: Server, transcript: Transcript, tmp_path: Path) -> None:
    replay(transcript, ServiceShell(server), folder=str(tmp_path))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "line 1"),
        (["{}"], "line 1"),
        ([HEADING], "incomplete"),
        ([HEADING.replace('"version":1', '"version":2'), END], "format version 2"),
        ([HEADING, TOPIC, END], "the end line counts"),
        ([HEADING, SUBSCRIPTION, '{"type":"end","topics":0,"subscriptions":1}'], "not in the file"),
        ([HEADING, TOPIC.replace("tags", "tag"), END], "line 2"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, lines: list[str], problem: str) -> None:
    file = tmp_path / "file"
    file.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(CommandFailed, match=problem):
        read_topics(file)


def test_references_are_mapped_to_the_other_account() -> None:
    mapping = ArnMapping(QueueArn("r", "111111111111", ""), QueueArn("s", "222222222222", ""))
    policy = (
        '{"Principal":"111111111111","Resource":"arn:aws:sns:r:111111111111:t","Other":"arn:aws:sns:r:333333333333:t"}'
    )
    assert mapping.mapped_values({"Policy": policy, "DisplayName": "111111111111"}) == {
        "Policy": policy.replace("r:111111111111", "s:222222222222").replace("111111111111", "222222222222"),
        "DisplayName": "111111111111",
    }
    assert mapping.mapped_text("arn:aws:sqs:r:111111111111:q") == "arn:aws:sqs:s:222222222222:q"
