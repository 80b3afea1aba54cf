"""Queues for operations: lookup by URL or ARN, parsed attributes, and calls to their partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from auth.encryption.named_keys import key_name
from backend.api import (
    AckLevel,
    Answer,
    BackendError,
    ChangeVisibility,
    Configure,
    DeadLetter,
    Delete,
    Drop,
    HandleOutcome,
    MapStale,
    MoveMessages,
    PartitionCommand,
    PartitionGone,
    PartitionUnknown,
    Peeked,
    PeekMessages,
    SettingsStale,
    Target,
)
from backend.engine.receipt_handles import Handles, partition_of
from backend.partition_settings import partition_settings, target_for_message, target_of
from frontend.queues import attributes, policies
from frontend.queues.partitioned import PartitionedCalls, all_of
from frontend.queues.view import PartitionView, QueueView
from frontend.services import Services
from frontend.sqs.protocol.errors import SERVICE_UNAVAILABLE, SqsError, queue_does_not_exist
from frontend.sqs.protocol.limits import QUEUE_URL_LENGTH_MAX
from frontend.sqs.protocol.validation import is_queue_name
from metadata_service import arn
from metadata_service.clusters.partition_map import open_ones, received_from
from metadata_service.models import Queue
from metadata_service.nodes.cached_client import NamedByClients
from metadata_service.queue_settings import MAXIMUM_DELAY, number
from metadata_service.store import ConditionFailed, QueueNotFound
from metadata_service.topics import hidden_queue_name

T = TypeVar("T")

_OTHER = HandleOutcome.OTHER_QUEUE
_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_TRIES = 4
_VIEWS_MAX = 10_000
_URL_KEPT = 256
"""Maximum length of URLs whose parsed form is cached."""


class Update(NamedTuple):
    """A change of a queue's record; None: unchanged."""

    attributes: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None


