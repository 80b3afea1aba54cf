"""A child process's communication with its supervisor."""

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.process.child import CONNECTION, KAFKA_CONNECTION, READY, Orders, SupervisorSocket, encode
from holdfast.settings import Settings


async def test_a_connection_without_a_file_descriptor_is_logged_and_the_next_one_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel drops the file descriptor if a process has reached its maximum."""
    caplog.set_level(logging.ERROR, "holdfast")
    supervisor, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, accepted = socket.socketpair()
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    with supervisor, ours, client, accepted:
        line = SupervisorSocket(ours)
        try:
            line.open(taken.put_nowait)
            assert supervisor.recv(64) == READY
            supervisor.send(CONNECTION)
            socket.send_fds(supervisor, [CONNECTION], [accepted.fileno()])
            (await taken.get()).close()
        finally:
            asyncio.get_running_loop().remove_reader(ours.fileno())
    assert [record.message for record in caplog.records] == [
        "a connection was closed because there are too many open files"
    ]


async def test_connections_arrive_by_the_message_of_their_protocol() -> None:
    supervisor, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, accepted = socket.socketpair()
    taken: asyncio.Queue[tuple[str, socket.socket]] = asyncio.Queue()

    def take(protocol: str) -> Callable[[socket.socket], None]:
        return lambda accepted: taken.put_nowait((protocol, accepted))

    with supervisor, ours, client, accepted:
        line = SupervisorSocket(ours)
        try:
            line.open(take("HTTP"), take_kafka=take("Kafka"))
            for message, protocol in ((KAFKA_CONNECTION, "Kafka"), (CONNECTION, "HTTP"), (KAFKA_CONNECTION, "Kafka")):
                socket.send_fds(supervisor, [message], [accepted.fileno()])
                found, given = await taken.get()
                given.close()
                assert found == protocol
        finally:
            asyncio.get_running_loop().remove_reader(ours.fileno())


def test_without_its_supervisor_a_backend_does_not_begin(tmp_path: Path) -> None:
    """The supervisor dies after sending the parameters, before the child asks the kernel to be killed with it."""
    supervisor, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with supervisor, line:
        # The shell is the child's parent, and ends just after Python's start.
        shell = subprocess.Popen(
            ["sh", "-c", 'exec 3<&0; "$0" -m holdfast.process.child backend <&3 3<&- &', sys.executable],
            stdin=subprocess.PIPE,
            pass_fds=(line.fileno(),),
        )
        orders = Orders(
            name="backend",
            frontend=False,
            settings=Settings(data=tmp_path),
            secret=bytes(32),
            line=line.fileno(),
            supervisor=shell.pid,
            frontends=1,
            first=False,
        )
        assert shell.wait(60) == 0
        line.close()
        assert shell.stdin is not None
        with shell.stdin:
            shell.stdin.write(encode(orders))
        supervisor.settimeout(60)
        assert supervisor.recv(64) == b"", "it has ended, and not said that it is ready"
    assert list(tmp_path.iterdir()) == []
