"""Another SQS service to import queues from, Amazon's or any with its protocol, by boto3.

Credentials are found by boto3.  boto3 is an extra: only imports need it, a service does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from frontend.queues import attributes
from holdfast.commandline.client import NOT_FOUND, NOT_PERMITTED, REFUSED, UNREACHABLE, USAGE, CommandFailed
from holdfast.migrate.definition import Definition
from holdfast.migrate.messages import MessageContent
from holdfast.migrate.target import settable
from metadata_service.arn import parse

_PAGE = 1_000
_READ_SECONDS = 40
_NOT_PERMITTED = ("AccessDenied", "AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken")


class MessageCounts(NamedTuple):
    """Approximate number of messages of a queue by state."""

    visible: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True)
class SourceQueue:
    """A queue of the other service."""

    url: str
    definition: Definition
    unknown: tuple[str, ...]
    """Names of attributes that are not SQS's, or not known here yet."""
    counted: MessageCounts


class Arrived(NamedTuple):
    """A received message."""

    id: str
    receipt: str
    message: MessageContent


class SourceService:
    """The other service."""

    def __init__(
        self,
        endpoint_url: str | None,
        region: str | None,
        profile: str | None,
        *,
        connections: int,
        visibility_seconds: int,
    ) -> None:
        """``visibility_seconds``: time for which a message is hidden at the source while it is forwarded.

        Raises :class:`CommandFailed`.
        """
        self._visibility_seconds = visibility_seconds
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise CommandFailed(
                "this needs boto3, which is not installed: pip install 'holdfast[import]'", USAGE
            ) from None
        retries = {"mode": "standard", "total_max_attempts": 6}
        config = Config(
            retries=retries, read_timeout=_READ_SECONDS, connect_timeout=10, max_pool_connections=connections + 1
        )
        with _readable_errors():
            session = boto3.session.Session(profile_name=profile, region_name=region)
            self._client = session.client("sqs", endpoint_url=endpoint_url, config=config)

    @property
    def endpoint(self) -> str:
        return str(self._client.meta.endpoint_url)

    def queues(self, prefix: str) -> list[SourceQueue]:
        """All queues with this name prefix.  Those deleted meanwhile are left out.  Raises :class:`CommandFailed`."""
        asked: dict[str, Any] = {"PaginationConfig": {"PageSize": _PAGE}}
        if prefix:
            asked["QueueNamePrefix"] = prefix
        with _readable_errors():
            pages = self._client.get_paginator("list_queues").paginate(**asked)
            urls = [url for page in pages for url in page.get("QueueUrls", ())]
        return [queue for url in dict.fromkeys(urls) if (queue := self._queue(url)) is not None]

    def _queue(self, url: str) -> SourceQueue | None:
        try:
            with _readable_errors():
                given = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
                tags = self._client.list_queue_tags(QueueUrl=url).get("Tags", {})
        except CommandFailed as error:
            if error.code == NOT_FOUND:
                return None
            raise
        where = parse(given.get("QueueArn", "").replace(":aws-cn:", ":aws:").replace(":aws-us-gov:", ":aws:"))
        if where is None:
            raise CommandFailed(f"the queue at {url} does not report its ARN, so references to it cannot be mapped")
        unknown = sorted(given.keys() - attributes.READABLE - attributes.OWN.keys())
        definition = Definition(where.name, where, settable(given), tags)
        return SourceQueue(url, definition, tuple(unknown), _counted(given))

    def count(self, queue: SourceQueue) -> MessageCounts:
        """Count a queue's messages.  Raises :class:`CommandFailed`."""
        with _readable_errors():
            answer = self._client.get_queue_attributes(QueueUrl=queue.url, AttributeNames=list(attributes.COUNTERS))
        return _counted(answer.get("Attributes", {}))

    def receive(self, queue: SourceQueue, wait_seconds: int) -> list[Arrived]:
        """Receive up to ten messages, which are hidden for a while.  Raises :class:`CommandFailed`."""
        with _readable_errors():
            answer = self._client.receive_message(
                QueueUrl=queue.url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=self._visibility_seconds,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        return [_arrived(one, fifo=queue.definition.fifo) for one in answer.get("Messages", ())]

    def delete(self, queue: SourceQueue, messages: Sequence[Arrived]) -> list[Arrived]:
        """Delete messages; returns those deleted, as others will be received again.  Raises :class:`CommandFailed`."""
        entries = [{"Id": str(place), "ReceiptHandle": one.receipt} for place, one in enumerate(messages)]
        with _readable_errors():
            answer = self._client.delete_message_batch(QueueUrl=queue.url, Entries=entries)
        return [messages[int(one["Id"])] for one in answer.get("Successful", ())]


def _counted(given: Mapping[str, str]) -> MessageCounts:
    return MessageCounts(*(int(given.get(name, 0)) for name in attributes.COUNTERS))


def _arrived(received: Mapping[str, Any], *, fifo: bool) -> Arrived:
    system = received.get("Attributes", {})
    values = {
        name: (str(one["DataType"]), one["BinaryValue"] if "BinaryValue" in one else one.get("StringValue", ""))
        for name, one in received.get("MessageAttributes", {}).items()
    }
    return Arrived(
        received["MessageId"],
        received["ReceiptHandle"],
        MessageContent(
            received["Body"],
            values,
            system.get("MessageGroupId"),
            system.get("MessageDeduplicationId") if fifo else None,
            system.get("AWSTraceHeader"),
            # The queue's delay has already elapsed at the source.
            None if fifo else 0,
        ),
    )


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Convert errors of the other service to sentences."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        kind = str(answer.get("Code", ""))
        code = REFUSED
        if "NonExistentQueue" in kind or "QueueDoesNotExist" in kind:
            code = NOT_FOUND
        elif any(one in kind for one in _NOT_PERMITTED):
            code = NOT_PERMITTED
        elif error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400) >= 500 or "Throttl" in kind:
            code = UNREACHABLE
        raise CommandFailed(f"the source refuses {error.operation_name}: {answer.get('Message', kind)}", code) from None
    except (ConnectionError, HTTPClientError) as error:
        raise CommandFailed(f"the source cannot be reached: {error}", UNREACHABLE) from None
    except (BotoCoreError, ValueError) as error:
        raise CommandFailed(f"the source cannot be used: {error}", USAGE) from None
