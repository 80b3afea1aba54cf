"""Clients of SNS's protocol that publish during faults, with consumers of the subscribed queues.

Two topics, ``news`` (standard) and ``ledger.fifo``, each with queues that get everything, what matches a filter policy,
or nothing, some raw and some in SNS's JSON, and one queue that is subscribed only sometimes.  Publishers publish singly
and in batches.  Those of the FIFO topic repeat a publication with its deduplication id until it is acknowledged, others
do that with the id of the call, or not at all.

:meth:`TopicTraffic.verify` stops publishing, waits until all has arrived and the queues are empty, and has the history
judged (:mod:`tests.histories.publications`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

from tests.closing import closing
from tests.faults.tools.bodies import body_of, key_of
from tests.faults.tools.client import CallRefused, Endpoint, InDoubt, Unreachable, arn_of, url_of
from tests.faults.tools.topic_client import PublishingClient, topic_arn_of
from tests.histories.publications.history import (
    FanoutHistory,
    FanoutPublication,
    FanoutQueue,
    FanoutReceive,
    SubscribedTime,
)
from tests.histories.publications.verdict import judge_publications
from tests.histories.violations import Violations

NEWS, LEDGER = "news", "ledger.fifo"
NEWS_RAW = "news-raw"
"""A subscribed queue that a campaign may split."""
KINDS = ("a", "b", "c")
"""Values of the attribute by which subscriptions filter; ``d`` is that of none."""
VISIBILITY_SECONDS = 5
WAIT_SECONDS = 1
RETRY_SECONDS = 0.05
SETTLE_SECONDS = 120.0
EMPTY_SECONDS = 1.5
"""Time for which the queues have to be empty."""
REPEATED_SECONDS_MAX = 200.0
"""Time for which a publication is repeated; the service recognizes it for 300 s."""
SUBSCRIBED_SECONDS = 6.0
"""Time for which the queues that come and go are subscribed, and are not, at least."""
OWED_MAX = 300
"""Acknowledged publications that have not arrived, above which publishers wait."""
REFUSALS_MAX = 20


class RecipientQueue(FanoutQueue):
    """A queue of the traffic with the attributes of its subscription."""

    raw = False
    is_changing = False
    """True if it is subscribed only sometimes."""
    arn = ""
    """ARN of its subscription, while it has one."""


def _queue(name: str, topic: str, kinds: str | None = None, *, raw: bool, changing: bool = False) -> RecipientQueue:
    made = RecipientQueue(name, topic, name.endswith(".fifo"), None if kinds is None else frozenset(kinds))
    made.raw, made.is_changing = raw, changing
    return made


def recipient_queues() -> list[RecipientQueue]:
    return [
        _queue("news-all", NEWS, raw=False),
        _queue(NEWS_RAW, NEWS, "ab", raw=True),
        _queue("news-rare", NEWS, "c", raw=False),
        _queue("news-never", NEWS, "d", raw=True),
        _queue("news-changing", NEWS, raw=True, changing=True),
        _queue("ledger-all.fifo", LEDGER, raw=True),
        _queue("ledger-some.fifo", LEDGER, "ac", raw=False),
        _queue("ledger-never.fifo", LEDGER, "d", raw=False),
        _queue("ledger-standard", LEDGER, raw=True),
        _queue("ledger-changing.fifo", LEDGER, raw=True, changing=True),
    ]


class TopicTraffic:
    """The clients of two topics of a service.  Use :meth:`running`."""

    def __init__(
        self, server: Endpoint, seed: int, *, publishers: int = 2, groups: int = 6, pause_seconds: float = 0.05
    ) -> None:
        """``publishers``: of each topic; ``pause_seconds``: pause of a publisher after a call, at most twice that."""
        self.queues = recipient_queues()
        self.history = FanoutHistory([*self.queues])
        self.failures: list[str] = []
        """Answers that clients must not get."""
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._server = server
        self._ports = itertools.cycle(server.ports)
        self._random = Random(f"{seed} topics")
        self._publishers = publishers
        self._groups = [f"g{number}" for number in range(groups)]
        self._pause_seconds = pause_seconds
        self._names = 0
        self._numbers: Counter[str] = Counter()
        """Publications by group."""
        self._publishing = asyncio.Event()
        self._busy = 0
        """Number of publishers with a publication under way."""
        self._tasks: list[asyncio.Task[None]] = []

    # --- running ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TopicTraffic]:
        """Create topics, queues and subscriptions, and run the clients until the block ends."""
        async with closing(self._client()) as client:
            await self._create(client)
        self._publishing.set()
        work: list[Callable[[PublishingClient], Awaitable[None]]] = [
            *[self._publish_news] * self._publishers,
            *[
                lambda client, own=self._groups[at :: self._publishers]: self._publish_ledger(client, own)
                for at in range(self._publishers)
            ],
            *[lambda client, queue=queue: self._consume(client, queue) for queue in self.queues],
            self._change_subscriptions,
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
                raise TimeoutError(f"{what}: not so after {seconds:g} s; {dict(self.counts)} {dict(self.errors)}")
            await asyncio.sleep(0.02)

    async def arrived(self, count: int) -> None:
        """Wait until this many more publications of each topic were acknowledged and have arrived everywhere."""
        goals = {topic: self.counts[f"whole in {topic}"] + count for topic in (NEWS, LEDGER)}

        def is_so() -> bool:
            for topic in goals:
                acknowledged = self.counts[f"acknowledged in {topic}"]
                owed = sum(self.history.publications[name].topic == topic for name in self.history.owed)
                self.counts[f"whole in {topic}"] = max(self.counts[f"whole in {topic}"], acknowledged - owed)
            return all(self.counts[f"whole in {topic}"] >= goal for topic, goal in goals.items())

        await self.until(is_so, f"{count} more publications of each topic have arrived")

    def acknowledged(self, counts: Mapping[str, int]) -> int:
        """Return the number of acknowledged publications in earlier or current :attr:`counts`."""
        return sum(counts.get(f"acknowledged in {topic}", 0) for topic in (NEWS, LEDGER))

    async def verify(self) -> Violations:
        """Stop publishing, wait until all has arrived, judge the whole history, and publish again."""
        self._publishing.clear()
        try:
            await self.until(lambda: self._busy == 0, "the publishers have their answers")
            await self.until(lambda: not self.history.owed, "all publications have arrived")
        except TimeoutError as error:
            self.failures.append(str(error))
        await self._empty()
        verdict = await asyncio.to_thread(judge_publications, self.history)
        self._publishing.set()
        return verdict

    async def check(self) -> None:
        """Verify.  Raise AssertionError with all violations, if there are any."""
        (await self.verify()).check()
        assert not self.failures, self.failures

    async def _empty(self) -> None:
        """Wait until all queues are empty for some time, so that a second delivery would have been received."""
        end = time.monotonic() + SETTLE_SECONDS
        empty_since: float | None = None
        async with closing(self._client()) as client:
            while empty_since is None or time.monotonic() < empty_since + EMPTY_SECONDS:
                left = {queue.name: n for queue in self.queues if (n := await client.stored(url_of(queue.name)))}
                empty_since = None if left else empty_since or time.monotonic()
                if left and time.monotonic() > end:
                    self.failures.append(f"after {SETTLE_SECONDS:g} s of receiving there still are {left}")
                    return
                await self.until(lambda: True, "the clients run")

    # --- calls --------------------------------------------------------------------------------------------

    def _client(self) -> PublishingClient:
        return PublishingClient(self._server, next(self._ports))

    async def _with_client(self, run: Callable[[PublishingClient], Awaitable[None]]) -> None:
        async with closing(self._client()) as client:
            await run(client)

    async def _create(self, client: PublishingClient) -> None:
        await client.sns("CreateTopic", {"Name": NEWS})
        fifo = {"Attributes.entry.1.key": "FifoTopic", "Attributes.entry.1.value": "true"}
        await client.sns("CreateTopic", {"Name": LEDGER, **fifo})
        for queue in self.queues:
            statement = {
                "Effect": "Allow",
                "Principal": {"Service": "sns.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": arn_of(queue.name),
                "Condition": {"ArnEquals": {"aws:SourceArn": topic_arn_of(queue.topic)}},
            }
            attributes = {
                "VisibilityTimeout": str(VISIBILITY_SECONDS),
                "Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
                **({"FifoQueue": "true"} if queue.fifo else {}),
            }
            await client.call("CreateQueue", QueueName=queue.name, Attributes=attributes)
            await self._subscribe(client, queue)

    async def _attempt(
        self, client: PublishingClient, action: str, parameters: Mapping[str, str], invocation: str = ""
    ) -> ET.Element | None:
        """Return the answer; None if the effect is in doubt.  Raises Unreachable if the server did not get the call."""
        try:
            return await client.sns(action, parameters, invocation)
        except Unreachable:
            self.errors["no connection"] += 1
            await asyncio.sleep(RETRY_SECONDS)
            raise
        except InDoubt:
            self.errors["connection lost"] += 1
        except CallRefused as refused:
            if refused.status < 500:
                raise
            self.errors[f"{refused.status} {refused.code}"] += 1
        await asyncio.sleep(RETRY_SECONDS)
        return None

    # --- publishers ---------------------------------------------------------------------------------------

    async def _gate(self) -> None:
        self._busy -= 1
        await asyncio.sleep(2 * self._pause_seconds * self._random.random())
        await self._publishing.wait()
        while len(self.history.owed) > OWED_MAX:
            await asyncio.sleep(RETRY_SECONDS)
            await self._publishing.wait()
        self._busy += 1

    def _new(self, topic: str, group: str | None = None) -> FanoutPublication:
        self._names += 1
        kind = self._random.choice(KINDS)
        number = 0
        if group is not None:
            number = self._numbers[group] = self._numbers[group] + 1
        one = FanoutPublication(f"{topic}-{self._names}", topic, kind, time.monotonic(), group, number)
        self.history.publishing(one)
        return one

    async def _publish_news(self, client: PublishingClient) -> None:
        self._busy += 1
        while True:
            await self._gate()
            ones = [self._new(NEWS) for _ in range(self._random.choice((1, 1, 1, 5)))]
            invocation = str(uuid.uuid4()) if self._random.random() < 0.5 else ""
            await self._publish(client, ones, invocation, repeated=bool(invocation))

    async def _publish_ledger(self, client: PublishingClient, groups: Sequence[str]) -> None:
        self._busy += 1
        while True:
            await self._gate()
            group = self._random.choice(groups)
            ones = [self._new(LEDGER, group) for _ in range(self._random.choice((1, 1, 1, 5)))]
            await self._publish(client, ones, "", repeated=True)

    async def _publish(
        self, client: PublishingClient, ones: Sequence[FanoutPublication], invocation: str, *, repeated: bool
    ) -> None:
        """Publish a message or a batch; ``repeated``: until it is acknowledged."""
        topic = ones[0].topic
        parameters = {"TopicArn": topic_arn_of(topic)}
        if len(ones) == 1:
            action, expected = "Publish", 1
            parameters |= self._members(ones[0])
        else:
            action, expected = "PublishBatch", len(ones)
            for at, one in enumerate(ones, 1):
                prefix = f"PublishBatchRequestEntries.member.{at}."
                parameters |= {f"{prefix}{name}": value for name, value in self._members(one).items()}
                parameters[f"{prefix}Id"] = str(at)
        end = time.monotonic() + REPEATED_SECONDS_MAX
        was_sent = False
        while True:
            try:
                answer = await self._attempt(client, action, parameters, invocation)
                was_sent = True
            except Unreachable:
                answer = None
            if answer is not None:
                if len(answer.findall(".//MessageId")) != expected:
                    self.failures.append(f"publications failed: {ET.tostring(answer)!r}")
                    return
                answered = time.monotonic()
                for one in ones:
                    self.history.answered(one.name, answered)
                self.counts[f"acknowledged in {topic}"] += len(ones)
                return
            if not repeated or time.monotonic() > end:
                break
        if not was_sent:
            for one in ones:
                self.history.refused(one.name)

    def _members(self, one: FanoutPublication) -> dict[str, str]:
        random = Random(one.name)  # the same for each repetition
        members = {
            "Message": body_of(one.name, random.randrange(3_000) if random.random() < 0.2 else random.randrange(300)),
            "MessageAttributes.entry.1.Name": "kind",
            "MessageAttributes.entry.1.Value.DataType": "String",
            "MessageAttributes.entry.1.Value.StringValue": one.kind,
        }
        if one.group is not None:
            members |= {"MessageGroupId": one.group, "MessageDeduplicationId": one.name}
        return members

    # --- consumers ----------------------------------------------------------------------------------------

    async def _consume(self, client: PublishingClient, queue: RecipientQueue) -> None:
        """Receive and delete; there is one consumer of each queue, so that the order of receives is known."""
        while True:
            wanted: dict[str, Any] = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": WAIT_SECONDS}
            answer = await self._try(client, "ReceiveMessage", queue, **wanted)
            messages = [] if answer is None else answer.get("Messages", [])
            for message in messages:
                self._received(queue, message)
            if messages:
                entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
                await self._try(client, "DeleteMessageBatch", queue, Entries=entries)

    def _received(self, queue: RecipientQueue, message: dict[str, Any]) -> None:
        body = message["Body"]
        if not queue.raw:
            body = json.loads(body)["Message"]
        name = key_of(body) or f"strange {body[:60]!r}"
        self.history.received(FanoutReceive(queue.name, name, message["MessageId"], time.monotonic()))
        self.counts["received"] += 1

    async def _try(
        self, client: PublishingClient, action: str, queue: RecipientQueue, **parameters: Any
    ) -> dict[str, Any] | None:
        try:
            return await client.call(action, QueueUrl=url_of(queue.name), **parameters)
        except (Unreachable, InDoubt):
            pass
        except CallRefused as refused:
            if refused.status != 503:
                raise
        await asyncio.sleep(RETRY_SECONDS)
        return None

    # --- subscriptions ------------------------------------------------------------------------------------

    async def _subscribe(self, client: PublishingClient, queue: RecipientQueue) -> None:
        members = {"TopicArn": topic_arn_of(queue.topic), "Protocol": "sqs", "Endpoint": arn_of(queue.name)}
        attributes = {"RawMessageDelivery": "true" if queue.raw else "false"}
        if queue.kinds is not None:
            attributes["FilterPolicy"] = json.dumps({"kind": sorted(queue.kinds)})
        for at, (name, value) in enumerate(attributes.items(), 1):
            members |= {f"Attributes.entry.{at}.key": name, f"Attributes.entry.{at}.value": value}
        queue.times.append(SubscribedTime(time.monotonic()))
        answer = await self._until_answered(client, "Subscribe", members)
        queue.times[-1].answered = time.monotonic()
        queue.arn = answer.findtext(".//SubscriptionArn") or ""
        self.counts["subscribed"] += 1

    async def _change_subscriptions(self, client: PublishingClient) -> None:
        """End and begin the subscriptions of some queues, in turn."""
        changing = itertools.cycle([queue for queue in self.queues if queue.is_changing])
        while True:
            await asyncio.sleep(SUBSCRIBED_SECONDS * (0.5 + self._random.random()))
            await self._publishing.wait()
            queue = next(changing)
            if queue.times[-1].end_answered < time.monotonic():
                await self._subscribe(client, queue)
                continue
            queue.times[-1].end_asked = time.monotonic()
            await self._until_answered(client, "Unsubscribe", {"SubscriptionArn": queue.arn})
            queue.times[-1].end_answered = time.monotonic()

    async def _until_answered(self, client: PublishingClient, action: str, members: Mapping[str, str]) -> ET.Element:
        """Repeat a call that changes a subscription until it is answered."""
        while True:
            try:
                answer = await self._attempt(client, action, members)
            except Unreachable:
                continue
            if answer is not None:
                return answer
