"""The SQLite store: the conformance suite, and tests of its own properties."""

import asyncio
import sqlite3
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from auth.credentials import AccessKey, ApiKey, Tenant
from auth.encryption.data_keys import DataKey
from metadata_service.opening import CannotOpen
from metadata_service.schema import CannotRollBack, SchemaState
from metadata_service.sqlite import schema
from metadata_service.sqlite.schema import SCHEMA, roll_back, stored_version
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.sqlite.thread import Worker
from metadata_service.store import QueueExists, StoreUnavailable, TooManyStreams
from metadata_service.streams import NewStream
from tests.metadata_service import next_step
from tests.metadata_service.conformance import (
    ACCOUNT,
    ClusterConformance,
    LifetimeConformance,
    Opening,
    StoreConformance,
    create,
    create_stream,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path)
    yield store
    await store.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with opened(path) as store:
        yield store


class TestSQLiteConformance(StoreConformance, ClusterConformance, LifetimeConformance):
    @pytest.fixture
    def opening(self, path: Path) -> Opening:
        return lambda: opened(path)


async def test_only_the_owner_can_read_the_files(path: Path, store: SQLiteStore) -> None:
    await create(store, "orders")
    files = list(path.parent.iterdir())
    assert len(files) == 3  # the file, its write-ahead log and the log's index
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_commits_survive_a_power_loss(path: Path, store: SQLiteStore) -> None:
    """The two settings that ensure it; the first is a property of the file, the second of the connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert await store._worker.read(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (2,)


# --- versions of the schema -------------------------------------------------------------------------------


def first_version(path: Path) -> sqlite3.Connection:
    """A file of the first version."""
    db = sqlite3.connect(path, isolation_level=None)
    for statement in SCHEMA.steps[0].forward:
        db.execute(statement)
    db.execute("INSERT INTO schema_version (version) VALUES (1)")
    return db


def tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


async def test_released_formats_do_not_change(path: Path) -> None:
    """The fixture is a file of the first release: changing a released step would make another one."""
    released = (Path(__file__).parents[1] / "fixtures" / "sqlite-6.sql").read_text()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for step in SCHEMA.steps[:6]:
            for statement in step.forward:
                db.execute(statement)
    assert ";\n".join(tables(path)) + ";\n" == released


async def test_a_newer_schema_is_refused(path: Path) -> None:
    await SQLiteStore(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for oldest in (SCHEMA.version + 1, 0):  # 0: not recorded, so it is as new as its version
            db.execute("UPDATE schema_version SET version = ?", (SCHEMA.version + 1,))
            db.execute(f"PRAGMA user_version = {oldest}")
            with pytest.raises(CannotOpen, match="written by a newer Holdfast"):
                SQLiteStore(path)


async def test_a_file_of_the_first_schema_is_brought_to_this_one(path: Path) -> None:
    with closing(first_version(path)) as db:
        db.execute(
            "INSERT INTO tenants (account, record) VALUES (?, ?)", (ACCOUNT, f'{{"account":"{ACCOUNT}","name":"root"}}')
        )
    key = DataKey(ACCOUNT, 1, "mk-1", b"wrapped")
    for _ in range(2):  # the second finds nothing to do
        async with opened(path) as store:
            assert await store.credentials.get_tenant(ACCOUNT) == Tenant(ACCOUNT, "root")
            if not await store.data_keys.data_keys():
                await store.data_keys.add_data_key(key)
            assert await store.data_keys.data_keys() == [key]
            await store.credentials.put_access_key(AccessKey("AKIA", "t", ACCOUNT, "AIDA"))
            await store.credentials.put_api_key(ApiKey("k", b"d", ACCOUNT, "AIDA"))
    assert stored_version(path) == SCHEMA.stored(SCHEMA.version)


async def test_a_step_to_a_newer_schema_is_taken_whole_or_not_at_all(path: Path) -> None:
    with closing(first_version(path)) as db:
        db.execute("CREATE INDEX data_keys_by_account ON tenants (account)")  # conflicts with the step's last statement
    with pytest.raises(CannotOpen, match="cannot be used"):
        SQLiteStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        assert db.execute("SELECT 1 FROM sqlite_master WHERE name = 'data_keys'").fetchone() is None


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of the next release."""
    monkeypatch.setattr(schema, "SCHEMA", next_step.NEXT)


