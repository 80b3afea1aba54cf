"""One service for all tests of this folder; each uses queues of its own."""

from collections.abc import Iterator

import pytest

from tests.servers.server import Server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service"), settings={"SEGMENT_BYTES": str(1 << 21)}) as running:
        yield running
