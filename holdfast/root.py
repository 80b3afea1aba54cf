"""The root tenant and its access key: made at the first start, shown when asked for."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time

import msgspec

from auth.credentials import AccessKey, Tenant, new_access_key, new_principal_id
from auth.store import Conflict, CredentialStore
from holdfast.settings import Settings, SettingsError

log = logging.getLogger("holdfast")


FIRST_KEY_SECONDS = 5.0
"""So long a process waits for the first key that another one makes: then that one has ended before it did."""
_LOOK_SECONDS = 0.1


async def take_turn(store: CredentialStore, account: str, *, seconds: float = FIRST_KEY_SECONDS) -> None:
    """Where several processes start at once: return when the account has keys, or this process is to make the first.

    The turn is taken by a change of the tenant, of which one succeeds.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await store.list_access_keys(account):
        tenant = await store.get_tenant(account)
        try:
            if tenant is None:
                await store.create_tenant(Tenant(account=account, name="root"))
                return
            if loop.time() - began > seconds:
                await store.update_tenant(tenant)
                return
        except Conflict:
            began = loop.time()  # it is another's turn
        await asyncio.sleep(_LOOK_SECONDS)


async def ensure_root(store: CredentialStore, settings: Settings) -> tuple[AccessKey, bool]:
    """The root tenant's access key, and whether it is new: made now, or given in the settings for the first time.

    A given key that was revoked meanwhile, or has expired, stays so.  Then it is another key of an operator.

    Raises :class:`SettingsError` if the given key belongs to another account.
    """
    if await store.get_tenant(settings.account) is None:
        await store.put_tenant(Tenant(account=settings.account, name="root"))
    given_id, given_secret = settings.root_access_key_id, settings.root_secret_access_key
    if given_id is not None and given_secret is not None:
        known = await store.get_access_key(given_id)
        if known is not None and known.account != settings.account:
            raise SettingsError(f"the root access key {given_id} belongs to account {known.account}")
        if known is None or is_good(known):
            return await _given(store, known, AccessKey(given_id, given_secret, settings.account, new_principal_id()))
        log.warning(
            "the root access key %s of the settings was %s, and stays so: set root_access_key_id and "
            "root_secret_access_key to a new key, or remove both; the other keys of account %s go on",
            given_id,
            "rotated and has expired" if known.active else "revoked",
            settings.account,
        )
    found = await operators_key(store, settings.account)
    if found is not None:
        return found, False
    key = msgspec.structs.replace(new_access_key(settings.account), role="operator")
    await store.put_access_key(key)
    return key, True


async def _given(store: CredentialStore, known: AccessKey | None, given: AccessKey) -> tuple[AccessKey, bool]:
    """The key as the settings have it, for the principal that it was for, and with the end that it was given."""
    key = msgspec.structs.replace(given, role="operator")
    if known is not None:
        kept = {name: getattr(known, name) for name in ("principal_id", "created_s", "expires_s", "version")}
        key = msgspec.structs.replace(key, **kept)
    if key != known:
        await store.put_access_key(key)
    return key, key != known


class KeyUnknown(Exception):
    """There is no key of an operator to be had; the text says why."""


async def operator_key(settings: Settings) -> AccessKey:
    """An operator's access key in the data folder; the service may be running.  Raises :class:`KeyUnknown`."""
    from auth.master_keys import KeyringError
    from auth.sealed_store import sealed
    from holdfast.keyring import read_keyring
    from metadata_service.sqlite import SQLiteStore
    from metadata_service.store import StoreError

    if not settings.metadata_file.exists():
        raise KeyUnknown(f"{settings.data} is no data folder of Holdfast")
    try:
        store = SQLiteStore(settings.metadata_file)
        try:
            keyring = await read_keyring(settings, store)
            opened = store if keyring is None else sealed(store, keyring)
            key = await operators_key(opened, settings.account)
        finally:
            await store.close()
    except (StoreError, KeyringError) as error:
        raise KeyUnknown(str(error)) from error
    if key is None:
        raise KeyUnknown(f"account {settings.account} has no access key of an operator; the next start makes one")
    return key


async def operators_key(store: CredentialStore, account: str) -> AccessKey | None:
    """A key of an operator of this account that is good now; None: there is none."""
    for key in await store.list_access_keys(account):
        if key.role == "operator" and is_good(key):
            return key
    return None


def is_good(key: AccessKey) -> bool:
    """Whether the key can be used now."""
    return key.active and (key.expires_s is None or key.expires_s > time.time())


def shell_lines(key: AccessKey, endpoint: str, region: str) -> list[str]:
    """Three lines that make the AWS CLI and the SDKs of a shell use this service.

    Version 1 of the AWS CLI, alone of all, overrules the variable for SQS (in regions that it knows), but not its own
    option: hence the function.  A shell with these keys has no use for other services of AWS.
    """
    variables = f"AWS_ENDPOINT_URL_SQS={endpoint} AWS_DEFAULT_REGION={region} AWS_REGION={region}"
    return [
        f"export AWS_ACCESS_KEY_ID={key.access_key_id}",
        f"export AWS_SECRET_ACCESS_KEY={shlex.quote(key.secret)}",
        f"export {variables}; " + 'aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL_SQS" "$@"; }',
    ]


def endpoint(settings: Settings, port: int) -> str:
    """The URL at which a client on this machine reaches the service."""
    host = settings.host
    if host in ("", "0.0.0.0", "::"):
        loopback = "::1" if host == "::" else "127.0.0.1"  # on "::" no service listens for IPv4
        host = loopback if settings.tls_cert is None else "localhost"
    if ":" in host:
        host = f"[{host}]"
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{port}"