async def test_the_release_before_works_on_a_step_that_expands(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same time as the newer one, whose step it leaves alone."""
    before = SQLiteStore(path)
    with monkeypatch.context() as after:
        after.setattr(schema, "SCHEMA", next_step.NEXT)
        newer = SQLiteStore(path)
    assert stored_version(path) == SchemaState(SCHEMA.version + 1, next_step.BEFORE.stored(SCHEMA.version).oldest)
    again = SQLiteStore(path)
    for number, store in enumerate((before, newer, again)):
        await create(store, f"q{number}")
        assert await newer.queues.list_queues(ACCOUNT, limit=10) == [f"q{n}" for n in range(number + 1)]
    assert "colour" in "".join(tables(path))
    for store in (before, newer, again):
        await store.close()


@pytest.mark.usefixtures("newer")
async def test_one_step_back_and_forward_again(path: Path) -> None:
    async with opened(path) as store:
        await create(store, "orders")
    with_step = tables(path)
    for _ in range(2):  # it is one step, however often it is requested
        assert roll_back(path) == next_step.BEFORE.stored(next_step.BEFORE.version)
        assert "colour" not in "".join(tables(path))
    assert stored_version(path) == next_step.BEFORE.stored(next_step.BEFORE.version)
    async with opened(path) as again:
        assert await again.queues.list_queues(ACCOUNT, limit=10) == ["orders"]
    assert tables(path) == with_step


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    "change", ["INSERT INTO colours VALUES ('red')", "UPDATE queues SET colour = 'red' WHERE name = 'orders'"]
)
async def test_a_step_back_that_would_lose_something_is_refused(path: Path, change: str) -> None:
    async with opened(path) as store:
        await create(store, "orders")
    before = tables(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)
    with pytest.raises(CannotRollBack, match="the rollback would lose it: nothing was changed"):
        roll_back(path)
    assert tables(path) == before
    assert stored_version(path).version == next_step.NEXT.version


async def test_a_step_back_during_a_write_is_refused_and_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA", next_step.NEXT)
    await SQLiteStore(path).close()
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(CannotRollBack, match="database is locked; it is unchanged"):
            roll_back(path)
        db.execute("ROLLBACK")
    assert stored_version(path).version == next_step.NEXT.version


async def test_destroyed_keys_are_in_no_file(path: Path, store: SQLiteStore) -> None:
    secret = "destroy-me-" * 50
    for key_id in range(40):
        await store.data_keys.add_data_key(DataKey(ACCOUNT, key_id, secret, b""))
    files = [path, path.with_name(path.name + "-wal")]
    assert any(secret.encode() in file.read_bytes() for file in files)
    writes = [asyncio.ensure_future(create(store, f"q{number}")) for number in range(20)]
    assert await store.data_keys.destroy_data_keys(ACCOUNT) == 40
    await asyncio.gather(*writes)
    assert not any(secret.encode() in file.read_bytes() for file in files)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(CannotOpen, match=r"metadata\.sqlite cannot be used: file is not a database"):
        SQLiteStore(path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="cannot be opened"):
        SQLiteStore(tmp_path / "none" / "metadata.sqlite")


async def test_work_requested_before_closing_is_done(store: SQLiteStore) -> None:
    pending = [asyncio.ensure_future(create(store, f"q{number}")) for number in range(600)]
    await asyncio.sleep(0)
    await store.close()
    assert len({queue.queue_id for queue in await asyncio.gather(*pending)}) == 600


async def test_a_page_costs_the_same_among_many_queues(path: Path, store: SQLiteStore) -> None:
    """By SQLite's query plans: a search in an index, never a scan or a sort."""
    plans: list[str] = []
    await store._worker.read(lambda db: db.set_trace_callback(plans.append))
    await store.queues.list_queues(ACCOUNT, limit=10)
    await store.queues.list_queues(ACCOUNT, prefix="a", after="b", limit=10)
    await store.queues.dead_letter_sources(ACCOUNT, "arn:x", limit=10)
    await store.queues.dead_letter_sources(ACCOUNT, "arn:x", after="a", limit=10)
    await store.queues.list_queue_tags(ACCOUNT, after="a", limit=10)
    assert len(plans) == 5
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in plans:
            ((*_, plan),) = db.execute("EXPLAIN QUERY PLAN " + statement)
            assert plan.startswith(f"SEARCH queues USING {'' if 'record' in statement else 'COVERING '}INDEX")


async def test_a_page_of_streams_and_a_quota_cost_the_same_among_many(path: Path, store: SQLiteStore) -> None:
    await create_stream(store, "a")
    plans: list[str] = []
    await store._worker.read(lambda db: db.set_trace_callback(plans.append))
    await store.streams.list_streams(ACCOUNT, after="a", limit=10)
    await store.streams.get_stream(ACCOUNT, "a")
    with pytest.raises(TooManyStreams):
        await store.streams.create_stream(NewStream(ACCOUNT, "b", {}, {}, 0, streams_max=9, partitions_max=1))
    plans = [plan for plan in plans if " streams " in plan]
    assert len(plans) == 5
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in plans:
            ((*_, plan),) = db.execute("EXPLAIN QUERY PLAN " + statement)
            assert plan.startswith("SEARCH streams USING "), (statement, plan)


async def test_creating_a_queue_costs_little(store: SQLiteStore) -> None:
    await create(store, "first")
    before = time.process_time()
    await asyncio.gather(*(create(store, f"q{number}") for number in range(1000)))
    assert (time.process_time() - before) / 1000 < 0.001


class CountingConnection(sqlite3.Connection):
    """Counts commits, and refuses them on request."""

    commits = 0
    refuse = False

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql == "COMMIT":
            if self.refuse:
                raise sqlite3.OperationalError("database or disk is full")
            self.commits += 1
        return super().execute(sql, parameters)


@pytest.fixture
async def counting(path: Path) -> AsyncIterator[tuple[Worker, CountingConnection]]:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=CountingConnection)
    connection.execute("CREATE TABLE t (x INTEGER PRIMARY KEY)")
    worker = Worker(connection)
    yield worker, connection
    await worker.close()


