"""The supervisor of several processes, with substitute children."""

import asyncio
import logging
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from holdfast.http.listener import bind
from holdfast.process import child, supervisor
from holdfast.process.child import Orders
from holdfast.process.serve import Prepared
from holdfast.settings import Settings
from tests.holdfast.process import substitute_child


async def test_a_child_that_hangs_before_it_is_ready_is_killed_and_the_start_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast")
    monkeypatch.setattr(supervisor, "STARTS_SECONDS", 1)
    monkeypatch.setattr(supervisor, "python", lambda: ("sh", "-c", "exec sleep 1000"))
    hangs = supervisor.Supervisor(Settings(data=tmp_path, frontends=2), bind("127.0.0.1", 0))
    async with asyncio.timeout(60):
        assert await hangs.run(cast(Prepared, None)) == 1
    assert [record.message.partition(" pid=")[0] for record in caplog.records] == [
        "backend does not answer and is killed",
        "the service cannot continue: backend did not start (killed by SIGKILL)",
    ]


async def test_connections_of_both_ports_are_divided_together_and_arrive_by_different_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves = asyncio.Event()
    monkeypatch.setattr(supervisor, "python", lambda: (sys.executable, substitute_child.__file__))
    monkeypatch.setattr(supervisor, "greet", lambda *_: serves.set())
    sockets, kafka_sockets = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    port, kafka_port = (bound[0].getsockname()[1] for bound in (sockets, kafka_sockets))
    settings = Settings(data=tmp_path, frontends=2, kafka_port=kafka_port)
    started = supervisor.Supervisor(settings, sockets, kafka_sockets)
    running = asyncio.create_task(started.run(cast(Prepared, None)))
    writers: list[asyncio.StreamWriter] = []

    async def connect(port: int) -> tuple[str, str]:
        """Return the process that got the connection, and the message that it arrived with."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        name, _, message = (await reader.readline()).decode().strip().partition(": ")
        return name, message

    async with asyncio.timeout(60):
        await serves.wait()
        found = [await connect(one) for _ in range(4) for one in (port, kafka_port)]
        started.stop_or_quit(15)
        assert await running == 0
    assert Counter(message for _, message in found) == {"connection": 4, "kafka connection": 4}
    assert Counter(name for name, _ in found) == {"frontend-1": 4, "frontend-2": 4}
    assert all(bound.fileno() == -1 for bound in (*sockets, *kafka_sockets)), "they are closed"
    for writer in writers:
        writer.close()


def test_a_frontend_that_does_not_run_takes_no_connection_of_kafka() -> None:
    orders = Orders(
        name="frontend-1",
        frontend=True,
        settings=Settings(),
        secret=bytes(32),
        line=-1,
        supervisor=1,
        frontends=2,
        first=False,
    )
    frontend = supervisor.Child(orders)
    seat = supervisor.KafkaSeat(frontend)
    seat.load += 1
    with socket.socket() as accepted:
        assert not seat.is_ready
        assert not seat.give(accepted)
    assert frontend.load == 1


def test_the_messages_between_releases_stay_as_they_are() -> None:
    """During an upgrade children of one release answer to a supervisor of another."""
    assert (child.CONNECTION, child.KAFKA_CONNECTION) == (b"connection", b"kafka connection")
    assert (child.RELOAD, child.DRAIN, child.LEAVE, child.METRICS) == (b"reload", b"drain", b"leave", b"metrics")
    assert (child.READY, child.IN_PLACE, child.LOAD, child.METRICS_READ) == (b"ready", b"settled", b"load ", b"told")
