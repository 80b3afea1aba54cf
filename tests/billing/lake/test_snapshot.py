"""Snapshots: publication by a pointer, readers during a replacement, and the removal of old runs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.snapshot import Outrun, Snapshot, new_run, read_named, remove_unnamed, started_at

NOW = datetime(2026, 11, 3, 5, tzinfo=UTC)
RUNS = "table/runs"


class Published(msgspec.Struct, frozen=True):
    run: str
    files: tuple[str, ...]


@pytest.fixture
def snapshot(lake: Lake) -> Snapshot[Published]:
    return Snapshot(lake, "table/now.json", Published, published="the table was made", repair="make it again")


def written(lake: Lake, *files: str, now: datetime = NOW) -> Published:
    """Write a run's files, without publishing them."""
    run = new_run(now)
    paths = tuple(f"{RUNS}/{run}/{name}" for name in files)
    for path in paths:
        lake.write_bytes(path, path.encode())
    return Published(run, paths)


def read(lake: Lake, snapshot: Snapshot[Published]) -> Published | None:
    """Read a snapshot's files; returns the pointer that named them."""

    def whole(published: Published | None) -> Published | None:
        for path in () if published is None else published.files:
            if lake.read_bytes(path) != path.encode():
                raise FileNotFoundError(path)
        return published

    return read_named(snapshot.current, whole, "a file of the table is missing")


def test_a_run_is_visible_when_its_pointer_is_written(lake: Lake, snapshot: Snapshot[Published]) -> None:
    first = written(lake, "a", "b")
    assert read(lake, snapshot) is None
    snapshot.publish(first, None, first.files)
    assert read(lake, snapshot) == first
    second = written(lake, "c")
    assert read(lake, snapshot) == first
    snapshot.publish(second, first, second.files)
    assert read(lake, snapshot) == second


def test_the_pointer_is_compact_or_indented_json(lake: Lake, snapshot: Snapshot[Published]) -> None:
    pointer = Published("r", ("f",))
    snapshot.publish(pointer, None)
    assert lake.read_bytes("table/now.json") == b'{"run":"r","files":["f"]}'
    indented = Snapshot(lake, "table/day.json", Published, published="", repair="", indented=True)
    indented.publish(pointer, None)
    assert lake.read_bytes("table/day.json") == b'{\n "run": "r",\n "files": [\n  "f"\n ]\n}'
    assert indented.current() == pointer


@pytest.mark.parametrize("failing", ["sync", "write_bytes"])
def test_a_crash_between_write_and_publish_leaves_the_previous_run(
    lake: Lake, snapshot: Snapshot[Published], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    first = written(lake, "a")
    snapshot.publish(first, None, first.files)
    crashed = written(lake, "b")

    def crash(*arguments: object) -> None:
        raise LakeUnavailable("crashed")

    with monkeypatch.context() as patched:
        patched.setattr(lake, failing, crash)
        with pytest.raises(LakeUnavailable):
            snapshot.publish(crashed, first, crashed.files)
    assert read(lake, snapshot) == first
    again = written(lake, "b")
    snapshot.publish(again, first, again.files)
    assert remove_unnamed(lake, RUNS, again.files) == 2
    assert read(lake, snapshot) == again


def test_files_are_durable_before_the_pointer(
    lake: Lake, snapshot: Snapshot[Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(lake, "a", "b")
    steps: list[str] = []

    def sync(paths: Sequence[str]) -> None:
        steps.extend(paths)

    def write_bytes(path: str, data: bytes) -> None:
        steps.append(path)

    monkeypatch.setattr(lake, "sync", sync)
    monkeypatch.setattr(lake, "write_bytes", write_bytes)
    snapshot.publish(run, None, run.files)
    assert steps == [*run.files, "table/now.json"]


def test_a_missing_file_is_not_published(lake: Lake, snapshot: Snapshot[Published]) -> None:
    run = written(lake, "a")
    lake.remove(run.files[0])
    with pytest.raises(LakeUnavailable, match="cannot be written"):
        snapshot.publish(run, None, run.files)
    assert snapshot.current() is None


def test_the_slower_of_two_runs_is_not_published(lake: Lake, snapshot: Snapshot[Published]) -> None:
    first, second, slower = written(lake, "a"), written(lake, "b"), written(lake, "c")
    snapshot.publish(first, None)
    snapshot.publish(second, first)
    for over in (None, first):
        with pytest.raises(Outrun, match=f"^the table was made meanwhile by the run {second.run}; make it again$"):
            snapshot.publish(slower, over)
    assert snapshot.current() == second


def test_a_snapshot_is_created_once(lake: Lake, snapshot: Snapshot[Published]) -> None:
    first = written(lake, "a")
    snapshot.create(first)
    with pytest.raises(FileExistsError):
        snapshot.create(written(lake, "b"))
    assert snapshot.current() == first


def test_a_reader_during_a_replacement_reads_the_new_run(lake: Lake, snapshot: Snapshot[Published]) -> None:
    runs = [written(lake, "a", "b") for _ in range(4)]
    snapshot.publish(runs[0], None)
    attempts: list[str] = []

    def replaced_meanwhile(published: Published | None) -> Published | None:
        assert published is not None
        attempts.append(published.run)
        if len(attempts) < len(runs):
            snapshot.publish(runs[len(attempts)], published)
            remove_unnamed(lake, RUNS, [path for run in runs[len(attempts) :] for path in run.files])
        if lake.read_bytes(published.files[-1]) is None:
            raise FileNotFoundError(published.files[-1])
        return published

    assert read_named(snapshot.current, replaced_meanwhile, "a file of the table is missing") == runs[-1]
    assert attempts == [run.run for run in runs]


def test_a_missing_file_and_a_damaged_pointer_are_errors(lake: Lake, snapshot: Snapshot[Published]) -> None:
    run = written(lake, "a")
    snapshot.publish(run, None)
    lake.remove(run.files[0])
    with pytest.raises(LakeUnavailable, match=r"^a file of the table is missing \(.*/a\)$"):
        read(lake, snapshot)
    for damaged in (b"{", b"{}"):
        lake.write_bytes("table/now.json", damaged)
        with pytest.raises(LakeUnavailable, match=r"^table/now\.json in the lake is damaged, make it again: "):
            snapshot.current()


def test_unnamed_files_of_runs_that_started_long_ago_are_removed(lake: Lake) -> None:
    long_ago = NOW - timedelta(hours=25)
    named, killed = written(lake, "a", now=long_ago), written(lake, "a", "_temporary/0/.part-1.crc", now=long_ago)
    under_way = written(lake, "a", now=NOW - timedelta(hours=23))
    lake.write_bytes(f"{RUNS}/other/a", b"")
    for expected in (2, 0):
        assert remove_unnamed(lake, RUNS, named.files, started_before=NOW - timedelta(hours=24)) == expected
    assert lake.paths(RUNS) == sorted([*named.files, *under_way.files, f"{RUNS}/other/a"])
    assert lake.read_bytes(killed.files[1]) is None


def test_names_of_runs_sort_by_start() -> None:
    assert new_run(NOW) < new_run(NOW + timedelta(seconds=1)) < new_run(NOW + timedelta(days=400))
    assert new_run(NOW) != new_run(NOW)
    assert started_at(new_run(NOW)) == NOW