async def test_waiting_writes_share_a_commit(counting: tuple[Worker, CountingConnection]) -> None:
    worker, connection = counting

    def insert(x: int) -> Any:
        return lambda db: db.execute("INSERT INTO t VALUES (?)", (x,)).rowcount

    await asyncio.gather(*(worker.write(insert(x)) for x in range(200)))
    assert connection.commits < 100
    assert await worker.read(lambda db: db.execute("SELECT count(*) FROM t").fetchone()) == (200,)


async def test_a_refused_write_takes_nothing_with_it(counting: tuple[Worker, CountingConnection]) -> None:
    worker, _ = counting

    def insert(x: int) -> Any:
        def run(db: sqlite3.Connection) -> int:
            db.execute("INSERT INTO t VALUES (?)", (x,))
            if x % 2:
                raise KeyError(x)
            return x

        return run

    outcomes = await asyncio.gather(*(worker.write(insert(x)) for x in range(50)), return_exceptions=True)
    assert [outcome for outcome in outcomes if not isinstance(outcome, KeyError)] == list(range(0, 50, 2))
    rows = await worker.read(lambda db: db.execute("SELECT x FROM t ORDER BY x").fetchall())
    assert rows == [(x,) for x in range(0, 50, 2)]


async def test_a_failed_commit_fails_all_that_rode_on_it(counting: tuple[Worker, CountingConnection]) -> None:
    worker, connection = counting
    connection.refuse = True
    insert = asyncio.ensure_future(worker.write(lambda db: db.execute("INSERT INTO t VALUES (1)").rowcount))
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await insert
    connection.refuse = False
    assert await worker.read(lambda db: db.execute("SELECT count(*) FROM t").fetchone()) == (0,)
    assert await worker.write(lambda db: db.execute("INSERT INTO t VALUES (1)").rowcount) == 1


async def test_signs_of_life_are_not_synced_and_all_else_is(store: SQLiteStore) -> None:
    levels: list[int] = []

    def note(db: sqlite3.Connection) -> None:
        levels.append(db.execute("PRAGMA synchronous").fetchone()[0])

    def fail(db: sqlite3.Connection) -> None:
        note(db)
        raise StoreUnavailable("it cannot be written")

    await store._worker.write(note)
    await store._worker.write_unsynced(note)
    await store._worker.write(note)
    with pytest.raises(StoreUnavailable):
        await store._worker.write_unsynced(fail)
    await store._worker.write(note)
    normal, full = 1, 2
    assert levels == [full, normal, full, normal, full]


async def test_another_process_with_the_file_makes_it_unavailable(path: Path, store: SQLiteStore) -> None:
    await store._worker.read(lambda db: db.execute("PRAGMA busy_timeout = 1"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await create(store, "orders")
        db.execute("ROLLBACK")
    await create(store, "orders")


async def test_a_caller_that_was_cancelled_leaves_the_others_alone(store: SQLiteStore) -> None:
    first = asyncio.ensure_future(create(store, "a"))
    second = asyncio.ensure_future(create(store, "b"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "b"
    with pytest.raises(QueueExists):
        await create(store, "a")
