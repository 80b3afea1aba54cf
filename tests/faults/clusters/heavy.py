"""Messages near 1 MiB, with small ones between them, transferred between queues of different nodes.

They are in FIFO groups, or in standard queues, whose number of partitions can change meanwhile.  One call between two
nodes carries 4 MiB, so each batch of these is split, and a group has to stay in order across the split.  Each round
has three queues of its own, whose first partitions have different owners if possible.  All messages are sent to
``yard``, transferred as dead letters to ``pile``, and by a move task to ``goal``.  There they are received, each
once and, if they are in groups, in order.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tests.closing import closing
from tests.faults.tools.bodies import body_of
from tests.faults.tools.client import CallRefused, Client, Endpoint, InDoubt, Unreachable, arn_of, url_of

BIG_BYTES = 1_000_000
SMALL_BYTES = 2_000
PATTERN = (BIG_BYTES, BIG_BYTES, BIG_BYTES, SMALL_BYTES, BIG_BYTES, SMALL_BYTES, BIG_BYTES, SMALL_BYTES, SMALL_BYTES)
"""Lengths of a group's messages, repeated: after one that exceeds the 4 MiB there are some that would still fit."""
GROUP_MESSAGES = 16
GROUPS = 2
STALL_SECONDS = 90.0
"""Time without any progress after which a transfer counts as stuck."""
POLL_SECONDS = 0.3
NAMES_MAX = 20
"""Maximum number of queues that are created to find three with different owners."""
DEAD_AFTER_SECONDS = 1
VISIBILITY_SECONDS = 30

_rounds = itertools.count(1)


class HeavyMoves:
    """One round on a running service.  ``owner_of`` returns the node that owns a queue."""

    def __init__(
        self, endpoint: Endpoint, owner_of: Callable[[str], str], *, fifo: bool = True, groups: int = GROUPS
    ) -> None:
        self.received: list[str] = []
        """Keys, in the order of receipt."""
        self._owner_of = owner_of
        self._endpoint = endpoint
        self._client = Client(endpoint, invocation_ids=True)
        self._fifo = fifo
        self._groups = groups
        self._random = Random(0)
        self._name = f"heavy{next(_rounds)}"
        self._sent: dict[str, str] = {}
        """Message ids by key, in the order of sending."""

    async def run(self, meanwhile: Callable[[str, str, str], object] = lambda yard, pile, goal: None) -> None:
        """Run the round.  ``meanwhile`` gets the names of the queues, and is called during the transfers.

        Raises AssertionError if a promise was broken, and TimeoutError if messages do not arrive.
        """
        async with closing(self._client):
            yard, pile, goal = await self._queues()
            for number in range(GROUP_MESSAGES):
                for group in range(self._groups):
                    await self._send(yard, f"g{group}", number)
            busy = asyncio.create_task(asyncio.to_thread(meanwhile, yard, pile, goal))
            await self._bury(yard, pile)
            await self._redrive(pile, goal)
            await self._take(goal)
            await busy
            left = {queue: await self._client.stored(url_of(queue)) for queue in (yard, pile, goal)}
            assert not any(left.values()), f"all were deleted, and there still are {left}"
            assert sorted(self.received) == sorted(self._sent)
            for group in range(self._groups if self._fifo else 0):
                of_group = f"{self._name}-g{group}-"
                sent = [key for key in self._sent if key.startswith(of_group)]
                assert [key for key in self.received if key.startswith(of_group)] == sent, "out of order"
            for queue in (yard, pile, goal):
                await self._call("DeleteQueue", queue)

    # --- the queues ---------------------------------------------------------------------------------------

    async def _queues(self) -> tuple[str, str, str]:
        """Create three queues, on three nodes if there are that many; returns their names."""
        by_owner: dict[str, str] = {}
        names: list[str] = []
        while len(by_owner) < 3 and len(names) < NAMES_MAX:
            name = f"{self._name}-{len(names)}{'.fifo' if self._fifo else ''}"
            await self._call("CreateQueue", "", QueueName=name, Attributes={"FifoQueue": "true"} if self._fifo else {})
            names.append(name)
            by_owner.setdefault(await asyncio.to_thread(self._owner_of, name), name)
        chosen = list(by_owner.values())
        chosen += [name for name in names if name not in chosen][: 3 - len(chosen)]
        yard, pile, goal = chosen
        for name in set(names) - set(chosen):
            await self._call("DeleteQueue", name)
        policy = json.dumps({"deadLetterTargetArn": arn_of(pile), "maxReceiveCount": 1})
        await self._call(
            "SetQueueAttributes",
            yard,
            Attributes={"RedrivePolicy": policy, "VisibilityTimeout": str(DEAD_AFTER_SECONDS)},
        )
        return yard, pile, goal

    async def _send(self, queue: str, group: str, number: int) -> None:
        key = f"{self._name}-{group}-{number}"
        length = PATTERN[number % len(PATTERN)] - self._random.randrange(1000)
        ids = {"MessageGroupId": group, "MessageDeduplicationId": key} if self._fifo else {}
        answer = await self._call("SendMessage", queue, MessageBody=body_of(key, length), **ids)
        self._sent[key] = answer["MessageId"]

    # --- from queue to queue ------------------------------------------------------------------------------

    async def _bury(self, yard: str, pile: str) -> None:
        """Receive all messages until they are dead letters."""

        async def left() -> int:
            await self._call("ReceiveMessage", yard, MaxNumberOfMessages=10)
            return len(self._sent) - await self._client.stored(url_of(pile))

        await _until_none(left, f"messages that are not yet dead letters in {pile}")

    async def _redrive(self, pile: str, goal: str) -> None:
        """Move them, by as many tasks as that takes."""

        async def left() -> int:
            count = await self._client.stored(url_of(pile))
            if count:
                try:
                    await self._client.call("StartMessageMoveTask", SourceArn=arn_of(pile), DestinationArn=arn_of(goal))
                except (CallRefused, InDoubt, Unreachable):
                    pass  # a task is running, or a process is unavailable
            return count

        await _until_none(left, f"messages in {pile}")

    async def _take(self, goal: str) -> None:
        """Receive all in order, and delete them."""

        async def left() -> int:
            received = await self._client.receive_all(url_of(goal), delete=True, VisibilityTimeout=VISIBILITY_SECONDS)
            for key, message in received:
                assert key in self._sent, f"received what was not sent: {message['Body'][:60]!r}"
                assert key not in self.received, f"{key} came again after its delete, or while it was hidden"
                self.received.append(key)
            return len(self._sent) - len(self.received)

        await _until_none(left, f"messages not yet received from {goal}")

    # --- calls --------------------------------------------------------------------------------------------

    async def _call(self, action: str, queue: str, **parameters: Any) -> dict[str, Any]:
        """Repeat an idempotent call until it is answered."""
        if queue:
            parameters["QueueUrl"] = url_of(queue)
        return await self._client.repeated(action, **parameters)


async def _until_none(left: Callable[[], Awaitable[int]], what: str) -> None:
    """Repeat ``left`` until it returns 0.  Raises TimeoutError if it returns the same number for too long."""
    before, changed_at = -1, time.monotonic()
    while count := await left():
        if count != before:
            before, changed_at = count, time.monotonic()
        elif time.monotonic() - changed_at > STALL_SECONDS:
            raise TimeoutError(f"{count} {what}, for {STALL_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)
