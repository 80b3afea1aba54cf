"""Draining: messages are received at the source, stored here, and only then deleted there.

Guarantees
----------
- **No message is lost.**  A message is deleted at the source only after the service here has confirmed that it
  is stored.  If the process is killed at any moment and started again, every message is in one of the two.
- **None is duplicated**, except those in doubt: at most ten messages of each worker that were being sent when
  the process was killed.  They are sent again with the same token, derived from the source's message id, which
  the service recognizes for 60 s, or the same deduplication id, for five minutes.  Later they may be
  duplicated, and their number is reported.  This needs the files in the progress folder
  (:mod:`holdfast.migrate.resume_log`).
- **The order of each message group** of a FIFO queue is kept: one worker at a time has the queue, and a message
  that cannot be forwarded ends the draining of its queue, so that no later one overtakes it.
- A message of a standard queue that cannot be forwarded (too large, for example) stays at the source, and is
  reported.

Bodies, attributes, ``AWSTraceHeader``, groups and deduplication ids are unchanged.  Message ids, times, receive
counts and senders are new.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from holdfast.commandline.client import CommandFailed
from holdfast.commandline.progress import Progress
from holdfast.migrate.definition import Definition
from holdfast.migrate.messages import Unsendable
from holdfast.migrate.resume_log import ResumeLog
from holdfast.migrate.source import Arrived, SourceQueue, SourceService
from holdfast.migrate.target import EntryRefused, TargetService, batches

REASONS_SHOWN = 10
_TURN_RECEIVES = 20
"""Number of receives after which a worker changes to the next queue."""
_CHECK_SECONDS = 1.0
_POLL_SECONDS = 1


@dataclass
class Drain:
    """A queue being drained.  Counters are changed only with its lock."""

    queue: SourceQueue
    target: Definition
    ledger: ResumeLog
    forwarded: int = 0
    left: dict[str, str] = field(default_factory=dict)
    """Reasons for messages that stay at the source, by id."""
    failure: CommandFailed | None = None
    done: bool = False
    waiting: str = ""
    """Reason for waiting at the end."""
    workers: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    checked_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def fifo(self) -> bool:
        return self.queue.definition.fifo

    @property
    def name(self) -> str:
        return self.queue.definition.name


class Drainer:
    """Drains several queues with several workers, until they stay empty."""

    def __init__(
        self,
        source: SourceService,
        target: TargetService,
        drains: Sequence[Drain],
        *,
        settle_seconds: float,
        follow: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._drains = list(drains)
        self._settle_seconds = settle_seconds
        self._follow = follow
        self._next = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._broken: BaseException | None = None

    def run(self, workers: int, progress: Progress) -> None:
        """Run until all queues are drained or have failed; after a KeyboardInterrupt finish the work in progress."""
        threads = [threading.Thread(target=self._work, name=f"drain-{place}", daemon=True) for place in range(workers)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(0.05)
                progress.within(self._progress_text())
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()
            progress.done()
        if self._broken is not None:
            raise self._broken

    def _progress_text(self) -> str:
        moved = sum(one.forwarded for one in self._drains)
        open_ = [one for one in self._drains if not one.done]
        waiting = next((f"; {one.name}: {one.waiting}" for one in open_ if one.waiting), "")
        return f"{moved:,} messages moved, {len(open_)} of {len(self._drains)} queues to go{waiting}"

    # --- workers ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                drain = self._take()
                if drain is None:
                    if all(one.done for one in self._drains):
                        return
                    self._stopping.wait(0.05)
                    continue
                try:
                    self._turn(drain)
                except CommandFailed as error:
                    drain.failure, drain.done = error, True
                finally:
                    with self._lock:
                        drain.workers -= 1
        except BaseException as error:  # raised by run()
            self._broken = error
            self._stopping.set()

    def _take(self) -> Drain | None:
        """The next queue for a worker; several workers may share a standard queue."""
        with self._lock:
            for step in range(len(self._drains)):
                drain = self._drains[(self._next + step) % len(self._drains)]
                if not drain.done and not (drain.fifo and drain.workers):
                    self._next = (self._next + step + 1) % len(self._drains)
                    drain.workers += 1
                    return drain
        return None

    def _turn(self, drain: Drain) -> None:
        for _ in range(_TURN_RECEIVES):
            if self._stopping.is_set() or drain.done:
                return
            arrived = self._source.receive(drain.queue, _POLL_SECONDS)
            new = [one for one in arrived if one.id not in drain.left]
            if not new:
                self._check_drained(drain)
                return
            with drain.lock:
                drain.arrived_at, drain.waiting = time.monotonic(), ""
            if drain.fifo:
                self._forward_in_order(drain, new)
            else:
                self._forward(drain, new)

    def _check_drained(self, drain: Drain) -> None:
        """Check after an empty receive if the queue is drained."""
        now = time.monotonic()
        with drain.lock:
            if now - drain.checked_at < _CHECK_SECONDS:
                return
            drain.checked_at = now
        counted = self._source.count(drain.queue)
        with drain.lock:
            stays = len(drain.left)
            if counted.delayed or counted.visible + counted.in_flight > stays:
                there = f"{counted.visible} visible, {counted.in_flight} in flight, {counted.delayed} delayed"
                drain.waiting = f"waiting for messages at the source ({there})"
                if counted.delayed or counted.in_flight > stays:
                    drain.arrived_at = now
            elif not self._follow and now - drain.arrived_at >= self._settle_seconds:
                drain.done = True

    # --- forwarding ---------------------------------------------------------------------------------------

    def _forward(self, drain: Drain, arrived: Sequence[Arrived]) -> None:
        fresh = [one for one in arrived if self._sendable(drain, one) and drain.ledger.claim(one.id)]
        if fresh:
            drain.ledger.sending(fresh, by_group=False)
            for one in fresh:
                self._target.send_one(drain.name, one.message, self._token(drain, one.id))
            drain.ledger.sent(fresh)
        self._delete(drain, arrived, len(fresh))

    def _sendable(self, drain: Drain, one: Arrived) -> bool:
        try:
            self._checked(drain, one)
        except Unsendable as error:
            with drain.lock:
                drain.left[one.id] = str(error)
            return False
        return True

    def _forward_in_order(self, drain: Drain, arrived: Sequence[Arrived]) -> None:
        sized: list[tuple[Arrived, int]] = []
        failure: CommandFailed | None = None
        for one in arrived:
            if drain.ledger.is_stored(one.id):
                continue
            try:
                sized.append((one, self._checked(drain, one)))
            except Unsendable as error:
                failure = _blocked(drain, one, str(error))
                break
        by_group = drain.target.attributes.get("DeduplicationScope") == "messageGroup"
        for batch in batches(iter(sized)):
            made = drain.ledger.sending(batch, by_group=by_group)
            token = self._token(drain, *(one.id for one in batch))
            try:
                self._target.send(drain.name, [one.message for one in made], token, fifo=True)
            except EntryRefused as error:
                raise _blocked(drain, batch[error.place], str(error)) from None
            drain.ledger.sent(batch)
        self._delete(drain, arrived, len(sized))
        if failure is not None:
            raise failure

    def _checked(self, drain: Drain, one: Arrived) -> int:
        """Validate a message; returns its size.  Raises :class:`Unsendable`."""
        target = drain.target
        return one.message.check(fifo=drain.fifo, delay_max=target.delay_max, bytes_max=target.bytes_max)

    def _delete(self, drain: Drain, arrived: Sequence[Arrived], forwarded: int) -> None:
        """Delete at the source the messages stored here."""
        stored = [one for one in arrived if drain.ledger.is_stored(one.id)]
        with drain.lock:
            drain.forwarded += forwarded
        if stored:
            drain.ledger.deleted(self._source.delete(drain.queue, stored))

    def _token(self, drain: Drain, *ids: str) -> str:
        """Token of these messages, the same at each attempt."""
        name = "\0".join((self._source.endpoint, str(drain.queue.definition.arn), *ids))
        return f"move:{blake2b(name.encode(), digest_size=20).hexdigest()}"


def _blocked(drain: Drain, one: Arrived, reason: str) -> CommandFailed:
    return CommandFailed(
        f"message {one.id} of {drain.name} cannot be forwarded: {reason}; it stays at the source with all "
        "messages after it, to keep their order"
    )


def reasons(drains: Sequence[Drain]) -> list[str]:
    """Reasons for messages that stay at the source, limited to the first ones."""
    lines = [f"{one.name}: message {id_}: {reason}" for one in drains for id_, reason in one.left.items()]
    more = len(lines) - REASONS_SHOWN
    return [*lines[:REASONS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
