"""The SQS calls of the scenarios, as jobs of :mod:`bench.load`.

Inputs are concatenated as bytes: bodies are plain ASCII, and queue URLs and receipt handles are sent back as the JSON
text received, with its escapes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from bench.load import BenchJobFailed, Call, Job, Jobs, LoadAnswer
from tests.servers.signing import RequestSigner

BODY_BYTES = 256
BATCH = 10

_HANDLE = re.compile(rb'"ReceiptHandle"\s*:\s*("[^"\\]+(?:\\.[^"\\]*)*")')
_FAILED = re.compile(rb'"Failed"\s*:\s*\[\s*\{')
_FILL = b"x" * (BODY_BYTES - 20)


class Bodies:
    """Unique message bodies of exactly 256 bytes."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __next__(self) -> bytes:
        return b"%020d" % next(self._count) + _FILL


class Groups:
    """The FIFO members of one message: groups in turn, and a unique deduplication id."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._count = itertools.count()

    def __next__(self) -> bytes:
        number = next(self._count)
        return b',"MessageGroupId":"g%d","MessageDeduplicationId":"d%d"' % (number % self._groups, number)


class Standard:
    """The members of a standard queue's message: none."""

    def __next__(self) -> bytes:
        return b""


Extra = Groups | Standard
"""Generates the members of a message in addition to its body."""


def _checked(answer: LoadAnswer) -> bytes:
    if answer.status == 200 and _FAILED.search(answer.body):
        raise BenchJobFailed(repr(answer.body[:300]))
    return answer.body


class Sqs:
    """Generates jobs for the queues of one server."""

    def __init__(self, signer: RequestSigner, extra: Extra | None = None) -> None:
        self._signer = signer
        self._bodies = Bodies()
        self._extra: Extra = extra or Standard()

    def send(self, urls: Iterator[str]) -> Jobs:
        """Return jobs of SendMessage, one queue after the other, until there are no more."""

        def job(url: str) -> Job:
            answer = yield self._send(url)
            return int(answer.status == 200)

        def jobs() -> Job | None:
            url = next(urls, None)
            return None if url is None else job(url)

        return jobs

    def send_batch(self, urls: Iterator[str], messages: int | None = None) -> Jobs:
        """Return jobs of SendMessageBatch of 10; ``messages`` ends the load when as many are sent."""
        left = itertools.repeat(None) if messages is None else itertools.repeat(None, -(-messages // BATCH))

        def job() -> Job:
            body = _checked((yield self._send_batch(next(urls))))
            return body.count(b'"MessageId"')

        return lambda: None if next(left, 0) == 0 else job()

    def receive_and_delete(self, url: str, messages: int | None = None) -> Jobs:
        """Return jobs of ReceiveMessage of 10 with DeleteMessageBatch; ``messages`` ends the load when as many are
        received.
        """
        received = 0

        def job() -> Job:
            nonlocal received
            answer = yield self._receive(url)
            handles = _HANDLE.findall(answer.body)
            if not handles:
                return 0
            received += len(handles)
            _checked((yield self._delete_batch(url, handles)))
            return len(handles)

        return lambda: job() if messages is None or received < messages else None

    def mixed(self, url: str) -> Jobs:
        """Return jobs of ten SendMessage, a ReceiveMessage of 10, and a DeleteMessage for each.  Counts each message
        once.
        """

        def job() -> Job:
            for _ in range(BATCH):
                yield self._send(url)
            answer = yield self._receive(url)
            handles = _HANDLE.findall(answer.body)
            for handle in handles:
                yield self._call("DeleteMessage", url, b',"ReceiptHandle":' + handle)
            return len(handles)

        return job

    def long_poll(self, urls: Iterator[str], wait_seconds: int) -> Jobs:
        """Return jobs of ReceiveMessage with a wait."""

        def job() -> Job:
            yield self._call("ReceiveMessage", next(urls), b',"WaitTimeSeconds":%d' % wait_seconds)
            return 0

        return job

    def create_queues(self, names: Iterator[str]) -> Jobs:
        """Return jobs of CreateQueue for each of the names."""

        def job(name: str) -> Job:
            yield "CreateQueue", self._signer.request("CreateQueue", b'{"QueueName":"%s"}' % name.encode())
            return 0

        def jobs() -> Job | None:
            name = next(names, None)
            return None if name is None else job(name)

        return jobs

    def _call(self, action: str, url: str, members: bytes) -> Call:
        return action, self._signer.request(action, b'{"QueueUrl":"%s"%s}' % (url.encode(), members))

    def _send(self, url: str) -> Call:
        return self._call("SendMessage", url, b',"MessageBody":"%s"%s' % (next(self._bodies), next(self._extra)))

    def _send_batch(self, url: str) -> Call:
        entries = b",".join(
            b'{"Id":"%d","MessageBody":"%s"%s}' % (n, next(self._bodies), next(self._extra)) for n in range(BATCH)
        )
        return self._call("SendMessageBatch", url, b',"Entries":[%s]' % entries)

    def _receive(self, url: str) -> Call:
        return self._call("ReceiveMessage", url, b',"MaxNumberOfMessages":%d' % BATCH)

    def _delete_batch(self, url: str, handles: list[bytes]) -> Call:
        entries = b",".join(b'{"Id":"%d","ReceiptHandle":%s}' % entry for entry in enumerate(handles))
        return self._call("DeleteMessageBatch", url, b',"Entries":[%s]' % entries)


def counted(jobs: Jobs, count: int) -> Jobs:
    """Return the first ``count`` jobs only."""
    left = iter(range(count))
    return lambda: None if next(left, None) is None else jobs()
