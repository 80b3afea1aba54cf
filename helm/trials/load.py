"""Clients like those of applications, boto3 with only its standard retries, and a verdict on their
observations.

Two queues, a standard one and a FIFO one: producers send single messages and batches, consumers receive by long
polls and delete, and occasionally leave a message to its visibility timeout.  All calls and answers are a
history for the checkers of :mod:`tests.histories`.

An *error* is one that an application sees: a call that failed after all of the SDK's attempts, or an entry of a
batch.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.faults.tools.bodies import body_of
from tests.faults.tools.client import CallRefused, InDoubt
from tests.faults.tools.recorder import Recorder
from tests.histories.history import Kind, Operation, Outcome, Rules
from tests.histories.verdict import Verdict
from tests.servers.server import REGION
from tests.servers.waiting import wait_until

VISIBILITY_SECONDS: Final = 15
"""Visibility timeout, longer than a call with all of its attempts, or the delay of a delete."""
WAIT_SECONDS: Final = 2
PAUSE_SECONDS: Final = 0.05
"""Pause of a producer between two calls: the pods share the machine with it."""
LEFT_SHARE: Final = 0.02
"""Share of the messages that are left to their visibility timeout."""
BODY_BYTES_MAX: Final = 4000
GROUPS_EACH: Final = 4
RECOVERY_SECONDS: Final = 120.0

WORK: Final = "work"
ORDERS: Final = "orders.fifo"


@dataclass(frozen=True)
class LoadKey:
    """A key of the service."""

    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True)
class Figures:
    """Clients' observations in a period."""

    calls: int
    errors: Counter[tuple[str, str]]
    """Number of errors by action and error code."""
    repeated: int
    """Number of retries made by the SDK."""
    stall_seconds: float
    """Longest time in which no send to one of the queues was acknowledged."""
    seconds: float


