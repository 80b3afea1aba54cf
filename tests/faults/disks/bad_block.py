"""An unreadable block of 4 KiB in a backend's journal: the messages in it are lost, and no others.

A separate queue is filled with small messages, several to a block, and its backend is killed, so that they are only on
the disk.  Then a block that contains only these messages becomes bad.  The messages in it are found by the journal's
format; their ids are compared with the received ones, and with those that the backend's log reports as lost.
"""

import asyncio
import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from backend.engine.ids import message_id, salt_of
from backend.engine.records import Message, decode_head
from backend.journal.local.segments import segment_name
from backend.journal.rows import RecordView, place_of
from metadata_service.models import Queue
from tests.closing import closing
from tests.faults.campaign.forms import OneMachine
from tests.faults.campaign.owners import queue_of
from tests.faults.tools import places
from tests.faults.tools.bodies import body_of
from tests.faults.tools.client import Client, url_of
from tests.servers.server import ACCOUNT

BLOCK_BYTES = 4096
BATCHES = 12
BATCH = 10
BODY_BYTES = 1200
ATTEMPTS = 5
"""Maximum number of blocks tried, until one was not copied to another segment before it became bad."""
EMPTY_RECEIVES = 5
"""Consecutive empty receives after which a queue without messages in flight counts as empty."""

_rounds = itertools.count(1)


class MessagePlace(NamedTuple):
    """Position of a message in the journal."""

    id: str
    number: int
    file: Path
    start: int
    end: int


class BadBlock:
    """One round on a running form."""

    def __init__(self, form: OneMachine) -> None:
        self.lost: set[str] = set()
        """Ids of the messages in the block."""
        self._form = form
        self._client = Client(form.endpoint)

    async def run(self) -> None:
        """Fill a queue, make a block bad, and compare.  Raises AssertionError if anything else was lost."""
        async with closing(self._client):
            for _ in range(ATTEMPTS):
                await self._round(f"blocks{next(_rounds)}")
                if self.lost:
                    assert 3 <= len(self.lost) <= 5, "about four lie in a block"
                    return
            raise LookupError(f"in {ATTEMPTS} rounds each block was copied to another place before it was bad")

    async def _round(self, name: str) -> None:
        form, url = self._form, url_of(name)
        await self._client.repeated("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "600"})
        sent = await self._fill(name, url)
        backend = await asyncio.to_thread(form.owner_of, name)
        await asyncio.to_thread(form.kill, backend)
        queue = await asyncio.to_thread(queue_of, form.settings(), ACCOUNT, name)
        stored = await asyncio.to_thread(find, form.server.data, queue)
        file, block = choose(stored)
        inside = {one for one in stored if one.file == file and overlaps(one, block)}
        try:
            form.bad_block(backend, file, block)
            drained = await self._client.receive_all(url, empty_answers=EMPTY_RECEIVES, delete=True, WaitTimeSeconds=1)
            received = {message["MessageId"]: key for key, message in drained}
        finally:
            form.bad_block(backend, None)
        self.lost = sent.keys() - received.keys()
        assert self.lost <= {one.id for one in inside}, (
            f"lost beside block {block} of {file}: {sorted(self.lost - {one.id for one in inside})}"
        )
        assert all(received[id] == key for id, key in sent.items() if id in received)
        assert received.keys() <= sent.keys()
        named = reported(form.log_text(), queue.partitions[0].id)
        assert named == {one.number for one in inside if one.id in self.lost}, (
            f"the log names {sorted(named)}, and lost are {sorted(self.lost)} of {sorted(inside)}"
        )
        assert not self.lost or self.lost == {one.id for one in inside}
        await self._client.repeated("DeleteQueue", QueueUrl=url)

    async def _fill(self, name: str, url: str) -> dict[str, str]:
        """Send messages; returns their keys by id."""
        sent: dict[str, str] = {}
        for batch in range(BATCHES):
            keys = [f"{name}-{batch * BATCH + number}" for number in range(BATCH)]
            entries = [{"Id": key, "MessageBody": body_of(key, BODY_BYTES)} for key in keys]
            answer = await self._client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
            sent |= {one["MessageId"]: one["Id"] for one in answer["Successful"]}
        assert len(sent) == BATCHES * BATCH
        return sent


def find(data: Path, queue: Queue) -> set[MessagePlace]:
    """Find the messages of a queue with one partition in the journal: the latest position of each."""
    while True:
        try:
            return _found(data, queue)
        except FileNotFoundError:
            continue  # the server has deleted a segment meanwhile


def _found(data: Path, queue: Queue) -> set[MessagePlace]:
    partition, salt = queue.partitions[0].id, salt_of(queue.handle_key)
    found: dict[str, MessagePlace] = {}
    for folder in places.logs(data):
        for row in places.rows_of(folder):
            for position, record in row.records:
                if not isinstance(record, RecordView) or (record.partition, record.kind) != (partition, Message.KIND):
                    continue
                head = decode_head(record.kind, record.head)
                assert isinstance(head, Message)
                start = place_of(position).offset
                one = message_id(partition, head.number, salt)
                file = folder / segment_name(row.segment)
                found[one] = MessagePlace(one, head.number, file, start, start + record.size_bytes)
    return set(found.values())


def choose(stored: set[MessagePlace]) -> tuple[Path, int]:
    """Choose a block with several of these messages, and nothing else."""
    covered: defaultdict[tuple[Path, int], int] = defaultdict(int)
    for one in stored:
        for block in range(one.start // BLOCK_BYTES, (one.end - 1) // BLOCK_BYTES + 1):
            start, end = max(one.start, block * BLOCK_BYTES), min(one.end, (block + 1) * BLOCK_BYTES)
            covered[one.file, block] += end - start
    full = [place for place, size_bytes in covered.items() if size_bytes == BLOCK_BYTES]
    assert full, "no block has only these messages"
    return sorted(full)[len(full) // 2]


def overlaps(one: MessagePlace, block: int) -> bool:
    """Return whether the message is at least partly in the block."""
    return one.start < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < one.end


def reported(log: str, partition: int) -> set[int]:
    """Numbers of the messages of this partition that a backend reports as lost."""
    return {int(number) for number in re.findall(rf"message (\d+) of partition {partition} is quarantined", log)}
