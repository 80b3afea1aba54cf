"""``python -m billing.seal SPOOL LAKE``: bring what was counted to the lake.

Reads the finished buffers below the folder ``SPOOL``, writes their records as Parquet files to ``LAKE``, and removes a
buffer when all of its records are there.  Killed in between, it is done again: the same records, with the same ids.
While the lake is away the buffers wait.

It is a process of its own, started now and then: so the library for Parquet takes no memory from those who serve, and
no time.  Exit codes: 0 done, 1 the lake or the spool is unavailable (try again), 2 wrong arguments.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from contextlib import ExitStack
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from billing.buffers import BufferDamaged, Finished, clear, finished
from billing.lake import Lake, LakeUnavailable, hour_of, table_of
from billing.usage import UsageRecord

logger = logging.getLogger("holdfast.usage")

BUFFERS_AT_ONCE: Final = 256
"""As many are open, and in memory, at a time."""
DAMAGED: Final = ".damaged"


class Sealed(NamedTuple):
    """What was brought to the lake."""

    buffers: int
    records: int
    files: int
    damaged: int
    """Buffers that could not be read, and were put aside."""


def seal(spool: Path, lake: Lake) -> Sealed:
    """Bring all finished buffers below ``spool`` to the lake.

    Raises :class:`LakeUnavailable` and :class:`OSError`; what was not brought waits for the next time.
    """
    buffers = records = files = damaged = 0
    clear(spool)
    found = finished(spool)
    while True:
        with ExitStack() as stack:
            group: list[Finished] = []
            for buffer in islice(found, BUFFERS_AT_ONCE):
                stack.callback(buffer.close)
                group.append(buffer)
            if not group:
                return Sealed(buffers, records, files, damaged)
            by_hour: defaultdict[str, list[UsageRecord]] = defaultdict(list)
            whole: list[Finished] = []
            for buffer in group:
                try:
                    counted = buffer.records()
                except BufferDamaged as error:
                    logger.error("usage is lost: %s; it is kept as %s", error, buffer.path.name + DAMAGED)
                    buffer.path.rename(buffer.path.with_name(buffer.path.name + DAMAGED))
                    damaged += 1
                    continue
                for what in buffer.lost:
                    logger.error("usage is lost: of %s cannot be read %s", buffer.path, what)
                whole.append(buffer)
                records += len(counted)
                for record in counted:
                    by_hour[hour_of(record.minute_s)].append(record)
            for hour, of_hour in sorted(by_hour.items()):
                lake.write(hour, _name(of_hour), table_of(of_hour))
                files += 1
            for buffer in whole:
                buffer.remove()
                buffers += 1


def _name(records: list[UsageRecord]) -> str:
    """Of a file with these records: the same whenever they are the same."""
    digest = sha256()
    for record in records:
        digest.update(f"{record.node}\0{record.boot}\0{record.sequence}\0{record.slot}\n".encode())
    return digest.hexdigest()[:32]


def main(arguments: list[str]) -> int:
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    if len(arguments) != 2:
        print("usage: python -m billing.seal SPOOL LAKE", file=sys.stderr)
        return 2
    try:
        lake = Lake(arguments[1])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        done = seal(Path(arguments[0]), lake)
    except (LakeUnavailable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{done.records} records of {done.buffers} buffers in {done.files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