class Queues:
    """Looks up queues, and calls the backend for them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._named = NamedByClients(services.metadata)
        self._views: dict[int, QueueView] = {}
        self._partitioned = PartitionedCalls(self, services.backend)

    # --- lookup ---

    async def find(self, account: str, name: str) -> QueueView:
        """Read the queue from the store, without authorization.  Raises QueueDoesNotExist."""
        if is_queue_name(name):
            try:
                return self.view(await self._named.get(account, name))
            except QueueNotFound:
                pass
        raise queue_does_not_exist()

    async def of_topic(self, account: str, name: str) -> QueueView | None:
        """The hidden queue of a topic; None if there is no such topic."""
        return await self.hidden(account, hidden_queue_name(name))

    async def hidden(self, account: str, name: str) -> QueueView | None:
        """The hidden queue with this name; None if there is none."""
        try:
            return self.view(await self._services.metadata.get(account, name))
        except QueueNotFound:
            return None

    async def by_arn(self, text: str, account: str) -> QueueView | None:
        """The account's queue with this ARN; None if there is none here."""
        parsed = arn.parse(text)
        if parsed is None or parsed.account != account or parsed.region != self._services.settings.region:
            return None
        queue = self._named.cached(account, parsed.name)
        if queue is None:
            if not is_queue_name(parsed.name):
                return None
            try:
                queue = await self._named.get(account, parsed.name)
            except QueueNotFound:
                return None
        return self.view(queue)

    def view(self, queue: Queue) -> QueueView:
        view = self._views.get(queue.queue_id)
        if view is None or view.queue is not queue:
            view = self._make_view(queue)
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            self._views[queue.queue_id] = view
        return view

    # --- calls to the backend ---

    async def call(self, view: QueueView, command: PartitionCommand[Answer]) -> Answer:
        """Run a command of the backend for the queue, opening its partition or updating its settings first if
        necessary.  The command's target is the view's; for several partitions its type determines which of them are
        called."""
        if view.is_partitioned:
            return await self._partitioned.call(view, command)
        try:
            return await self._services.backend.call(command)
        except (PartitionUnknown, SettingsStale, PartitionGone, MapStale):
            pass
        for _ in range(_TRIES):
            view = await self.refreshed(view)
            if view.is_partitioned:
                return await self._partitioned.call(view, command)
            await self.configure(view)
            try:
                return await self._services.backend.call(command.at(view.target))
            except (PartitionUnknown, SettingsStale, PartitionGone, MapStale):
                continue
        raise SqsError(SERVICE_UNAVAILABLE)

    def target_of_send(self, view: QueueView, group: str | None) -> Target:
        """The partition that a message is sent to, which another caller sends; ``group`` decides for FIFO queues."""
        return self._partitioned.for_send(view, group).target if view.is_partitioned else view.target

    async def delete(self, view: QueueView, handles: Sequence[str]) -> Sequence[HandleOutcome]:
        """Delete messages by receipt handle.

        If the queue got the partition of a handle after the ``view`` was made, the call is repeated.  If the
        partition has retired, it was empty, so the handle's message is already deleted.
        """
        command = Delete(view.target, handles)
        outcomes = await self.call(view, command)
        return (
            await self._by_others(view, command, handles, HandleOutcome.DONE, outcomes) if any(outcomes) else outcomes
        )

    async def change_visibility(self, view: QueueView, changes: Sequence[tuple[str, int]]) -> Sequence[HandleOutcome]:
        """Change visibility timeouts by receipt handle, as :meth:`delete` deletes."""
        command = ChangeVisibility(view.target, changes)
        outcomes = await self.call(view, command)
        if not any(outcomes):
            return outcomes
        return await self._by_others(view, command, [handle for handle, _ in changes], HandleOutcome.GONE, outcomes)

    async def _by_others(
        self,
        view: QueueView,
        command: PartitionCommand[list[HandleOutcome]],
        handles: Sequence[str],
        gone: HandleOutcome,
        outcomes: list[HandleOutcome],
    ) -> list[HandleOutcome]:
        """Outcomes after a check of handles that name other partitions."""
        others = {partition_of(one) for one, was in zip(handles, outcomes, strict=True) if was == _OTHER}
        if not others:
            return outcomes
        fresh = await self.refreshed(view)
        if any(view.part(other) is None and fresh.part(other) is not None for other in others):
            outcomes = await self.call(fresh, command.at(fresh.target))
        return [
            gone if was == _OTHER and _of_retired(handle, fresh.queue) else was
            for handle, was in zip(handles, outcomes, strict=True)
        ]

    async def refreshed(self, view: QueueView) -> QueueView:
        """Read the queue again during a call.  Raises QueueDoesNotExist, and ServiceUnavailable if its policy
        has changed, so that authorization has to be repeated."""
        fresh = await self.refresh(view)
        if fresh.queue.attributes.get("Policy") != view.queue.attributes.get("Policy"):
            # it may be the policy of another queue with this name
            raise SqsError(SERVICE_UNAVAILABLE, "The queue's policy has changed during the call. Try again.")
        return fresh

    async def refresh(self, view: QueueView) -> QueueView:
        """Read the queue with this name from the metadata.  Raises QueueDoesNotExist."""
        try:
            return self.view(await self._services.metadata.get(view.queue.account, view.queue.name))
        except QueueNotFound:
            raise queue_does_not_exist() from None

    async def change(self, view: QueueView, make: Callable[[Queue], Update | None]) -> QueueView:
        """Store the change that ``make`` computes for the current queue (None: no change); returns the queue
        afterwards.

        ``make`` may be called several times, when others change the queue as well.  Raises QueueDoesNotExist.
        """
        for _ in range(_TRIES):
            fresh = await self.refresh(view)
            update = make(fresh.queue)
            if update is None:
                return fresh
            try:
                return self.view(
                    await self._services.metadata.update(
                        fresh.queue,
                        now_ms=self._services.now_ms(),
                        attributes=update.attributes,
                        tags=update.tags,
                    )
                )
            except ConditionFailed:
                continue
            except QueueNotFound:
                raise queue_does_not_exist() from None
        raise SqsError(SERVICE_UNAVAILABLE)

    async def configure(self, view: QueueView) -> None:
        """Send the backend the queue's settings, and its latest purge."""
        for part in view.parts:
            await self.configure_part(part)

    async def configure_part(self, part: PartitionView) -> None:
        """Send the backend the settings of one partition."""
        try:
            await self._services.backend.call(Configure(part.settings))
        except (SettingsStale, PartitionGone):
            # the metadata changed in between: the caller reads it again
            return

    async def peek_at(self, view: QueueView, partition: int, messages_max: int, after: int) -> list[Peeked]:
        """Peek at the first messages of one partition with numbers above ``after``; empty if the partition has
        retired, because it was empty then.  Raises the backend's errors."""
        peeked = await self._at(view, partition, lambda target: PeekMessages(target, messages_max, after))
        if peeked and peeked[0].number <= after:
            raise SqsError(SERVICE_UNAVAILABLE, "A backend of an older version cannot do this yet.")
        return peeked

    async def move_messages(
        self, view: QueueView, partition: int, numbers: Sequence[int], destination_arn: str | None
    ) -> list[int]:
        """Move those of a partition's messages that can be received, and return their numbers.

        Raises the backend's errors."""
        return await self._at(view, partition, lambda target: MoveMessages(target, numbers, destination_arn))

    async def _at(
        self, view: QueueView, partition: int, command_at: Callable[[Target], PartitionCommand[list[T]]]
    ) -> list[T]:
        """Answer of one partition; empty if it has retired."""
        for _ in range(_TRIES):
            part = view.part(partition)
            if part is None:
                return []
            try:
                return await self._services.backend.call(command_at(part.target))
            except (PartitionUnknown, SettingsStale, PartitionGone, MapStale):
                view = await self.refreshed(view)
                await self.configure(view)
        raise SqsError(SERVICE_UNAVAILABLE)

    async def peek_each(
        self, view: QueueView, messages_max: int, after: Mapping[int, int]
    ) -> dict[int, Sequence[Peeked]]:
        """Peek at each partition as :meth:`peek_at` does; ``after`` has their numbers."""
        calls = [self.peek_at(view, part.id, messages_max, after.get(part.id, 0)) for part in view.parts]
        found = await all_of(calls)
        return {part.id: peeked for part, peeked in zip(view.parts, found, strict=True)}

    async def drop(self, view: QueueView) -> None:
        """Drop all partitions of a deleted queue in the backend.  Raises the backend's errors, after all have
        been asked."""
        failed: BackendError | None = None
        for part in view.parts:
            try:
                await self._services.backend.call(Drop(part.target))
            except BackendError as error:
                failed = error
        if failed is not None:
            raise failed

    async def dead_letter(self, view: QueueView) -> DeadLetter | None:
        """Destination of dead letters; None: messages stay, because the target does not exist or is the queue
        itself."""
        redrive = view.redrive
        if redrive is None:
            return None
        target = await self.by_arn(redrive.dead_letter_arn, view.queue.account)
        if target is None or target.queue.queue_id == view.queue.queue_id:
            return None
        destination = target_for_message(target.queue, None) if target.is_partitioned else target.target
        return DeadLetter(redrive.max_receives, destination, target.fifo)

    def _make_view(self, queue: Queue) -> QueueView:
        stored = queue.attributes
        settings = self._services.settings
        redrive = stored.get("RedrivePolicy")
        policy = stored.get("Policy")
        settings_by_id = partition_settings(queue, settings)
        by_id = {
            one.id: PartitionView(one.id, one.slot, target_of(queue, one.id), settings_by_id[one.id])
            for one in queue.partitions
        }
        parts = tuple(by_id.values())
        open_ids = [one.id for one in open_ones(queue.partitions)]
        receive_ids = {one.id for one in received_from(queue)}
        first = by_id[open_ids[0]]
        return QueueView(
            queue=queue,
            arn=first.settings.arn,
            fifo=first.settings.fifo,
            content_based=stored.get("ContentBasedDeduplication") == "true",
            scope_is_group=stored.get("DeduplicationScope") == "messageGroup",
            delay_max=number(stored, MAXIMUM_DELAY),
            message_bytes_max=number(stored, "MaximumMessageSize"),
            visibility_seconds=number(stored, "VisibilityTimeout"),
            wait_seconds=number(stored, "ReceiveMessageWaitTimeSeconds"),
            redrive=policies.stored_redrive_policy(redrive) if redrive else None,
            encrypted=settings.encryption and attributes.is_encrypted(stored),
            key_name=key_name(stored.get("KmsMasterKeyId", ""), settings.region, queue.account),
            policy=policies.stored_access_policy(policy) if policy else None,
            token_key=blake2b(queue.handle_key, key=self._services.naming, digest_size=32).digest(),
            target=first.target,
            settings=first.settings,
            is_unacknowledged=first.settings.ack_level is AckLevel.NONE,
            is_partitioned=len(parts) > 1,
            parts=parts,
            open_parts=tuple(by_id[partition] for partition in open_ids),
            receive_parts=tuple(part for part in parts if part.id in receive_ids),
        )


