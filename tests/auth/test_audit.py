"""The audit log: lines cannot be forged, floods do not fill it, and losses are reported."""

import asyncio
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from auth import audit
from auth.audit import SIGN_IN, AuditEntry, AuditFile, AuditLog
from tests.tables import table

ENTRY = AuditEntry("r-1", "arn:aws:iam::000000000000:root", "AKIA1", "10.0.0.9", "queue.purge", "arn:queue", "done")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def refusal(credential: str = "AKIA2", address: str = "10.0.0.1") -> AuditEntry:
    return AuditEntry("r-2", "", credential, address, SIGN_IN, "", "refused", "SignatureDoesNotMatch")


def failing(number: int) -> Callable[..., Any]:
    """Make a system call that fails with this error."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    made = AuditLog(AuditFile(path), lambda: 1_800_000_000.25)
    yield made
    made.close()


async def test_a_line_has_the_caller_the_action_the_time_and_the_address(log: AuditLog, path: Path) -> None:
    await log.write(ENTRY)
    assert lines(path) == [table(__file__, "a line")]


async def test_only_the_owner_can_read_it(path: Path) -> None:
    path.touch(0o644)
    path.chmod(0o644)
    AuditFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "evil", ['"}\n{"action":"forged"}', "\r\n", "\u2028\u2029\x85", "\x1b[2J\x9b", "\x7f\0", "\ud800"]
)
async def test_nothing_that_was_sent_ends_a_line_or_reaches_a_terminal(log: AuditLog, path: Path, evil: str) -> None:
    await log.write(msgspec.structs.replace(ENTRY, target=evil, credential=evil))
    content = path.read_bytes()
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in content[:-1])
    assert json.loads(content)["target"] == evil


async def test_long_values_are_cut(log: AuditLog, path: Path) -> None:
    await log.write(msgspec.structs.replace(ENTRY, target="x" * 100_000))
    assert path.stat().st_size < 2_000


async def test_the_end_of_a_torn_line_does_not_hide_the_next_one(path: Path) -> None:
    path.write_bytes(b'{"time":"2027')
    log = AuditLog(AuditFile(path))
    await log.write(ENTRY)
    log.close()
    assert path.read_bytes().split(b"\n")[0] == b'{"time":"2027'
    assert json.loads(path.read_bytes().split(b"\n")[1])["action"] == "queue.purge"


async def test_files_are_rotated_and_the_oldest_is_removed(path: Path) -> None:
    log = AuditLog(AuditFile(path, bytes_max=600, files_max=3))
    for number in range(20):
        await log.write(msgspec.structs.replace(ENTRY, request_id=f"r-{number}"))
    log.close()
    files = sorted(entry.name for entry in path.parent.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    kept = [line["request_id"] for name in reversed(files) for line in lines(path.parent / name)]
    assert kept == [f"r-{number}" for number in range(20 - len(kept), 20)]
    assert all((path.parent / name).stat().st_size <= 600 for name in files)
    assert all(stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600 for name in files)


def test_of_two_files_the_predecessor_is_replaced(path: Path) -> None:
    file = AuditFile(path, bytes_max=5, files_max=2)
    for number in range(4):
        file.append(f"line {number}".encode())
    file.close()
    assert {one.name: one.read_text() for one in path.parent.iterdir()} == {
        path.name: "line 3\n",
        f"{path.name}.1": "line 2\n",
    }


async def test_of_two_that_write_one_rotates_and_the_other_follows(path: Path) -> None:
    one, other = (AuditLog(AuditFile(path, bytes_max=600, files_max=9)) for _ in range(2))
    for number in range(20):
        await (one if number % 3 else other).write(msgspec.structs.replace(ENTRY, request_id=f"r-{number}"))
    one.close()
    other.close()
    files = [path, *(path.with_name(f"audit.jsonl.{number}") for number in range(1, 9))]
    kept = [line["request_id"] for file in reversed(files) if file.exists() for line in lines(file)]
    assert kept == [f"r-{number}" for number in range(20 - len(kept), 20)]
    assert all(file.stat().st_size <= 600 for file in files if file.exists())


def test_the_file_is_there_at_each_step_of_a_rotation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would take an old generation for the current file."""
    there: list[bool] = []

    def watch(name: str) -> None:
        step = getattr(os, name)

        def watched(*names: Path) -> None:
            step(*names)
            there.append(path.exists())

        monkeypatch.setattr(os, name, watched)

    watch("replace")
    watch("link")
    file = AuditFile(path, bytes_max=5, files_max=4)
    for number in range(6):
        file.append(f"line {number}".encode())
    file.close()
    assert len(there) > 6
    assert all(there)
    kept = [path.with_name(f"{path.name}.{number}") for number in (3, 2, 1)] + [path]
    assert [one.read_text() for one in kept] == [f"line {number}\n" for number in (2, 3, 4, 5)]


def test_a_rotation_continues_where_one_was_killed(path: Path) -> None:
    file = AuditFile(path, bytes_max=5, files_max=4)
    file.append(b"first")
    os.link(path, path.with_name(f"{path.name}.1"))
    file.append(b"second")
    file.close()
    assert {one.name: one.read_text() for one in path.parent.glob(f"{path.name}*")} == {
        path.name: "second\n",
        f"{path.name}.1": "first\n",
    }


