"""The root tenant's access key."""

import asyncio
from typing import Any

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant
from holdfast.runtime.root_tenant import endpoint, ensure_root, shell_lines, take_turn
from holdfast.settings import Settings, SettingsError
from metadata_service.sqlite.store import SQLiteStore
from tests.tables import table

ACCOUNT = "000000000000"
GIVEN = Settings(root_access_key_id="AKIAGIVEN00000000000", root_secret_access_key="given/secret")


async def test_the_first_start_makes_a_key(store: SQLiteStore) -> None:
    key, new = await ensure_root(store.credentials, Settings())
    assert new
    assert key.account == ACCOUNT
    assert await store.credentials.get_tenant(ACCOUNT) == Tenant(ACCOUNT, "root")
    assert await ensure_root(store.credentials, Settings()) == (key, False)


async def test_a_given_key_is_taken(store: SQLiteStore) -> None:
    key, new = await ensure_root(store.credentials, GIVEN)
    assert new
    assert (key.access_key_id, key.secret) == ("AKIAGIVEN00000000000", "given/secret")
    assert await ensure_root(store.credentials, GIVEN) == (key, False)
    assert await ensure_root(store.credentials, Settings()) == (key, False)


async def test_a_given_key_is_added_later(store: SQLiteStore) -> None:
    made, _ = await ensure_root(store.credentials, Settings())
    given, new = await ensure_root(store.credentials, GIVEN)
    assert new
    assert {key.access_key_id for key in await store.credentials.list_access_keys(ACCOUNT)} == {
        made.access_key_id,
        given.access_key_id,
    }


async def test_a_given_secret_replaces_the_old_one_for_the_same_principal(store: SQLiteStore) -> None:
    before, _ = await ensure_root(store.credentials, GIVEN)
    after, new = await ensure_root(
        store.credentials, msgspec.structs.replace(GIVEN, root_secret_access_key="other/secret")
    )
    assert new
    assert after == msgspec.structs.replace(before, secret="other/secret")
    assert await store.credentials.get_access_key(before.access_key_id) == after


@pytest.mark.parametrize(
    ("end", "word"), [({"active": False}, "revoked"), ({"expires_s": 1_000}, "rotated and has expired")]
)
async def test_a_given_key_that_has_ended_stays_so(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture, end: dict[str, Any], word: str
) -> None:
    given, _ = await ensure_root(store.credentials, GIVEN)
    ended = await store.credentials.update_access_key(msgspec.structs.replace(given, **end))
    other, new = await ensure_root(store.credentials, GIVEN)
    assert (other.role, new) == ("operator", True)
    assert other.access_key_id != given.access_key_id
    assert await store.credentials.get_access_key(given.access_key_id) == ended
    assert await ensure_root(store.credentials, GIVEN) == (other, False)
    (first, again) = (record.getMessage() for record in caplog.records)
    assert first == again
    assert f"the root access key {given.access_key_id} of the settings was {word}, and is not restored" in first
    assert "root_secret_access_key to a new key" in first
    assert "given/secret" not in first
    newer = msgspec.structs.replace(GIVEN, root_access_key_id="AKIANEWER00000000000")
    assert (await ensure_root(store.credentials, newer))[0].access_key_id == "AKIANEWER00000000000"


async def test_a_given_key_keeps_the_end_that_it_was_given(store: SQLiteStore) -> None:
    given, _ = await ensure_root(store.credentials, GIVEN)
    await store.credentials.update_access_key(msgspec.structs.replace(given, expires_s=2**40))
    key, new = await ensure_root(store.credentials, GIVEN)
    assert (key.expires_s, new) == (2**40, False)
    changed, _ = await ensure_root(
        store.credentials, msgspec.structs.replace(GIVEN, root_secret_access_key="other/secret")
    )
    assert (changed.expires_s, changed.secret) == (2**40, "other/secret")


async def test_another_accounts_key_is_not_taken(store: SQLiteStore) -> None:
    await ensure_root(store.credentials, GIVEN)
    with pytest.raises(SettingsError, match="belongs to account 000000000000"):
        await ensure_root(store.credentials, msgspec.structs.replace(GIVEN, account="111111111111"))


async def test_another_account_gets_its_own_key(store: SQLiteStore) -> None:
    first, _ = await ensure_root(store.credentials, Settings())
    second, new = await ensure_root(store.credentials, Settings(account="111111111111"))
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
    assert " AWS_ENDPOINT_URL_SNS=http://127.0.0.1:9324;" in shell_lines(key, "http://127.0.0.1:9324", "r", sns=True)[2]


@pytest.mark.parametrize(("settings", "url"), table(__file__, "urls of clients"))
def test_addresses_for_clients(settings: dict[str, Any], url: str) -> None:
    assert endpoint(Settings(**settings), 5) == url


async def test_of_many_that_start_at_once_one_makes_the_key(store: SQLiteStore) -> None:
    async def start() -> tuple[AccessKey, bool]:
        await take_turn(store.credentials, ACCOUNT)
        return await ensure_root(store.credentials, Settings())

    starts = await asyncio.gather(*(start() for _ in range(8)))
    assert [new for _, new in starts].count(True) == 1
    assert [key.access_key_id for key in await store.credentials.list_access_keys(ACCOUNT)] == [
        starts[0][0].access_key_id
    ]


async def test_a_process_that_ended_before_it_made_the_key_is_not_awaited(store: SQLiteStore) -> None:
    await store.credentials.put_tenant(Tenant(ACCOUNT, "root"))
    await take_turn(store.credentials, ACCOUNT, seconds=0.05)
    _, new = await ensure_root(store.credentials, Settings())
    assert new
    await take_turn(store.credentials, ACCOUNT)
