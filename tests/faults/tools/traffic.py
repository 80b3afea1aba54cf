"""Clients that use a server like applications, during faults, and check its promises.

Three queues: ``work`` (standard) with its dead-letter queue ``dead``, and ``orders.fifo``.  Producers send single
messages and batches, small and large, with and without delay.  Consumers receive by long polls, delete, leave messages
alone, and let some become dead letters, which a move task returns from time to time.  On the FIFO queue each group has
one producer that repeats a send with its deduplication id until it is acknowledged.

:meth:`Traffic.verify` stops sending, waits until all queues are empty, and has the history of all calls judged
(:mod:`tests.histories`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

from tests.closing import closing
from tests.faults.tools.bodies import body_of, key_of
from tests.faults.tools.client import CallRefused, Client, Endpoint, InDoubt, Unreachable, arn_of, url_of
from tests.faults.tools.recorder import Recorder, RecordingClient
from tests.histories.history import Rules
from tests.histories.verdict import Verdict

VISIBILITY_SECONDS = 2
EMPTY_SECONDS = 1.5
"""Time for which the queues have to be empty: longer than a move between them takes on a busy machine."""
RECEIVES_MAX = 3
"""``maxReceiveCount`` of ``work``."""
WAIT_SECONDS = 1
RETRY_SECONDS = 0.05
MOVE_EVERY_SECONDS = 1.0
SETTLE_SECONDS = 120.0
OPEN_MAX = 3000
"""Default limit of undeleted messages, above which producers wait for the consumers."""
REFUSALS_MAX = 20
"""Number of refused calls whose texts are kept."""
REPEATED_SECONDS_MAX = 200.0
"""Maximum time after the first send at which it is repeated on purpose; the service recognizes it for 300 s."""

WORK, DEAD, ORDERS = "work", "dead", "orders.fifo"
QUEUES = (WORK, DEAD, ORDERS)

Message = dict[str, Any]


class Traffic:
    """The clients of one server.  Use :meth:`running`."""

    def __init__(
        self,
        server: Endpoint,
        seed: int,
        *,
        body_bytes: int = 20_000,
        producers: int = 3,
        groups: int = 12,
        early_share: float = 0.0,
        open_max: int = OPEN_MAX,
    ) -> None:
        """Set up the clients.  ``early_share``: see :class:`~tests.histories.history.Rules`."""
        self.recorder = Recorder(VISIBILITY_SECONDS)
        self.failures: list[str] = []
        """Violations that do not depend on the history."""
        self.counts: Counter[str] = Counter()
        self.refusals: list[str] = []
        """The first calls that were refused with 503, and when, in seconds since the start."""
        self.unseen: list[tuple[float, float]] = []
        """See :class:`~tests.histories.history.Rules`."""
        self._server = server
        self._rules = Rules(
            moves=frozenset({(WORK, DEAD), (DEAD, WORK)}), receives_max=((WORK, RECEIVES_MAX),), early_share=early_share
        )
        self._ports = itertools.cycle(server.ports)
        self._seed = seed
        self._random = Random(seed)
        self._body_bytes = body_bytes
        self._producers = producers
        self._groups = groups
        self._open_max = open_max
        self._open: set[str] = set()
        """Keys whose send was attempted, and whose delete was not acknowledged, since the queues were last empty."""
        self._clients: list[Client] = []
        self._sending = asyncio.Event()
        self._busy = 0
        """Number of producers with a call under way."""
        self._names = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = time.monotonic()

    # --- running ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Traffic]:
        """Create the queues, and run the clients until the block ends."""
        await self._create_queues()
        self._sending.set()
        groups = [f"g{number}" for number in range(self._groups)]
        work: list[Callable[[Client], Awaitable[None]]] = [
            *[self._produce] * self._producers,
            *[lambda client, own=groups[at::3]: self._produce_orders(client, own) for at in range(3)],
            *[lambda client: self._consume(client, WORK)] * 3,
            lambda client: self._consume(client, DEAD),
            *[lambda client: self._consume(client, ORDERS)] * 2,
            self._move,
        ]
        self._tasks = [asyncio.create_task(self._with_client(run)) for run in work]
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until the condition is true, while the clients run.  Raises a client's error, and TimeoutError."""
        end = time.monotonic() + seconds
        while not condition():
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not so after {seconds:g} s; {dict(self.counts)}")
            await asyncio.sleep(0.005)

    async def answered(self, calls: int) -> None:
        """Wait until this many more calls were answered."""
        goal = self.counts["answered"] + calls
        await self.until(lambda: self.counts["answered"] >= goal, f"{calls} calls were answered")

    async def verify(self) -> Verdict:
        """Stop sending, empty all queues, judge the whole history, and send again."""
        self._sending.clear()
        async with closing(self._client()) as client:
            await self.until(lambda: self._busy == 0, "the producers have their answers")
            end = time.monotonic() + SETTLE_SECONDS
            empty_since: float | None = None
            # A message on its way from one queue to another is counted in neither of them.
            while empty_since is None or time.monotonic() < empty_since + EMPTY_SECONDS:
                left = {queue: count for queue in QUEUES if (count := await client.stored(url_of(queue)))}
                empty_since = None if left else empty_since or time.monotonic()
                if left and time.monotonic() > end:
                    self.failures.append(f"after {SETTLE_SECONDS:g} s of receiving there still are {left}")
                    break
                await self.until(lambda: True, "the clients run")
        self._open.clear()
        verdict = self.recorder.judge(replace(self._rules, unseen=tuple(self.unseen)))
        self._sending.set()
        return verdict

    def check_no_call_failed(self, *, refusals_excused: int = 0) -> None:
        """Raise AssertionError if a call was refused, beyond so many, or had no answer."""
        failed = {what: self.counts[what] for what in ("in doubt", "unreachable")}
        failed["refused"] = max(0, self.counts["refused"] - refusals_excused)
        assert not any(failed.values()), "\n".join([str(failed), *self.refusals])

    async def check(self) -> None:
        """Verify.  Raise AssertionError with all violations, if there are any."""
        verdict = await self.verify()
        verdict.check()
        assert not self.failures, self.failures

    # --- calls --------------------------------------------------------------------------------------------

    def _client(self) -> RecordingClient:
        """Make a client of the next frontend, if each has a port."""
        return RecordingClient(self._server, self.recorder, next(self._ports))

    async def _create_queues(self) -> None:
        client = self._client()
        visibility = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
        policy = json.dumps({"deadLetterTargetArn": arn_of(DEAD), "maxReceiveCount": RECEIVES_MAX})
        async with closing(client):
            for queue, more in ((DEAD, {}), (WORK, {"RedrivePolicy": policy}), (ORDERS, {"FifoQueue": "true"})):
                await client.call("CreateQueue", QueueName=queue, Attributes={**visibility, **more})

    async def _with_client(self, run: Callable[[Client], Awaitable[None]]) -> None:
        async with closing(self._client()) as client:
            await run(client)

    async def _try(self, client: Client, action: str, queue: str, **parameters: Any) -> dict[str, Any] | None:
        """Return the answer; None without an answer, or if the server asked for a retry: the effect is in doubt."""
        try:
            return await self._call(client, action, queue, **parameters)
        except Unreachable:
            return None

    async def _call(self, client: Client, action: str, queue: str, **parameters: Any) -> dict[str, Any] | None:
        """Do the same, but raise Unreachable if the server did not get the call."""
        try:
            answer = await client.call(action, QueueUrl=url_of(queue), **parameters)
        except Unreachable:
            self.counts["unreachable"] += 1
            await asyncio.sleep(RETRY_SECONDS)
            raise
        except InDoubt:
            self.counts["in doubt"] += 1
        except CallRefused as refused:
            if refused.status != 503:
                raise
            self.counts["refused"] += 1
            if len(self.refusals) < REFUSALS_MAX:
                self.refusals.append(f"after {time.monotonic() - self._started_at:.1f} s: {refused}")
        else:
            self.counts["answered"] += 1
            return answer
        await asyncio.sleep(RETRY_SECONDS)
        return None

    # --- producers ----------------------------------------------------------------------------------------

    def _key(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}-{self._names}"

    def _body(self, key: str) -> str:
        # The same for each repetition, as deduplication requires; mostly small.
        random = Random(f"{self._seed} {key}")
        return body_of(key, random.randrange(self._body_bytes) if random.random() < 0.3 else random.randrange(300))

    async def _gate(self) -> None:
        self._busy -= 1
        await self._sending.wait()
        while len(self._open) > self._open_max:
            await asyncio.sleep(RETRY_SECONDS)
            await self._sending.wait()
        self._busy += 1

    async def _produce(self, client: Client) -> None:
        self._busy += 1
        while True:
            await self._gate()
            keys = [
                self._key("poison" if self._random.random() < 0.1 else "m")
                for _ in range(self._random.choice((1, 1, 1, 10)))
            ]
            self._open.update(keys)
            await self._send(client, WORK, keys)

    async def _send(self, client: Client, queue: str, keys: Sequence[str], group: str = "") -> bool:
        """Send a batch; returns True if it was acknowledged.

        What the server did not get is not open: a server that is down for long would stop the producers for ever.
        """
        entries: list[Message] = []
        for key in keys:
            entry: Message = {"Id": key, "MessageBody": self._body(key)}
            if group:
                entry |= {"MessageGroupId": group, "MessageDeduplicationId": key}
            elif self._random.random() < 0.05:
                entry["DelaySeconds"] = 1
            entries.append(entry)
        try:
            if len(entries) == 1:
                single = {name: value for name, value in entries[0].items() if name != "Id"}
                answer = await self._call(client, "SendMessage", queue, **single)
                answers = None if answer is None else [answer]
            else:
                answer = await self._call(client, "SendMessageBatch", queue, Entries=entries)
                if answer is not None and "Failed" in answer:
                    self.failures.append(f"sends of a batch failed: {answer['Failed']}")
                answers = None if answer is None else answer.get("Successful", [])
        except Unreachable:
            self._open.difference_update(keys)
            return False
        self.counts["sent"] += len(answers or ())
        return answers is not None

    async def _produce_orders(self, client: Client, groups: Sequence[str]) -> None:
        repeatable: dict[str, tuple[float, str]] = {}
        self._busy += 1
        while True:
            await self._gate()
            group = self._random.choice(groups)
            keys = [self._key(group) for _ in range(self._random.choice((1, 1, 1, 5)))]
            started_at = time.monotonic()
            self._open.update(keys)
            while not await self._send(client, ORDERS, keys, group):
                self.counts["repeated"] += 1
                self._open.update(keys)
            again = repeatable.pop(group, None)
            if again is not None and again[0] > time.monotonic() - REPEATED_SECONDS_MAX:
                await self._send(client, ORDERS, [again[1]], group)
            if self._random.random() < 0.1:
                repeatable[group] = (started_at, keys[0])

    # --- consumers ----------------------------------------------------------------------------------------

    async def _consume(self, client: Client, queue: str) -> None:
        while True:
            asked = time.monotonic()
            answer = await self._try(
                client,
                "ReceiveMessage",
                queue,
                MaxNumberOfMessages=self._random.choice((1, 10)),
                WaitTimeSeconds=WAIT_SECONDS,
                MessageSystemAttributeNames=["MessageGroupId"],
            )
            if answer is None:
                continue
            messages = self._received(answer.get("Messages", []), asked)
            settling = not self._sending.is_set()
            poison = [m for m in messages if queue == WORK and m["key"].startswith("poison") and not settling]
            kept = [m for m in messages if m not in poison]
            if not settling and self._random.random() < 0.1:
                kept = kept[: len(kept) // 2]  # the others become visible again
            if poison:
                await self._release(client, queue, poison)
            if kept:
                await self._delete(client, queue, kept)

    def _received(self, messages: list[Message], asked: float) -> list[Message]:
        """Return the messages with their keys; those that no client sent are in the history only."""
        self.counts["received"] += len(messages)
        return [
            {**message, "key": key, "claimed until": asked + VISIBILITY_SECONDS}
            for message in messages
            if (key := key_of(message["Body"])) is not None
        ]

    async def _release(self, client: Client, queue: str, messages: list[Message]) -> None:
        entries = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
            for at, message in enumerate(messages)
        ]
        await self._try(client, "ChangeMessageVisibilityBatch", queue, Entries=entries)

    async def _delete(self, client: Client, queue: str, messages: list[Message]) -> None:
        if self._random.random() < 0.3:
            for message in messages:
                try:
                    answer = await self._try(client, "DeleteMessage", queue, ReceiptHandle=message["ReceiptHandle"])
                except CallRefused as refused:
                    if not _is_expired(queue, refused.message):
                        raise
                    self.counts["expired"] += 1
                    continue
                if answer is not None:
                    self._deleted(message)
            return
        entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(messages)]
        answer = await self._try(client, "DeleteMessageBatch", queue, Entries=entries)
        if answer is None:
            return
        for one in answer.get("Successful", []):
            self._deleted(messages[int(one["Id"])])
        for one in answer.get("Failed", []):
            if not _is_expired(queue, one.get("Message", "")):
                self.failures.append(f"a delete failed: {one}")
            self.counts["expired"] += 1

    def _deleted(self, message: Message) -> None:
        """Count a delete.  After the visibility timeout it may have had no effect, if the message had moved."""
        self.counts["deleted"] += 1
        if time.monotonic() < message["claimed until"]:
            self._open.discard(message["key"])

    async def _move(self, client: Client) -> None:
        while True:
            await asyncio.sleep(MOVE_EVERY_SECONDS)
            await self._sending.wait()
            try:
                answer = await client.call("StartMessageMoveTask", SourceArn=arn_of(DEAD))
                self.counts["move tasks"] += bool(answer)
            except (Unreachable, InDoubt, CallRefused):
                pass  # a task is running, or the server is down


def _is_expired(queue: str, message: str) -> bool:
    return queue == ORDERS and "expired" in message.lower()
