"""``holdfast message`` against a real ``holdfast serve``."""

import os
import re
import signal
import threading
from pathlib import Path
from unittest import mock

from httpcore._synchronization import ThreadLock

from frontend.sqs.protocol.limits import MESSAGE_BYTES_MAX
from holdfast.commandline.call_thread import THREAD_NAME
from tests.holdfast.command import PipedCommand, holdfast, interrupted_by_signals
from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
from tests.servers.server import Server

FILES = {
    "file": "from a file: \u00fc\n\n".encode(),
    "bytes": b"\xff\xfe",
    "large": b"x" * (MESSAGE_BYTES_MAX + 1),
    "hostile": "a\x9d0;title\n[red]b\u202ec\x9b2J".encode(),
}


@cases_of(__file__)
def test_transcript(server: Server, transcript: Transcript, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    files = {name: str(tmp_path / name) for name in FILES}
    replay(transcript, ServiceShell(server), nowhere="nowhere", **files)


def test_a_tail_that_is_terminated_or_refused_prints_its_position(tmp_path: Path) -> None:
    with Server(tmp_path / "service") as server:
        client = server.client()
        url = client.create_queue(QueueName="followed")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="before")
        arguments = ("message", "tail", "followed", "--data", server.data, "--endpoint", server.endpoint, "--all")
        for terminated in (True, False):
            tail = PipedCommand(*arguments)
            try:
                tail.wait_for("before\n")
                client.send_message(QueueUrl=url, MessageBody="on a later page")
                tail.wait_for("on a later page\n")
                if terminated:
                    tail.process.terminate()
                else:
                    client.delete_queue(QueueUrl=url)
                code, errors = tail.end()
            finally:
                tail.close()
            assert code == (143 if terminated else 3)
            assert "to go on from here: --after " in errors


def test_an_interrupt_in_the_connection_pool_ends_a_tail(server: Server) -> None:
    """Each use of the pool's lock is interrupted once, when the lock is taken and its block is not entered yet."""
    server.client().create_queue(QueueName="interrupted")
    uses, interrupted = 0, 0

    def enter(lock: ThreadLock) -> ThreadLock:
        nonlocal uses
        assert lock._lock.acquire(timeout=60), "the lock is never released"
        uses += 1
        if uses == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        return lock

    codes = set()
    with interrupted_by_signals(), mock.patch.object(ThreadLock, "__enter__", enter):
        while uses >= interrupted:
            uses, interrupted = 0, interrupted + 1
            codes.add(holdfast(server, "message", "tail", "interrupted", "--all", "--no-wait").code)
            for thread in threading.enumerate():
                if thread.name == THREAD_NAME:
                    thread.join(60)
                    assert not thread.is_alive()
    assert interrupted > 3, "the lock is used at the begin and at the end of a call, and at the close"
    assert codes == {0, 130}


def test_a_tail_goes_on_after_a_broken_connection_and_after_its_end(tmp_path: Path) -> None:
    with Server(tmp_path / "service") as server:
        client = server.client()
        url = client.create_queue(QueueName="followed")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="before")
        arguments = ("message", "tail", "followed", "--data", server.data, "--endpoint", server.endpoint)
        tail = PipedCommand(*arguments, "--all")
        try:
            tail.wait_for("before\n")
            client.send_message(QueueUrl=url, MessageBody="during")
            tail.wait_for("during\n")
            server.restart()
            client.send_message(QueueUrl=url, MessageBody="after a restart")
            tail.wait_for("after a restart\n")
            tail.process.send_signal(signal.SIGINT)
            code, errors = tail.end()
        finally:
            tail.close()
        assert code == 130
        assert [line.rpartition("  ")[2] for line in tail.printed.splitlines()] == [
            "before",
            "during",
            "after a restart",
        ]
        assert errors.count("; trying again\n") == errors.count("going on\n") == 1
        found = re.search(r"to go on from here: --after (\S+)\n", errors)
        assert found, errors
        client.send_message(QueueUrl=url, MessageBody="after the end")
        resumed = holdfast(server, "message", "tail", "followed", "--after", found[1], "--no-wait")
        assert resumed.out.endswith("  after the end\n")
        assert resumed.out.count("\n") == 1