async def test_writers_do_not_wait_for_the_disk_of_a_rotation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, reached = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        reached.set()
        assert disk.wait(60)

    monkeypatch.setattr(os, "fdatasync", slow)
    file = AuditFile(path, bytes_max=30)
    file.append(b'{"number": 1, "full": true}')
    with path.open("rb") as other:
        syncing = asyncio.create_task(file.sync())
        assert await asyncio.to_thread(reached.wait, 60)
        try:
            file.append(b'{"number": 2}')
            assert path.with_name("audit.jsonl.1").exists()
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # like another process that is about to rotate it
        finally:
            disk.set()
            await syncing
            file.close()


def test_processes_that_write_one_file_lose_no_line(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from auth.audit import AuditFile\n"
        "file = AuditFile(Path(sys.argv[1]), bytes_max=2000, files_max=1000)\n"
        "sys.stdin.read()\n"
        'for number in range(500): file.append(b\'{"who": %d, "what": %d}\' % (int(sys.argv[2]), number))\n'
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(who)], stdin=subprocess.PIPE)
        for who in range(3)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    written = [line for file in path.parent.iterdir() for line in lines(file)]
    assert sorted((line["who"], line["what"]) for line in written) == [(w, n) for w in range(3) for n in range(500)]
    assert len(list(path.parent.iterdir())) > 10


async def test_a_rotation_that_fails_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(AuditFile(path, bytes_max=300))
    await log.write(ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EMFILE))
        await log.write(ENTRY)
        await log.write(ENTRY)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    await log.write(ENTRY)
    log.close()
    written = [line for file in sorted(path.parent.iterdir(), reverse=True) for line in lines(file)]
    assert [(line["action"], line.get("count")) for line in written] == [
        ("queue.purge", None),
        ("audit.gap", 2),
        ("queue.purge", None),
    ]


async def test_lines_that_cannot_be_written_are_reported_and_counted(
    log: AuditLog, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        await log.write(ENTRY)
        await log.write(msgspec.structs.replace(ENTRY, request_id="r-7"))
    assert "No space left on device" in caplog.text
    assert '"request_id":"r-7"' in caplog.text
    await log.write(msgspec.structs.replace(ENTRY, request_id="r-8"))
    assert [(line["action"], line.get("count")) for line in lines(path)[-2:]] == [
        ("audit.gap", 2),
        ("queue.purge", None),
    ]


async def test_a_line_that_was_written_in_part_is_ended_first(
    log: AuditLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, room = os.write, [20]

    def nearly_full(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = really(file, data[: room[0]])
        room[0] -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        await log.write(ENTRY)
    await log.write(ENTRY)
    torn, gap, act = path.read_bytes().split(b"\n")[:-1]
    assert len(torn) == 20
    assert json.loads(gap)["action"] == "audit.gap"
    assert json.loads(act)["action"] == "queue.purge"


@mock.patch.object(os, "fdatasync", failing(errno.EIO))
async def test_a_disk_that_does_not_sync_is_reported(log: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    await log.write(ENTRY)
    assert "Input/output error" in caplog.text


# --- refused sign-ins -----------------------------------------------------------------------------------------


async def test_the_first_refusals_of_a_pair_get_lines_and_the_rest_a_count(log: AuditLog, path: Path) -> None:
    for _ in range(1_000):
        log.refused_sign_in(refusal())
    log.refused_sign_in(refusal(address="10.0.0.2"))
    written = lines(path)
    assert [line["address"] for line in written] == ["10.0.0.1"] * audit.LINES_OF_PAIR_MAX + ["10.0.0.2"]
    log.end_minute()
    (counted,) = lines(path)[len(written) :]
    assert (counted["credential"], counted["address"]) == ("AKIA2", "10.0.0.1")
    assert counted["count"] == 1_000 - audit.LINES_OF_PAIR_MAX


async def test_a_flood_from_everywhere_is_bounded_and_none_is_lost(log: AuditLog, path: Path) -> None:
    for number in range(5_000):
        log.refused_sign_in(refusal(credential=f"AKIA{number}", address=f"10.0.{number % 250}.1"))
    log.end_minute()
    written = lines(path)
    assert len(written) <= audit.LINES_MAX + audit.PAIRS_MAX + 1
    assert sum(line.get("count", 1) for line in written) == 5_000


async def test_after_a_minute_counting_begins_anew(log: AuditLog, path: Path) -> None:
    for _ in range(audit.LINES_OF_PAIR_MAX + 1):
        log.refused_sign_in(refusal())
    log.end_minute()
    before = len(lines(path))
    log.refused_sign_in(refusal())
    assert len(lines(path)) == before + 1


@mock.patch.object(audit, "MINUTE_SECONDS", 0.01)
async def test_the_counts_are_written_without_a_further_refusal(log: AuditLog, path: Path) -> None:
    for _ in range(audit.LINES_OF_PAIR_MAX + 3):
        log.refused_sign_in(refusal())
    while len(lines(path)) == audit.LINES_OF_PAIR_MAX:
        await asyncio.sleep(0.005)
    assert lines(path)[-1]["count"] == 3


async def test_closing_writes_the_counts(path: Path) -> None:
    log = AuditLog(AuditFile(path))
    for _ in range(audit.LINES_OF_PAIR_MAX + 2):
        log.refused_sign_in(refusal())
    log.close()
    assert lines(path)[-1]["count"] == 2
