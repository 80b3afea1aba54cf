"""Outage of a push endpoint, from the first to the last of its failures in succession.  Pure."""

from __future__ import annotations


class EndpointOutage:
    """Time in which an endpoint took and refused nothing: calls had no answer, or one that asks for a pause."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._until = 0.0

    def extend(self, now_s: float) -> None:
        """Add a failure at this time."""
        if self._since is None:
            self._since = now_s
        self._until = now_s

    def end(self) -> None:
        """End the outage: the endpoint has confirmed or refused a message."""
        self._since = None

    def lasted(self, seconds: float, since_s: float) -> bool:
        """True if the endpoint has failed throughout at least so many seconds since a time."""
        return self._since is not None and self._until - max(self._since, since_s) >= seconds
