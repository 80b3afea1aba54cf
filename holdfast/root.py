"""The root tenant and its access key: made at the first start, shown when asked for."""

from __future__ import annotations

import shlex

import msgspec

from auth.credentials import AccessKey, Tenant, new_access_key, new_principal_id
from auth.store import CredentialStore
from holdfast.settings import Settings, SettingsError


async def ensure_root(store: CredentialStore, settings: Settings) -> tuple[AccessKey, bool]:
    """The root tenant's access key, and whether it is new: made now, or given in the settings for the first time.

    Raises :class:`SettingsError` if the given key belongs to another account.
    """
    if await store.get_tenant(settings.account) is None:
        await store.put_tenant(Tenant(account=settings.account, name="root"))
    given_id, given_secret = settings.root_access_key_id, settings.root_secret_access_key
    if given_id is not None and given_secret is not None:
        known = await store.get_access_key(given_id)
        if known is not None and known.account != settings.account:
            raise SettingsError(f"the root access key {given_id} belongs to account {known.account}")
        principal_id = new_principal_id() if known is None else known.principal_id
        key = AccessKey(given_id, given_secret, settings.account, principal_id, role="operator")
        if key != known:
            await store.put_access_key(key)
        return key, key != known
    active = [key for key in await store.list_access_keys(settings.account) if key.active]
    if active:
        return active[0], False
    key = msgspec.structs.replace(new_access_key(settings.account), role="operator")
    await store.put_access_key(key)
    return key, True


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
        host = "127.0.0.1" if settings.tls_cert is None else "localhost"
    if ":" in host:
        host = f"[{host}]"
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{port}"
