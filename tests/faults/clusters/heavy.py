"""Messages near 1 MiB in FIFO groups, with small ones between them, transferred between queues of different nodes.

One call between two nodes carries 4 MiB, so each batch of these is split, and a group has to stay in order across the
split.  Each round has three queues of its own, whose first partitions have different owners if possible.  All messages
are sent to ``yard``, transferred as dead letters to ``pile``, and by a move task to ``goal``.  There they are received,
by their ids and in order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from random import Random
from typing import Any

from tests.faults.tools.client import CallRefused, Client, Endpoint, InDoubt, Unreachable
from tests.faults.tools.ledger import MessageLedger, body_of
from tests.servers.server import ACCOUNT, REGION

BIG_BYTES = 1_000_000
SMALL_BYTES = 2_000
PATTERN = (BIG_BYTES, BIG_BYTES, BIG_BYTES, SMALL_BYTES, BIG_BYTES, SMALL_BYTES, BIG_BYTES, SMALL_BYTES, SMALL_BYTES)
"""Lengths of a group's messages, repeated: after one that exceeds the 4 MiB there are some that would still fit."""
GROUP_MESSAGES = 16
GROUPS = 2
PHASE_SECONDS = 120.0
LOOK_SECONDS = 0.3
NAMES_MOST = 20
"""Maximum number of queues that are created to find three with different owners."""
DEAD_AFTER_SECONDS = 1
VISIBILITY_SECONDS = 30

_rounds = itertools.count(1)


