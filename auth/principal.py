"""The caller of a request, whatever credential authenticated it: an access key, an API key, a token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Role = Literal["operator", "admin", "user"]
"""``operator``: administers all tenants; ``admin``: administers its own tenant; ``user``: uses queues."""
Scope = Literal["send", "receive", "manage", "monitor", "streams:read", "streams:write", "streams:manage"]
"""The first four are for queues, the others for topics and consumer groups.  ``monitor``: only reads metrics, alarms
and availability; it is included in ``manage``."""
SCOPES: tuple[Scope, ...] = ("send", "receive", "manage")
"""All rights together: the default of a credential.  They include :data:`STREAM_SCOPES`, which are not written out
beside them: stored credentials have to be readable for a release that does not know these."""
STREAM_SCOPES: tuple[Scope, ...] = ("streams:read", "streams:write", "streams:manage")
EVERY_SCOPE: tuple[Scope, ...] = get_args(Scope)


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    account: str
    """Account number of the tenant: 12 digits."""
    principal_id: str
    """The caller's id in SQS: ``SenderId`` of the messages that it sends."""
    arn: str
    """ARN of the caller in queue policies, such as ``arn:aws:iam::123456789012:user/worker``."""
    credential: str
    """Name of the credential in the audit log: the public id of the key or token, never a secret."""
    role: Role = "user"
    scopes: tuple[Scope, ...] = SCOPES
    """Permitted uses of the credential.  Nothing else, such as a policy, can extend them."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of the names of queues, topics and groups that the credential may be used for; empty: all."""
    expires_s: int | None = None
    """Expiry of the credential, in seconds since the epoch; None: it has none of its own."""

    @property
    def anonymous(self) -> bool:
        """True for an unsigned request: the caller then has no account."""
        return not self.account

    @property
    def resource(self) -> str:
        """The ARN's last part, such as ``root``, ``user/worker`` or ``federated-user/...``: the kind of caller.

        Only its beginning is trustworthy.  The rest is a name that others may have chosen, with colons and
        slashes in it: an outside issuer's subject.
        """
        return self.arn.split(":", 5)[-1]

    @property
    def is_root(self) -> bool:
        """True if the caller is the account's root."""
        return self.resource == "root"


def effective_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return the scopes together with the scopes that they include."""
    found = frozenset(scopes)
    if found.issuperset(SCOPES):
        found |= frozenset(STREAM_SCOPES)
    return found | {"monitor"} if "manage" in found else found


def anonymous(address: str) -> Principal:
    """Caller of an unsigned request; like SQS, the address is used as the sender of its messages."""
    return Principal(account="", principal_id=address, arn="anonymous", credential="")