def locate(url: str, own_account: str) -> tuple[str, str]:
    """Account and name of a queue URL.  Host and port are ignored, and a bare name is the caller's own queue.

    Raises QueueDoesNotExist when it contains no name, or is too long.
    """
    if len(url) <= _URL_KEPT:
        return _parsed(url, own_account)
    if len(url) > QUEUE_URL_LENGTH_MAX:
        raise queue_does_not_exist()
    return _parsed.__wrapped__(url, own_account)


@lru_cache(maxsize=_VIEWS_MAX)
def _parsed(url: str, own_account: str) -> tuple[str, str]:
    if "?" in url:
        url = url.partition("?")[0]
    parts = url.rsplit("/", 2)
    if len(parts) == 1:
        return own_account, url
    if len(parts) == 3 and parts[2] and _ACCOUNT.match(parts[1]):
        return parts[1], parts[2]
    path = url.partition("://")[2].partition("/")[2] if "://" in url else url
    segments = [segment for segment in path.split("/") if segment]
    if not segments:
        raise queue_does_not_exist()
    if len(segments) > 1 and _ACCOUNT.match(segments[-2]):
        return segments[-2], segments[-1]
    return own_account, segments[-1]


def _of_retired(handle: str, queue: Queue) -> bool:
    """True if a retired partition of the queue issued the handle."""
    partition = partition_of(handle)
    return partition in queue.retired and isinstance(Handles(partition, queue.handle_key).read(handle), tuple)
