"""The audit log: administrative actions with actor, address and outcome.  One JSON object per line, no secrets.

Two kinds of events are written: administrative actions, each with its own line, and refused sign-ins, of which
attackers can cause any number.  The latter are bounded: the first ones of a minute get a line each, the rest
are counted by credential and address, and the counts are written at the end of the minute.

A line is plain ASCII, whatever was sent: control characters and Unicode line ends are escaped.  A line that
cannot be written goes to the service's own log, and the next line that can be written is preceded by the number
of missing ones.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

Outcome = Literal["done", "refused", "failed"]
"""``refused``: nothing was changed, for a reason on the caller's side; ``failed``: on the service's side."""

FILE_BYTES_MAX = 64 << 20
FILES_MAX = 8
"""Number of files: the current one and its predecessors, ``.1`` the latest."""
VALUE_CHARACTERS_MAX = 512
SIGN_IN = "sign-in"
"""Action of a refused sign-in."""
MINUTE_SECONDS = 60
LINES_OF_PAIR_MAX = 5
"""Maximum number of lines per minute for refused sign-ins of one credential and address."""
LINES_MAX = 30
"""Maximum number of lines per minute for all refused sign-ins."""
PAIRS_MAX = 30
"""Maximum number of credential and address pairs counted separately per minute; the others share one count."""

logger = logging.getLogger("holdfast.audit")


class AuditEntry(msgspec.Struct, frozen=True):
    """Content of a line, without the time."""

    request_id: str
    principal: str
    """ARN of the caller; empty if not known."""
    credential: str
    """Public id of the key or token; the claimed one for a refused sign-in."""
    address: str
    """Address of the client."""
    action: str
    target: str
    """Object of the action, such as a queue's ARN, a tenant's account or a key's id."""
    outcome: Outcome
    reason: str = ""
    """Reason of a refusal or failure: a code, or a short text."""
    made: str = ""
    """Public id of a credential created by the action; left out otherwise."""


