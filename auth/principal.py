"""Who a request comes from, whatever credential said so: an access key, an API key, a token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Role = Literal["operator", "admin", "user"]
"""``operator``: administers all tenants; ``admin``: administers its own tenant; ``user``: uses queues."""
Scope = Literal["send", "receive", "manage", "monitor"]
"""``monitor``: looks at metrics, alarms and availability, and does nothing else; it is a part of ``manage``."""
SCOPES: tuple[Scope, ...] = ("send", "receive", "manage")
"""Those that together are everything: what a credential is for if nothing else was said."""
EVERY_SCOPE: tuple[Scope, ...] = get_args(Scope)


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    account: str
    """12 digits: the tenant."""
    principal_id: str
    """The caller's id as SQS tells it: ``SenderId`` of the messages that it sends."""
    arn: str
    """How queue policies name the caller, such as ``arn:aws:iam::123456789012:user/worker``."""
    credential: str
    """What an audit log names: the public id of the key or token, never a secret."""
    role: Role = "user"
    scopes: tuple[Scope, ...] = SCOPES
    """What the credential may be used for, whatever else allows it."""
    prefixes: tuple[str, ...] = ()
    """Names of queues that the credential may be used for begin with one of these; empty: all queues."""
    expires_s: int | None = None
    """When the credential ends, in seconds since the epoch; None: it does not by itself."""

    @property
    def anonymous(self) -> bool:
        """Whether nobody signed the request: then the caller has no account."""
        return not self.account

    @property
    def resource(self) -> str:
        """The ARN's last part, such as ``root``, ``user/worker`` or ``federated-user/...``: what kind of caller it is.

        Only its beginning tells that.  The rest is a name that others may have chosen, with colons and slashes in it:
        an outside issuer's subject.
        """
        return self.arn.split(":", 5)[-1]

    @property
    def is_root(self) -> bool:
        """Whether the caller is the account's root."""
        return self.resource == "root"


def held(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """The scopes, and those that are a part of them."""
    found = frozenset(scopes)
    return found | {"monitor"} if "manage" in found else found


def anonymous(address: str) -> Principal:
    """Whoever sent a request that nobody signed; SQS, too, tells the address as the sender of such a message."""
    return Principal(account="", principal_id=address, arn="anonymous", credential="")
