"""The driver's errors in plain words, bounded in length and without addresses.

The driver's own texts name hosts and ports and quote its objects.  They are for whoever debugs, who finds them as the
cause of what is raised; logs, decisions of the managers and answers have these instead.
"""

from __future__ import annotations

from typing import Final

from cassandra import OperationTimedOut, Timeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException

TEXT_MAX: Final = 200


def describe(error: BaseException) -> str:
    """A clause whose subject is Cassandra, such as ``no node of Cassandra is reached``."""
    if isinstance(error, NoHostAvailable):
        found = [one for one in _errors_of(error) if isinstance(one, Unavailable | Timeout | OperationTimedOut)]
        return describe(found[0]) if found else "no node of Cassandra is reached"
    if isinstance(error, Unavailable):
        return (
            f"too few nodes of Cassandra are there: {error.alive_replicas} of the {error.required_replicas} replicas "
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


def _errors_of(error: NoHostAvailable) -> list[object]:
    """The errors of the single nodes; the driver gives a mapping, or a list."""
    errors = error.errors
    return list(errors.values()) if isinstance(errors, dict) else list(errors or ())
