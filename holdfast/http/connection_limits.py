"""Limits on the number of connections: in total, and for each client."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address


class ConnectionSlots:
    """Counts connections, including those in a handshake."""

    def __init__(self, connections_max: int, client_max: int | None) -> None:
        self.taken = 0
        self.refused = 0
        """Number of connections refused."""
        self._max = connections_max
        self._client_max = client_max
        self._clients: dict[str, int] = {}

    def client(self, host: str) -> str:
        """Return the client that a connection from this host counts for; empty if there is no limit for each client."""
        return "" if self._client_max is None else network_of(host)

    def take(self, client: str) -> bool:
        """Count one more connection of this client (empty: only in total).  Returns False if a limit is exceeded.

        It is counted in any case: each call must be followed by one of :meth:`give_back`.
        """
        self.taken += 1
        fits = self.taken <= self._max
        if client:
            count = self._clients[client] = self._clients.get(client, 0) + 1
            assert self._client_max is not None
            fits = fits and count <= self._client_max
        if not fits:
            self.refused += 1
        return fits

    def give_back(self, client: str) -> None:
        self.taken -= 1
        if client:
            count = self._clients[client] - 1
            if count:
                self._clients[client] = count
            else:
                del self._clients[client]


def slots_of(connections_max: int, client_max: int | None, processes: int) -> ConnectionSlots:
    """Return the slots of one of ``processes`` that share the limits."""
    return ConnectionSlots(share_of(connections_max, processes), share_of_client(client_max, processes))


def share_of(limit: int, processes: int) -> int:
    """Return one process's share of a limit, rounded up."""
    return -(-limit // processes)


def share_of_client(limit: int | None, processes: int) -> int | None:
    """Return one process's share of a limit that may be absent."""
    return None if limit is None else share_of(limit, processes)


def network_of(host: str) -> str:
    """Network that counts as one client: an IPv6 client can choose addresses from its whole /64 network."""
    if ":" not in host:
        return host
    address = ip_address(host.partition("%")[0])
    return str(IPv6Network((int(address) >> 64 << 64, 64)))
