"""``holdfast topic`` against a real ``holdfast serve``."""

from collections.abc import Iterator

import pytest

from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
from tests.servers.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service"), settings={"SNS": "true"}) as running:
        yield running


@cases_of(__file__)
def test_transcript(server: Server, transcript: Transcript) -> None:
    replay(transcript, ServiceShell(server))