class AuditFile:
    """An append-only file with a bounded number of generations of bounded size, readable only by its owner.

    Several processes may have it open: a line is one write to its end, one of them rotates it, and the others
    follow.
    """

    def __init__(self, path: Path, *, bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX) -> None:
        """Open or create the file.  Raises ``OSError``."""
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file = self._open()

    def _open(self) -> int:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(file, 0o600)
        return file

    def append(self, line: bytes) -> None:
        """Append a line, given without its end.  Raises ``OSError``; a part of it may then have been written."""
        if not self._is_in_place():
            self._follow()
        size = os.fstat(self._file).st_size
        if size and size + len(line) > self._bytes_max:
            self._rotate()
            size = os.fstat(self._file).st_size
        # The last line lacks its end if its process was killed, or the disk was full.
        torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line + b"\n"
        while data:
            data = data[os.write(self._file, data) :]

    async def sync(self) -> None:
        """Wait until all lines are on disk.  Raises ``OSError``."""
        file = os.dup(self._file)  # the file may be rotated and closed meanwhile
        try:
            await asyncio.to_thread(os.fdatasync, file)
        finally:
            os.close(file)

    def _is_in_place(self) -> bool:
        """True if the open file is the one of this name, or if there is none of this name."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return True
        return os.path.samestat(found, os.fstat(self._file))

    def _follow(self) -> None:
        """Reopen the file after another process has rotated it."""
        file = self._open()
        os.close(self._file)
        self._file = file

    def _rotate(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            # Open the next file before releasing this one: if that fails, nothing has changed.
            file = self._start_next() if self._is_in_place() else self._open()
        finally:
            # Closing would not release the lock while a sync has the file open.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)
        self._file = file

    def _start_next(self) -> int:
        fresh = self.path.with_name(f"{self.path.name}.new")
        file = os.open(fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._shift()
            os.replace(fresh, self.path)
        except OSError:
            os.close(file)
            raise
        return file

    def _shift(self) -> None:
        """Give each file the name of the next older one; the current file keeps its own as well, until it is replaced.

        Without a file of that name, another process could not distinguish an old generation from the current one.
        """
        names = [self.path.with_name(f"{self.path.name}.{n}") for n in range(1, self._files_max)]
        if not names or not self.path.exists():
            return
        if names[0].exists() and os.path.samefile(self.path, names[0]):
            return  # an earlier rotation was interrupted here
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                os.replace(newer, older)
        names[0].unlink(missing_ok=True)  # with two files, the only predecessor is also the oldest
        os.link(self.path, names[0])

    def close(self) -> None:
        os.close(self._file)


class AuditLog:
    """Writes administrative actions and refused sign-ins to a file.  To be used from one event loop.

    Limits per minute apply to each process separately.
    """

    def __init__(self, file: AuditFile, clock: Callable[[], float] = time.time) -> None:
        """``clock``: seconds since the epoch."""
        self._file = file
        self._clock = clock
        self._missing = 0
        """Number of lines lost since the last successful write."""
        self._lines = 0
        """Lines written for refused sign-ins in this minute."""
        self._counted: dict[tuple[str, str], list[int]] = {}
        """Refused sign-ins of this minute by credential and address: their number, and how many got a line."""
        self._others = 0
        """Refused sign-ins of this minute that share one count."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def path(self) -> Path:
        return self._file.path

    async def write(self, entry: AuditEntry) -> None:
        """Write an entry, and wait until it is on disk (or in the service's log, if that fails)."""
        if not self._write(_facts(entry)):
            return
        try:
            await self._file.sync()
        except OSError as error:
            logger.error("the audit log may have lost its last lines: %s", error.strerror)

    def refused_sign_in(self, entry: AuditEntry) -> None:
        """Write or count a refused sign-in.  Never waits for the disk."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MINUTE_SECONDS, self.end_minute)
        pair = (_bounded(entry.credential), _bounded(entry.address))
        counts = self._counted.get(pair)
        if counts is None:
            if len(self._counted) >= PAIRS_MAX:
                self._others += 1
                return
            counts = self._counted[pair] = [0, 0]
        counts[0] += 1
        if counts[1] < LINES_OF_PAIR_MAX and self._lines < LINES_MAX:
            counts[1] += 1
            self._lines += 1
            self._write(_facts(entry))

    def end_minute(self) -> None:
        """Write the counts of refused sign-ins without a line, and reset them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (credential, address), (all_of_pair, written) in self._counted.items():
            if all_of_pair > written:
                self._count(credential, address, all_of_pair - written)
        if self._others:
            self._count("", "", self._others)
        self._counted.clear()
        self._others = self._lines = 0

    def _count(self, credential: str, address: str, count: int) -> None:
        reason = "further ones of this credential and address" if address else "further ones of others"
        entry = AuditEntry("", "", credential, address, SIGN_IN, "", "refused", reason)
        self._write({**_facts(entry), "count": count})

    def close(self) -> None:
        """Write pending counts, and close the file."""
        self.end_minute()
        self._file.close()

    def _write(self, facts: dict[str, Any]) -> bool:
        """Write a line; False if that failed."""
        line = self._line(facts)
        try:
            if self._missing:
                gap = AuditEntry(
                    "", "", "", "", "audit.gap", "", "failed", "lines could not be written; see the service's log"
                )
                self._file.append(self._line({**_facts(gap), "count": self._missing}))
                self._missing = 0
            self._file.append(line)
        except OSError as error:
            self._missing += 1
            logger.error("the audit log cannot be written (%s); the missing line is: %s", error.strerror, line.decode())
            return False
        return True

    def _line(self, facts: dict[str, Any]) -> bytes:
        now = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
        shown = {name: _bounded(value) if isinstance(value, str) else value for name, value in facts.items()}
        return json.dumps({"time": stamp, **shown}, separators=(",", ":")).replace("\x7f", "\\u007f").encode()


def _facts(entry: AuditEntry) -> dict[str, Any]:
    facts = msgspec.structs.asdict(entry)
    if not entry.made:
        del facts["made"]
    return facts


def _bounded(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX] + "..."
