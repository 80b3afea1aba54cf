"""Views of queues: their parsed attributes and their partitions."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from auth.policies.policies import Policy
from backend.api import PartitionSettings, Target
from frontend.queues import policies
from metadata_service.models import Queue


class PartitionView(msgspec.Struct, frozen=True):
    """One partition of a queue, with the arguments for calling it."""

    id: int
    slot: int
    target: Target
    settings: PartitionSettings


class QueueView(msgspec.Struct, frozen=True):
    """A queue with its parsed attributes."""

    queue: Queue
    arn: str
    fifo: bool
    content_based: bool
    scope_is_group: bool
    delay_max: int
    message_bytes_max: int
    visibility_seconds: int
    wait_seconds: int
    redrive: policies.RedrivePolicy | None
    encrypted: bool
    """True if sent messages are stored encrypted."""
    key_name: str
    """Name of the data key for sent messages; empty: the tenant's own key, or none."""
    policy: Policy | None
    """Compiled policy; None: only the owning account has access."""
    token_key: bytes
    """Key for hashes of deduplication ids, so that readers of the journal cannot test guesses of a body."""
    target: Target
    """Target of the queue's only partition, or of its first open one; ``settings`` likewise."""
    settings: PartitionSettings
    is_unacknowledged: bool
    """True if sends are answered before the backend has answered."""
    is_partitioned: bool
    """True if the queue has several partitions."""
    parts: tuple[PartitionView, ...]
    open_parts: tuple[PartitionView, ...]
    """Partitions that accept sends."""
    receive_parts: tuple[PartitionView, ...]
    """Partitions from which messages are received."""

    def tokens(self, group: str | None, deduplication_id: str) -> tuple[bytes, bytes]:
        """The deduplication token of a message in a FIFO queue, and that of the other deduplication scope."""
        by_queue, by_group = self._token("q", deduplication_id), self._token(f"g{group}", deduplication_id)
        return (by_group, by_queue) if self.scope_is_group else (by_queue, by_group)

    def _token(self, scope: str, deduplication_id: str) -> bytes:
        return blake2b(f"{scope}\0{deduplication_id}".encode(), digest_size=16, key=self.token_key).digest()

    def part(self, partition: int) -> PartitionView | None:
        """The partition with this id."""
        return next((part for part in self.parts if part.id == partition), None)
