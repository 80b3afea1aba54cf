"""The line between a process and its supervisor, from the process's side."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from holdfast.child import CONNECTION, READY, Line


async def test_a_connection_that_finds_no_room_for_its_file_is_told_and_the_next_one_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel drops the file descriptor where a process has as many as it may."""
    caplog.set_level(logging.ERROR, "holdfast")
    supervisor, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, accepted = socket.socketpair()
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    with supervisor, ours, client, accepted:
        line = Line(ours)
        try:
            line.open(taken.put_nowait)
            assert supervisor.recv(64) == READY
            supervisor.send(CONNECTION)
            socket.send_fds(supervisor, [CONNECTION], [accepted.fileno()])
            (await taken.get()).close()
        finally:
            asyncio.get_running_loop().remove_reader(ours.fileno())
    assert [record.message for record in caplog.records] == ["a connection is closed: there are too many open files"]
