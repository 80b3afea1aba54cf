"""Clients as applications have them, boto3 with its standard retries and no more, and a verdict on what they saw.

Two queues, a standard one and a FIFO one: producers send single messages and batches, consumers receive by long polls
and delete, and now and then leave a message to its visibility timeout.  All that they do and see is a history for the
checkers of :mod:`tests.histories`.

An *error* is what an application sees: a call that failed after all of the SDK's attempts, or an entry of a batch.
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

from tests.faults.client import InDoubt, Refused
from tests.faults.ledger import body_of
from tests.faults.recorder import Recorder
from tests.histories.history import Kind, Operation, Outcome, Rules
from tests.histories.verdict import Verdict
from tests.system.server import REGION
from tests.system.waiting import wait_until

VISIBILITY_SECONDS: Final = 15
"""Longer than a call may take with all of its attempts, or a delete may come too late."""
WAIT_SECONDS: Final = 2
PAUSE_SECONDS: Final = 0.05
"""Of a producer, between two calls: the pods share the machine with it."""
LEFT_SHARE: Final = 0.02
"""Of the messages, those that are left to their visibility timeout."""
BODY_BYTES_MOST: Final = 4000
GROUPS_EACH: Final = 4
SETTLE_SECONDS: Final = 120.0

WORK: Final = "work"
ORDERS: Final = "orders.fifo"


@dataclass(frozen=True)
class Credentials:
    """A key of the service."""

    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True)
class Figures:
    """What clients saw in some time."""

    calls: int
    errors: Counter[tuple[str, str]]
    """By action, and what its caller got."""
    repeated: int
    """Attempts after the first one, which the SDK made by itself."""
    stall_seconds: float
    """The longest time in which no send to one of the queues was acknowledged."""
    seconds: float


class Load:
    """Clients of one service.  Used as a context: they run meanwhile."""

    def __init__(
        self, endpoint: str, credentials: Credentials, seed: int, *, visibility_seconds: int = VISIBILITY_SECONDS
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
        """One for each producer: it has its answer, and waits."""
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

    # --- its use ---

    def answered(self, sends: int) -> None:
        """Return when so many more sends were acknowledged.  Raises what a client raised, and TimeoutError."""
        goal = self.acknowledged + sends
        self._until(lambda: self.acknowledged >= goal, f"{sends} more sends are acknowledged")

    def during(self, work: Callable[[], None]) -> Figures:
        """What clients saw while this was done.  Raises what it raises, and what a client raised."""
        began, calls, errors, repeated = time.monotonic(), self.recorder.calls, self.errors.copy(), self.repeated
        work()
        self._until(lambda: True, "the clients run")
        ended = time.monotonic()
        return Figures(
            self.recorder.calls - calls,
            self.errors - errors,
            self.repeated - repeated,
            self.recorder.longest_stall_seconds(began, ended),
            ended - began,
        )

    def settle(self) -> Verdict:
        """Stop sending, wait until both queues are empty, and judge all that happened; then the clients go on."""
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

        wait_until(so, what, SETTLE_SECONDS)

    # --- clients ---

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # told to whoever waits
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
        """The answer; an empty one if the call failed, which is written down."""
        parameters["QueueUrl"] = self._urls[queue]
        called = time.monotonic()
        try:
            answer: dict[str, Any] = getattr(client, _METHODS[action])(**parameters)
        except ClientError as error:
            said, about = error.response["Error"], error.response["ResponseMetadata"]
            refused = Refused(action, about["HTTPStatusCode"], said["Code"], said["Message"])
            with self._lock:
                self.recorder.note_failure(action, parameters, called, refused)
                self.errors[action, f"{refused.status} {refused.code}"] += 1
                self.repeated += about["RetryAttempts"]
            return {}
        except BotoCoreError as error:
            with self._lock:  # the last attempt may have reached nobody, and one before it somebody
                self.recorder.note_failure(action, parameters, called, InDoubt(str(error)))
                self.errors[action, type(error).__name__] += 1
            return {}
        attempts = answer["ResponseMetadata"]["RetryAttempts"]
        with self._lock:
            self.recorder.note(action, parameters, called, answer)
            self.repeated += attempts
            if attempts and action == "ReceiveMessage":  # one that was not answered may have claimed something
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
                self._ended.wait(PAUSE_SECONDS)  # sent again by its deduplication id, as the next one comes after it

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
        """The same for each repeat of a message, as deduplication wants it."""
        return body_of(key, random.Random(key).randrange(BODY_BYTES_MOST))

    def _send(self, client: Any, queue: str, entries: list[dict[str, str]]) -> bool:
        """Whether all were acknowledged."""
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
"""Of boto3, by the action."""
