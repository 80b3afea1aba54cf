"""The root tenant and its access key: created at the first start, shown on request."""

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
"""Time to wait for the first key that another process creates; afterwards that process counts as dead."""
_POLL_SECONDS = 0.1


async def take_turn(store: CredentialStore, account: str, *, seconds: float = FIRST_KEY_SECONDS) -> None:
    """Return when the account has keys, or when this process is elected to create the first one.

    For concurrent starts.  The election is a conditional change of the tenant, of which one succeeds.
    """
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    while not await store.list_access_keys(account):
        tenant = await store.get_tenant(account)
        try:
            if tenant is None:
                await store.create_tenant(Tenant(account=account, name="root"))
                return
            if loop.time() - started_at > seconds:
                await store.update_tenant(tenant)
                return
        except Conflict:
            started_at = loop.time()  # another process was elected
        await asyncio.sleep(_POLL_SECONDS)


async def ensure_root(store: CredentialStore, settings: Settings) -> tuple[AccessKey, bool]:
    """Return the root tenant's access key, and True if it was created now or is new in the settings.

    A key in the settings that was revoked or has expired stays so; then another key of an operator is returned.

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
            "the root access key %s of the settings was %s, and is not restored: set root_access_key_id and "
            "root_secret_access_key to a new key, or remove both; the other keys of account %s stay valid",
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
    """Store the key of the settings, for its former principal and with its former expiry."""
    key = msgspec.structs.replace(given, role="operator")
    if known is not None:
        kept = {name: getattr(known, name) for name in ("principal_id", "created_s", "expires_s", "version")}
        key = msgspec.structs.replace(key, **kept)
    if key != known:
        await store.put_access_key(key)
    return key, key != known


class KeyUnknown(Exception):
    """No operator's key is available; the text says why."""


async def operator_key(settings: Settings) -> AccessKey:
    """Return an operator's access key in the data folder; the service may be running.  Raises :class:`KeyUnknown`."""
    from auth.encryption.encrypted_store import encrypted
    from auth.encryption.master_keys import KeyringError
    from holdfast.runtime.keyring import read_keyring
    from metadata_service.sqlite.store import SQLiteStore
    from metadata_service.store import StoreError

    if not settings.metadata_file.exists():
        raise KeyUnknown(f"{settings.data} is no data folder of Holdfast")
    try:
        store = SQLiteStore(settings.metadata_file)
        try:
            keyring = await read_keyring(settings, store)
            opened = store.credentials if keyring is None else encrypted(store.credentials, keyring)
            key = await operators_key(opened, settings.account)
        finally:
            await store.close()
    except (StoreError, KeyringError) as error:
        raise KeyUnknown(str(error)) from error
    if key is None:
        raise KeyUnknown(f"account {settings.account} has no operator's access key; the next start creates one")
    return key


async def operators_key(store: CredentialStore, account: str) -> AccessKey | None:
    """Return a valid key of an operator of this account; None: there is none."""
    for key in await store.list_access_keys(account):
        if key.role == "operator" and is_good(key):
            return key
    return None


def is_good(key: AccessKey) -> bool:
    """Return whether the key can be used now."""
    return key.active and (key.expires_s is None or key.expires_s > time.time())


def shell_lines(key: AccessKey, endpoint: str, region: str, *, sns: bool = False) -> list[str]:
    """Three shell lines that make the AWS CLI and the SDKs use this service.  ``sns``: also for topics.

    Version 1 of the AWS CLI ignores the variable for SQS (in regions that it knows), but not its own option: hence the
    function.  A shell with these keys cannot use other services of AWS anyway.
    """
    variables = f"AWS_ENDPOINT_URL_SQS={endpoint} AWS_DEFAULT_REGION={region} AWS_REGION={region}"
    if sns:
        variables += f" AWS_ENDPOINT_URL_SNS={endpoint}"
    return [
        f"export AWS_ACCESS_KEY_ID={key.access_key_id}",
        f"export AWS_SECRET_ACCESS_KEY={shlex.quote(key.secret)}",
        f"export {variables}; " + 'aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL_SQS" "$@"; }',
    ]


def endpoint(settings: Settings, port: int) -> str:
    """Return the URL at which a client on this machine reaches the service."""
    host = settings.host
    if host in ("", "0.0.0.0", "::"):
        loopback = "::1" if host == "::" else "127.0.0.1"  # a socket bound to "::" does not accept IPv4 here
        host = loopback if settings.tls_cert is None else "localhost"
    if ":" in host:
        host = f"[{host}]"
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{port}"
