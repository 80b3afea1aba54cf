"""Ledger of the clients' knowledge about their messages; it detects violations of the service's promises.

Each message's body is unique and can be checked by itself.  Clients record started, acknowledged and received
operations; the ledger notes each violation with the observations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

HIDDEN_SLACK_SECONDS = 0.05
"""Tolerance for visibility timeouts: the service counts whole milliseconds, by its own clock."""


def body_of(key: str, length: int) -> str:
    """Make the body of the message ``key``; each body is unique."""
    pattern = blake2b(f"{key}/{length}".encode(), digest_size=16).hexdigest()
    return f"{key} {length} " + (pattern * (length // 32 + 1))[:length]


def key_of(body: str) -> str | None:
    """Return the key of a body; None if it was not made by :func:`body_of`."""
    key, _, rest = body.partition(" ")
    length = rest.partition(" ")[0]
    return key if length.isdigit() and body == body_of(key, int(length)) else None


@dataclass(slots=True)
class Entry:
    """State of one message."""

    acknowledged: bool = False
    ids: list[str] = field(default_factory=list)
    """Message ids, the current one last: a move task assigns a new one, as in SQS."""
    received: int = 0
    hidden_until: float = 0.0
    releases: int = 0
    """Number of calls that end its visibility timeout and are under way, or of unknown outcome."""
    deletes: int = 0
    """Number of deletes that were acknowledged, are under way or in doubt."""
    deleted_at: float | None = None
    """Time of the delete's acknowledgement."""
    place: int = 0
    """Index in its group (FIFO)."""

    @property
    def delete_begun(self) -> bool:
        return self.deletes > 0


class _Group:
    """Messages of a FIFO group, in the order of sending."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.first = 0
        """Index before which all are deleted, or being deleted."""


class MessageLedger:
    """All messages since the queues were last empty.  Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.violations: list[str] = []
        self.open = 0
        """Number of messages whose send was attempted, and whose delete was not acknowledged."""
        self._groups: dict[str, _Group] = {}

    def violation(self, text: str) -> None:
        self.violations.append(text)

    def check(self) -> None:
        """Raise AssertionError with all violations, if there are any."""
        assert not self.violations, "\n".join(("promises were broken:", *self.violations[:50]))

    def _of(self, key: str) -> Entry:
        """Return the message's entry.

        If the queues were emptied since it was received, the entry counts nowhere: the client was slow, and another one
        had received and deleted the message again.
        """
        return self.entries.get(key) or Entry()

    # --- sending ------------------------------------------------------------------------------------------

    def send_begun(self, key: str, group: str | None = None) -> None:
        self.open += 1
        entry = self.entries[key] = Entry()
        if group is not None:
            keys = self._groups.setdefault(group, _Group()).keys
            entry.place = len(keys)
            keys.append(key)

    def sent(self, key: str, message_id: str) -> None:
        """Record the acknowledgement of a send, or of a repetition."""
        entry = self.entries[key]
        if entry.ids and message_id not in entry.ids:
            self.violation(f"{key}: {entry.ids} until now, and acknowledged as {message_id}")
        entry.acknowledged = True
        entry.ids = entry.ids or [message_id]

    # --- receiving ----------------------------------------------------------------------------------------

    def received(
        self, queue: str, body: str, message_id: str, asked: float, answered: float, visibility: float, redriven: bool
    ) -> str | None:
        """Record a received message; returns its key, or None if it is not ours.

        ``redriven``: a move task may have moved it.
        """
        key = key_of(body)
        entry = self.entries.get(key) if key is not None else None
        if key is None or entry is None:
            self.violation(f"received from {queue} what was not sent, or was gone long ago: {message_id} {body[:60]!r}")
            return None
        if message_id not in entry.ids[-1:]:
            if message_id in entry.ids or (entry.ids and not redriven):
                self.violation(f"{key}: a twin came from {queue}, {message_id} after {entry.ids}")
            entry.ids.append(message_id)
        if entry.deleted_at is not None and asked >= entry.deleted_at:
            self.violation(
                f"{key}: received from {queue} {asked - entry.deleted_at:.3f} s after its delete was acknowledged"
            )
        if answered < entry.hidden_until - HIDDEN_SLACK_SECONDS:
            self.violation(f"{key}: received again {entry.hidden_until - answered:.3f} s before its visibility timeout")
        entry.received += 1
        entry.hidden_until = 0.0 if entry.releases else asked + visibility
        return key

    def received_in_group(self, group: str, keys: list[str]) -> None:
        """Record one answer's messages of a group, in the answer's order."""
        sent = self._groups[group]
        places = [self.entries[key].place for key in keys]
        if places != sorted(places):
            self.violation(f"group {group} out of order: {keys}")
        while sent.first < len(sent.keys) and self.entries[sent.keys[sent.first]].delete_begun:
            sent.first += 1
        for key in sent.keys[sent.first : places[-1]]:
            if not self.entries[key].delete_begun and key not in keys:
                self.violation(f"group {group}: {keys[-1]} came while {key} was still to come")

    def release_begun(self, key: str) -> None:
        """Record the start of a call that ends its visibility timeout, in a standard queue also a later receive's."""
        entry = self._of(key)
        entry.releases += 1
        entry.hidden_until = 0.0

    def release_ended(self, key: str) -> None:
        """Record the answer of that call."""
        entry = self._of(key)
        entry.releases -= 1
        entry.hidden_until = 0.0

    # --- deleting -----------------------------------------------------------------------------------------

    def delete_begun(self, key: str) -> None:
        self._of(key).deletes += 1

    def deleted(self, key: str, now: float, claimed_until: float) -> None:
        """Record the acknowledgement of a delete.

        A delete after the visibility timeout may have had no effect: if the message has moved to another queue, the
        call succeeds nevertheless.
        """
        entry = self._of(key)
        if now >= claimed_until or key not in self.entries:
            return
        self.open -= entry.deleted_at is None
        entry.deleted_at = now

    def not_deleted(self, key: str) -> None:
        """Record the answer of a delete with an error that guarantees no effect."""
        self._of(key).deletes -= 1

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Check that every acknowledged message was received; the queues are empty.

        Forgets all messages except those that were never acknowledged, and may still appear.
        """
        for key, entry in self.entries.items():
            if entry.acknowledged and not entry.delete_begun:
                self.violation(f"{key} ({entry.ids}) was acknowledged and is lost (received {entry.received} times)")
        self.open = 0
        self.entries = {key: entry for key, entry in self.entries.items() if not entry.acknowledged}
        self._groups.clear()
