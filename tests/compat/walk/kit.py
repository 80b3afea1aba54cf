"""Shared parts of the steps: a client that records its calls, names, receiving, and expected errors."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

LONG_POLL_SECONDS = 20


@dataclass(frozen=True)
class ServiceAddress:
    """Address of the service, and credentials."""

    endpoint: str
    region: str
    account: str
    access_key_id: str
    secret_access_key: str


@dataclass
class Walk:
    """A run: a client, the actions that it has called, by which protocols, and the steps that it has completed."""

    target: ServiceAddress
    called: set[str] = field(default_factory=set)
    surfaces: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.session = boto3.session.Session(
            aws_access_key_id=self.target.access_key_id,
            aws_secret_access_key=self.target.secret_access_key,
            region_name=self.target.region,
        )
        self.client = self.new_client()
        self.protocol: str = self.client.meta.service_model.protocol

    # --- clients ------------------------------------------------------------------------------------

    def settings(self, **overrides: Any) -> dict[str, Any]:
        """Arguments of ``Session.client`` and ``Session.resource``: no retries, a timeout longer than long polls."""
        config = Config(retries={"total_max_attempts": 1}, read_timeout=LONG_POLL_SECONDS + 20)
        return {"endpoint_url": self.target.endpoint, "config": config, **overrides}

    def new_client(self, **overrides: Any) -> Any:
        """Make a client that records in ``called`` and ``surfaces``; ``overrides`` as for ``Session.client``."""
        return self.watched(self.session.client("sqs", **self.settings(**overrides)))

    def watched(self, client: Any) -> Any:
        """Record the calls of this client too."""
        client.meta.events.register("before-call.sqs", self._note)
        return client

    def _note(self, model: Any, params: Any, **_: Any) -> None:
        self.called.add(model.name)
        self.surfaces.add("json" if "X-Amz-Target" in params["headers"] else "query")

    # --- queues -------------------------------------------------------------------------------------

    def name(self, what: str, fifo: bool = False) -> str:
        """Make a unique queue name."""
        return f"walk-{what}-{uuid.uuid4().hex[:12]}" + (".fifo" if fifo else "")

    def queue(self, what: str, fifo: bool = False, **attributes: str) -> str:
        """Create a queue with these attributes; returns its URL."""
        if fifo:
            attributes["FifoQueue"] = "true"
        url: str = self.client.create_queue(QueueName=self.name(what, fifo), Attributes=attributes)["QueueUrl"]
        return url

    def arn(self, url: str) -> str:
        """Return the ARN of the queue, from the service."""
        return self.attributes(url, "QueueArn")["QueueArn"]

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        """Return these attributes of the queue; all of them if none is named."""
        answer = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names) or ["All"])
        return dict(answer.get("Attributes", {}))

    def counters(self, url: str) -> tuple[int, int, int]:
        """Return the numbers of visible, in-flight and delayed messages."""
        name = "ApproximateNumberOfMessages"
        found = self.attributes(url, name, f"{name}NotVisible", f"{name}Delayed")
        return int(found[name]), int(found[f"{name}NotVisible"]), int(found[f"{name}Delayed"])

    # --- messages -----------------------------------------------------------------------------------

    def send(self, url: str, *bodies: str, **options: Any) -> list[dict[str, Any]]:
        """Send each body with these options; returns the answers."""
        return [self.client.send_message(QueueUrl=url, MessageBody=body, **options) for body in bodies]

    def receive(self, url: str, messages_max: int = 1, **options: Any) -> list[dict[str, Any]]:
        """Receive once, without waiting unless ``WaitTimeSeconds`` is given."""
        answer = self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=messages_max, **options)
        return list(answer.get("Messages", []))

    def one(self, url: str, **options: Any) -> dict[str, Any]:
        """Return the next message, by long polls."""
        messages = self.receive(url, WaitTimeSeconds=LONG_POLL_SECONDS, **options)
        assert len(messages) == 1, f"no message within {LONG_POLL_SECONDS} s"
        return messages[0]

    def collect(self, url: str, count: int, delete: bool = False, **options: Any) -> list[dict[str, Any]]:
        """Receive ``count`` messages in order, by as many long polls as needed; deletes them on request."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            batch = self.receive(url, 10, WaitTimeSeconds=LONG_POLL_SECONDS, **options)
            assert batch, f"{len(found)} of {count} messages came: {[m['Body'] for m in found]}"
            found += batch
            if delete:
                self.delete(url, batch)
        assert len(found) == count, f"{count} messages were sent, these came: {[m['Body'] for m in found]}"
        return found

    def delete(self, url: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Delete up to ten messages in one call; every one has to succeed."""
        entries = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]
        answer = self.client.delete_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed"), answer
        assert [e["Id"] for e in answer["Successful"]] == [e["Id"] for e in entries], answer

    def system(self, *names: str) -> dict[str, Any]:
        """Return the argument of ReceiveMessage for system attributes, with its name in this client."""
        members = self.client.meta.service_model.operation_model("ReceiveMessage").input_shape.members
        argument = "MessageSystemAttributeNames" if "MessageSystemAttributeNames" in members else "AttributeNames"
        return {argument: list(names)}

    # --- refusals -----------------------------------------------------------------------------------

    @contextmanager
    def refused(self, code: str, status: int = 400, shape: str | None = None, text: str = "") -> Iterator[None]:
        """Expect the call in the block to fail with this code and HTTP status, and an error text that contains
        ``text``.

        ``shape`` is the class of exception that the client raises, if its model of SQS has one.
        """
        refusal: ClientError | None = None
        try:
            yield
        except ClientError as error:
            refusal = error
        assert refusal is not None, f"accepted, where SQS answers {code}"
        answer = refusal.response
        assert answer["Error"]["Code"] == code, answer
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == status, answer
        assert answer["ResponseMetadata"].get("RequestId"), answer
        assert text in answer["Error"]["Message"], answer
        if shape in self.client.meta.service_model.shape_names:
            assert type(refusal).__name__ == shape, (type(refusal), answer)


# --- checksums --------------------------------------------------------------------------------------


def text_md5(text: str) -> str:
    """MD5OfBody of a body."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


# --- the list of steps ------------------------------------------------------------------------------

Step = Callable[[Walk], None]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    """Add the function to the walk under its name."""
    assert function.__name__ not in STEPS, function.__name__
    STEPS[function.__name__] = function
    return function


def take(walk: Walk, name: str) -> None:
    """Run this step unless it was run before; a failed step counts as not run."""
    if name not in walk.taken:
        STEPS[name](walk)
        walk.taken.add(name)
