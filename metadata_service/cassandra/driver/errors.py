"""Descriptions of the driver's errors in plain words, bounded in length and without addresses.

The driver's own texts name hosts and ports and quote its objects.  They remain the cause of what is raised, for
debugging; logs, decisions of the managers and answers use these descriptions.
"""

from __future__ import annotations

import re
from typing import Final

from cassandra import AuthenticationFailed, OperationTimedOut, Timeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ConnectionShutdown

TEXT_MAX: Final = 200
_TLS_REASON: Final = re.compile(r"\[SSL: ([A-Z0-9_]{1,80})\]")


def describe(error: BaseException) -> str:
    """Describe an error in a clause whose subject is Cassandra, such as ``no node of Cassandra is reached``."""
    if isinstance(error, NoHostAvailable):
        errors = _errors_of(error)
        found = [one for one in errors if isinstance(one, Unavailable | Timeout | OperationTimedOut)]
        if found:
            return describe(found[0])
        refused = next((text for one in errors if (text := _refusal(one))), "")
        return f"no node of Cassandra is reached{refused}"
    if isinstance(error, Unavailable):
        return (
            f"too few nodes of Cassandra are up: {error.alive_replicas} of the {error.required_replicas} replicas "
            "that are needed"
        )
    if isinstance(error, Timeout):
        return (
            f"too few nodes of Cassandra answered in time: {error.received_responses} of the "
            f"{error.required_responses} replicas that are needed"
        )
    if isinstance(error, OperationTimedOut):
        return "Cassandra did not answer in time"
    if isinstance(error, ConnectionBusy | ConnectionException):
        return "the connection to Cassandra broke"
    text = f"{type(error).__name__}: {error}"
    return f"Cassandra failed: {text if len(text) <= TEXT_MAX else f'{text[: TEXT_MAX - 1]}…'}"


def is_too_slow(error: BaseException) -> bool:
    """Return whether a node that accepts connections did not answer in time, or an established connection broke.

    False if none accepts connections, or one refuses this client: then it is no use to wait.
    """
    if isinstance(error, ConnectionShutdown):
        return True  # after the handshake, as while the driver waits for the agreement on the schema
    errors = _errors_of(error) if isinstance(error, NoHostAvailable) else [error]
    if any(_refusal(one) for one in errors):
        return False
    slow = (OperationTimedOut, Timeout, Unavailable, ConnectionBusy, TimeoutError)
    return any(isinstance(one, slow) or _has_missed_heartbeats(one) for one in errors)


def _has_missed_heartbeats(error: object) -> bool:
    return isinstance(error, ConnectionException) and "heartbeat" in str(error)


def _refusal(error: object) -> str:
    """Reason why a reachable node refuses the connection, without its address; empty for any other cause."""
    if isinstance(error, AuthenticationFailed):
        return ": the user name or the password is refused"
    # A TLS failure is an error of the driver whose text has OpenSSL's reason and the node's address.
    found = _TLS_REASON.search(str(error)) if isinstance(error, OSError) else None
    return "" if found is None else f": TLS fails, {found[1].replace('_', ' ').lower()}"


def _errors_of(error: NoHostAvailable) -> list[object]:
    """Errors of the single nodes; the driver supplies a mapping or a list."""
    errors = error.errors
    return list(errors.values()) if isinstance(errors, dict) else list(errors or ())
