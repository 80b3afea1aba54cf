"""How many connections there may be: in all, and of each client."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address


class Places:
    """Counts connections, handshakes among them."""

    def __init__(self, most: int, most_of_client: int | None) -> None:
        self.taken = 0
        self.refused = 0
        """So many found no place."""
        self._most = most
        self._most_of_client = most_of_client
        self._clients: dict[str, int] = {}

    def client(self, host: str) -> str:
        """The client whose places a connection from there takes; empty while clients are not told apart."""
        return "" if self._most_of_client is None else network_of(host)

    def take(self, client: str) -> bool:
        """One more connection of this client (empty: of nobody in particular).  False: one too many.

        It is counted in any case: each call is followed by one of :meth:`give_back`.
        """
        self.taken += 1
        fits = self.taken <= self._most
        if client:
            count = self._clients[client] = self._clients.get(client, 0) + 1
            assert self._most_of_client is not None
            fits = fits and count <= self._most_of_client
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


def network_of(host: str) -> str:
    """Who an address belongs to: an IPv6 client has the whole /64 network to choose addresses from."""
    if ":" not in host:
        return host
    address = ip_address(host.partition("%")[0])
    return str(IPv6Network((int(address) >> 64 << 64, 64)))
