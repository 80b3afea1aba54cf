"""The root tenant's access key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant
from holdfast.runtime.root_tenant import endpoint, ensure_root, shell_lines, take_turn
from holdfast.settings import Settings, SettingsError
from metadata_service.sqlite.store import SQLiteStore

ACCOUNT = "000000000000"
GIVEN = Settings(root_access_key_id="AKIAGIVEN00000000000", root_secret_access_key="given/secret")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    yield store
    await store.close()


async def test_the_first_start_makes_a_key(store: SQLiteStore) -> None:
    key, new = await ensure_root(store, Settings())
    assert new
    assert key.account == ACCOUNT
    assert await store.get_tenant(ACCOUNT) == Tenant(ACCOUNT, "root")
    assert await ensure_root(store, Settings()) == (key, False)


async def test_a_given_key_is_taken(store: SQLiteStore) -> None:
    key, new = await ensure_root(store, GIVEN)
    assert new
    assert (key.access_key_id, key.secret) == ("AKIAGIVEN00000000000", "given/secret")
    assert await ensure_root(store, GIVEN) == (key, False)
    assert await ensure_root(store, Settings()) == (key, False)


async def test_a_given_key_is_added_later(store: SQLiteStore) -> None:
    made, _ = await ensure_root(store, Settings())
    given, new = await ensure_root(store, GIVEN)
    assert new
    assert {key.access_key_id for key in await store.list_access_keys(ACCOUNT)} == {
        made.access_key_id,
        given.access_key_id,
    }


async def test_a_given_secret_replaces_the_old_one_for_the_same_principal(store: SQLiteStore) -> None:
    before, _ = await ensure_root(store, GIVEN)
    after, new = await ensure_root(store, msgspec.structs.replace(GIVEN, root_secret_access_key="other/secret"))
    assert new
    assert after == msgspec.structs.replace(before, secret="other/secret")
    assert await store.get_access_key(before.access_key_id) == after


@pytest.mark.parametrize(
    ("end", "word"), [({"active": False}, "revoked"), ({"expires_s": 1_000}, "rotated and has expired")]
)
async def test_a_given_key_that_has_ended_stays_so(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture, end: dict[str, Any], word: str
) -> None:
    given, _ = await ensure_root(store, GIVEN)
    ended = await store.update_access_key(msgspec.structs.replace(given, **end))
    other, new = await ensure_root(store, GIVEN)
    assert (other.role, new) == ("operator", True)
    assert other.access_key_id != given.access_key_id
    assert await store.get_access_key(given.access_key_id) == ended
    assert await ensure_root(store, GIVEN) == (other, False)
    (told, again) = (record.getMessage() for record in caplog.records)
    assert told == again
    assert f"the root access key {given.access_key_id} of the settings was {word}, and stays so" in told
    assert "root_secret_access_key to a new key" in told
    assert "given/secret" not in told
    newer = msgspec.structs.replace(GIVEN, root_access_key_id="AKIANEWER00000000000")
    assert (await ensure_root(store, newer))[0].access_key_id == "AKIANEWER00000000000"


async def test_a_given_key_keeps_the_end_that_it_was_given(store: SQLiteStore) -> None:
    given, _ = await ensure_root(store, GIVEN)
    await store.update_access_key(msgspec.structs.replace(given, expires_s=2**40))
    key, new = await ensure_root(store, GIVEN)
    assert (key.expires_s, new) == (2**40, False)
    changed, _ = await ensure_root(store, msgspec.structs.replace(GIVEN, root_secret_access_key="other/secret"))
    assert (changed.expires_s, changed.secret) == (2**40, "other/secret")


async def test_another_accounts_key_is_not_taken(store: SQLiteStore) -> None:
    await ensure_root(store, GIVEN)
    with pytest.raises(SettingsError, match="belongs to account 000000000000"):
        await ensure_root(store, msgspec.structs.replace(GIVEN, account="111111111111"))


async def test_another_account_gets_its_own_key(store: SQLiteStore) -> None:
    first, _ = await ensure_root(store, Settings())
    second, new = await ensure_root(store, Settings(account="111111111111"))
    assert new
    assert (first.account, second.account) == (ACCOUNT, "111111111111")


def test_the_lines_for_a_shell() -> None:
    key = AccessKey("AKIAGIVEN00000000000", "it's $secret", ACCOUNT, "AIDA")
    assert shell_lines(key, "http://127.0.0.1:9324", "eu-west-1") == [
        "export AWS_ACCESS_KEY_ID=AKIAGIVEN00000000000",
        """export AWS_SECRET_ACCESS_KEY='it'"'"'s $secret'""",
        "export AWS_ENDPOINT_URL_SQS=http://127.0.0.1:9324 AWS_DEFAULT_REGION=eu-west-1 AWS_REGION=eu-west-1; "
        'aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL_SQS" "$@"; }',
    ]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (Settings(), "http://127.0.0.1:5"),
        (Settings(host="0.0.0.0"), "http://127.0.0.1:5"),
        (Settings(host="::"), "http://[::1]:5"),
        (Settings(host=""), "http://127.0.0.1:5"),
        (Settings(host="::1"), "http://[::1]:5"),
        (Settings(host="queue.example.com"), "http://queue.example.com:5"),
        (Settings(host="0.0.0.0", tls_cert=Path("c"), tls_key=Path("k")), "https://localhost:5"),
    ],
)
def test_where_a_client_reaches_it(settings: Settings, url: str) -> None:
    assert endpoint(settings, 5) == url


async def test_of_many_that_start_at_once_one_makes_the_key(store: SQLiteStore) -> None:
    async def start() -> tuple[AccessKey, bool]:
        await take_turn(store, ACCOUNT)
        return await ensure_root(store, Settings())

    starts = await asyncio.gather(*(start() for _ in range(8)))
    assert [new for _, new in starts].count(True) == 1
    assert [key.access_key_id for key in await store.list_access_keys(ACCOUNT)] == [starts[0][0].access_key_id]


async def test_who_ended_before_it_made_the_key_is_not_waited_for(store: SQLiteStore) -> None:
    await store.put_tenant(Tenant(ACCOUNT, "root"))
    await take_turn(store, ACCOUNT, seconds=0.05)
    _, new = await ensure_root(store, Settings())
    assert new
    await take_turn(store, ACCOUNT)