class ClientLoad:
    """Clients of one service, which run while the context is entered."""

    def __init__(
        self, endpoint: str, credentials: LoadKey, seed: int, *, visibility_seconds: int = VISIBILITY_SECONDS
    ) -> None:
        self.recorder = Recorder(visibility_seconds)
        self.errors: Counter[tuple[str, str]] = Counter()
        self.repeated = 0
        self.acknowledged = 0
        self._endpoint = endpoint
        self._credentials = credentials
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Event()
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._idle = [threading.Event() for _ in range(4)]
        """One per producer, set while it waits after its answer."""
        first = self._client()
        visibility = {"VisibilityTimeout": str(visibility_seconds)}
        fifo = {"FifoQueue": "true", **visibility}
        self._urls = {
            name: first.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
            for name, attributes in ((WORK, visibility), (ORDERS, fifo))
        }

    def __enter__(self) -> Self:
        self._sending.set()
        for number, idle in enumerate(self._idle):
            self._start(self._produce if number % 2 else self._produce_orders, number, idle)
        for queue in (WORK, WORK, ORDERS, ORDERS):
            self._start(self._consume, queue)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._sending.set()
        for thread in self._threads:
            thread.join()

    # --- usage ---

    def answered(self, sends: int) -> None:
        """Wait until ``sends`` more sends are acknowledged.  Raises clients' errors, and TimeoutError."""
        goal = self.acknowledged + sends
        self._until(lambda: self.acknowledged >= goal, f"{sends} more sends are acknowledged")

    def during(self, work: Callable[[], None]) -> Figures:
        """Clients' observations while ``work`` runs.  Raises its errors, and clients' errors."""
        started_at, calls, errors, repeated = time.monotonic(), self.recorder.calls, self.errors.copy(), self.repeated
        work()
        self._until(lambda: True, "the clients run")
        ended = time.monotonic()
        return Figures(
            self.recorder.calls - calls,
            self.errors - errors,
            self.repeated - repeated,
            self.recorder.longest_stall_seconds(started_at, ended),
            ended - started_at,
        )

    def verify(self) -> Verdict:
        """Stop sending, wait until both queues are empty, and judge the history; then the clients continue."""
        self._sending.clear()
        self._until(lambda: all(idle.is_set() for idle in self._idle), "the producers have their answers")
        client = self._client()
        self._until(lambda: not self._stored(client), "the queues are empty")
        verdict = self.recorder.judge(Rules())
        self._sending.set()
        return verdict

    def _stored(self, client: Any) -> int:
        names = [f"ApproximateNumberOfMessages{name}" for name in ("", "NotVisible", "Delayed")]
        answers = [self._call(client, "GetQueueAttributes", queue, AttributeNames=names) for queue in self._urls]
        return sum(int(answer["Attributes"][name]) if answer else 1 for answer in answers for name in names)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def so() -> bool:
            if self._failures:
                raise self._failures[0]
            return condition()

        wait_until(so, what, RECOVERY_SECONDS)

    # --- clients ---

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # raised to the waiter
                self._failures.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _client(self) -> Any:
        return boto3.session.Session().client(
            "sqs",
            endpoint_url=self._endpoint,
            region_name=REGION,
            aws_access_key_id=self._credentials.access_key_id,
            aws_secret_access_key=self._credentials.secret_access_key,
            config=Config(retries={"mode": "standard"}, proxies={}),
        )

    def _call(self, client: Any, action: str, queue: str, **parameters: Any) -> dict[str, Any]:
        """Make a call; returns its answer, or an empty one if it failed, which is recorded."""
        parameters["QueueUrl"] = self._urls[queue]
        called = time.monotonic()
        try:
            answer: dict[str, Any] = getattr(client, _METHODS[action])(**parameters)
        except ClientError as error:
            body, about = error.response["Error"], error.response["ResponseMetadata"]
            refused = CallRefused(action, about["HTTPStatusCode"], body["Code"], body["Message"])
            with self._lock:
                self.recorder.note_failure(action, parameters, called, refused)
                self.errors[action, f"{refused.status} {refused.code}"] += 1
                self.repeated += about["RetryAttempts"]
            return {}
        except BotoCoreError as error:
            with self._lock:  # the last attempt may not have arrived, but an earlier one may have
                self.recorder.note_failure(action, parameters, called, InDoubt(str(error)))
                self.errors[action, type(error).__name__] += 1
            return {}
        attempts = answer["ResponseMetadata"]["RetryAttempts"]
        with self._lock:
            self.recorder.note(action, parameters, called, answer)
            self.repeated += attempts
            if attempts and action == "ReceiveMessage":  # an unanswered attempt may have claimed messages
                self.recorder.operations.append(Operation(Kind.RECEIVE, queue, called, outcome=Outcome.UNKNOWN))
            for failed in answer.get("Failed", ()):
                self.errors[action, f"entry {failed['Code']}"] += 1
        return answer

    # --- producers ---

    def _produce(self, number: int, idle: threading.Event) -> None:
        client = self._client()
        while self._may_send(idle):
            keys = self._keys(f"p{number}", batch=10)
            self._send(client, WORK, [{"Id": key, "MessageBody": self._body(key)} for key in keys])

    def _produce_orders(self, number: int, idle: threading.Event) -> None:
        client = self._client()
        groups = [f"g{number}-{group}" for group in range(GROUPS_EACH)]
        while self._may_send(idle):
            group = self._random.choice(groups)
            entries = [
                {"Id": key, "MessageBody": self._body(key), "MessageGroupId": group, "MessageDeduplicationId": key}
                for key in self._keys(group, batch=5)
            ]
            while not self._send(client, ORDERS, entries) and not self._ended.is_set():
                # sent again with its deduplication id, because the next one must come after it
                self._ended.wait(PAUSE_SECONDS)

    def _may_send(self, idle: threading.Event) -> bool:
        self._ended.wait(PAUSE_SECONDS)
        if not self._sending.is_set():
            idle.set()
            self._sending.wait()
            idle.clear()
        return not self._ended.is_set()

    def _keys(self, prefix: str, batch: int) -> list[str]:
        return [f"{prefix}-{next(self._numbers)}" for _ in range(self._random.choice((1, 1, 1, batch)))]

    def _body(self, key: str) -> str:
        """Body of a message, the same for each repeat, as deduplication requires."""
        return body_of(key, random.Random(key).randrange(BODY_BYTES_MAX))

    def _send(self, client: Any, queue: str, entries: list[dict[str, str]]) -> bool:
        """Send messages; True if all were acknowledged."""
        if len(entries) == 1:
            single = {name: value for name, value in entries[0].items() if name != "Id"}
            done = bool(self._call(client, "SendMessage", queue, **single))
        else:
            answer = self._call(client, "SendMessageBatch", queue, Entries=entries)
            done = len(answer.get("Successful", ())) == len(entries)
        if done:
            with self._lock:
                self.acknowledged += len(entries)
        else:
            self._ended.wait(PAUSE_SECONDS)
        return done

    # --- consumers ---

    def _consume(self, queue: str) -> None:
        client = self._client()
        while not self._ended.is_set():
            messages = self._call(
                client,
                "ReceiveMessage",
                queue,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=WAIT_SECONDS,
                MessageSystemAttributeNames=["MessageGroupId"],
            ).get("Messages", [])
            if queue == WORK and self._sending.is_set():
                messages = [message for message in messages if self._random.random() >= LEFT_SHARE]
            entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
            if len(entries) == 1:
                self._call(client, "DeleteMessage", queue, ReceiptHandle=entries[0]["ReceiptHandle"])
            elif entries:
                self._call(client, "DeleteMessageBatch", queue, Entries=entries)


_METHODS: Final = {
    "SendMessage": "send_message",
    "SendMessageBatch": "send_message_batch",
    "ReceiveMessage": "receive_message",
    "DeleteMessage": "delete_message",
    "DeleteMessageBatch": "delete_message_batch",
    "GetQueueAttributes": "get_queue_attributes",
}
"""Methods of boto3 by action."""