class HeavyMoves:
    """One round on a running service.  ``owner_of`` returns the node that owns a queue."""

    def __init__(
        self, endpoint: Endpoint, owner_of: Callable[[str], str], *, groups: int = GROUPS, seed: int = 0
    ) -> None:
        self.ledger = MessageLedger()
        self.received: list[str] = []
        """Keys, in the order of receipt."""
        self._owner_of = owner_of
        self._endpoint = endpoint
        self._client = Client(endpoint)
        self._groups = groups
        self._random = Random(seed)
        self._name = f"heavy{next(_rounds)}"
        self._sent: dict[str, str] = {}
        """Message ids by key."""

    async def run(self, meanwhile: Callable[[str, str, str], object] = lambda yard, pile, goal: None) -> None:
        """Run the round.  ``meanwhile`` gets the names of the queues, and is called during the transfers.

        Raises AssertionError if a promise was broken, and TimeoutError if messages do not arrive.
        """
        try:
            yard, pile, goal = await self._queues()
            for number in range(GROUP_MESSAGES):
                for group in range(self._groups):
                    await self._send(yard, f"g{group}", number)
            busy = asyncio.create_task(asyncio.to_thread(meanwhile, yard, pile, goal))
            await self._bury(yard, pile)
            await self._redrive(pile, goal)
            await self._take(goal)
            await busy
            left = {queue: count for queue in (yard, pile, goal) if (count := await self._stored(queue))}
            assert not left, f"all were deleted, and there still are {left}"
            self.ledger.close()
            self.ledger.check()
            assert sorted(self.received) == sorted(self._sent)
            for queue in (yard, pile, goal):
                await self._call("DeleteQueue", queue)
        finally:
            await self._client.close()

    # --- the queues ---------------------------------------------------------------------------------------

    async def _queues(self) -> tuple[str, str, str]:
        """Create three queues, on three nodes if there are that many; returns their names."""
        by_owner: dict[str, str] = {}
        names: list[str] = []
        while len(by_owner) < 3 and len(names) < NAMES_MOST:
            name = f"{self._name}-{len(names)}.fifo"
            await self._call("CreateQueue", "", QueueName=name, Attributes={"FifoQueue": "true"})
            names.append(name)
            by_owner.setdefault(await asyncio.to_thread(self._owner_of, name), name)
        chosen = list(by_owner.values())
        chosen += [name for name in names if name not in chosen][: 3 - len(chosen)]
        yard, pile, goal = chosen
        for name in set(names) - set(chosen):
            await self._call("DeleteQueue", name)
        policy = json.dumps({"deadLetterTargetArn": arn(pile), "maxReceiveCount": 1})
        await self._call(
            "SetQueueAttributes",
            yard,
            Attributes={"RedrivePolicy": policy, "VisibilityTimeout": str(DEAD_AFTER_SECONDS)},
        )
        return yard, pile, goal

    async def _send(self, queue: str, group: str, number: int) -> None:
        key = f"{self._name}-{group}-{number}"
        length = PATTERN[number % len(PATTERN)] - self._random.randrange(1000)
        self.ledger.send_begun(key, group)
        answer = await self._call(
            "SendMessage", queue, MessageBody=body_of(key, length), MessageGroupId=group, MessageDeduplicationId=key
        )
        self.ledger.sent(key, answer["MessageId"])
        self._sent[key] = answer["MessageId"]

    # --- from queue to queue ------------------------------------------------------------------------------

    async def _bury(self, yard: str, pile: str) -> None:
        """Receive all messages until they are dead letters."""

        async def is_done() -> bool:
            await self._call("ReceiveMessage", yard, MaxNumberOfMessages=10)
            return await self._stored(pile) == len(self._sent)

        await _until(is_done, f"all {len(self._sent)} messages are dead letters in {pile}")

    async def _redrive(self, pile: str, goal: str) -> None:
        """Move them, by as many tasks as that takes."""

        async def is_done() -> bool:
            if await self._stored(pile) == 0:
                return True
            try:
                await self._client.call("StartMessageMoveTask", SourceArn=arn(pile), DestinationArn=arn(goal))
            except (CallRefused, InDoubt, Unreachable):
                pass  # a task is running, or a process is unavailable
            return False

        await _until(is_done, f"all messages have left {pile}")

    async def _take(self, goal: str) -> None:
        """Receive all in order, and delete them."""

        async def is_done() -> bool:
            asked = time.monotonic()
            answer = await self._call(
                "ReceiveMessage",
                goal,
                MaxNumberOfMessages=10,
                VisibilityTimeout=VISIBILITY_SECONDS,
                MessageSystemAttributeNames=["MessageGroupId"],
            )
            answered = time.monotonic()
            groups: dict[str, list[str]] = {}
            for message in answer.get("Messages", []):
                key = self.ledger.received(
                    goal, message["Body"], message["MessageId"], asked, answered, VISIBILITY_SECONDS, True
                )
                assert key is not None, self.ledger.violations
                groups.setdefault(message["Attributes"]["MessageGroupId"], []).append(key)
                self.received += [key] if key not in self.received else []
            for group, keys in groups.items():
                self.ledger.received_in_group(group, keys)
            self.ledger.check()
            for message in answer.get("Messages", []):
                key = message["Body"].partition(" ")[0]
                self.ledger.delete_begun(key)
                await self._call("DeleteMessage", goal, ReceiptHandle=message["ReceiptHandle"])
                self.ledger.deleted(key, time.monotonic(), asked + VISIBILITY_SECONDS)
            return len(self.received) == len(self._sent)

        await _until(is_done, f"all messages are received from {goal}")

    # --- calls --------------------------------------------------------------------------------------------

    async def _stored(self, queue: str) -> int:
        answer = await self._call("GetQueueAttributes", queue, AttributeNames=["All"])
        names = ("", "NotVisible", "Delayed")
        return sum(int(answer["Attributes"][f"ApproximateNumberOfMessages{name}"]) for name in names)

    async def _call(self, action: str, queue: str, **parameters: Any) -> dict[str, Any]:
        """Repeat an idempotent call until it is answered."""
        if queue:
            parameters["QueueUrl"] = f"http://127.0.0.1/{ACCOUNT}/{queue}"
        return await self._client.repeated(action, **parameters)


def arn(queue: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"


async def _until(is_done: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PHASE_SECONDS
    while not await is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not so after {PHASE_SECONDS:g} s")
        await asyncio.sleep(LOOK_SECONDS)
