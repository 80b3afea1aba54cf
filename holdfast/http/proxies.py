"""Trusted proxies, and the client's address and scheme from the headers that they write.

A proxy appends to the header it received, so only the right end of a header can be trusted: the last hop was written by
the peer, which is trusted; the one before it by the proxy that the last hop names, if that is trusted too; and so on.
The client is the first address from the right that is not a trusted proxy.  A hop that is not an address ends the
search, because the origin of the part to its left is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Literal, NamedTuple

from holdfast.http.request_cycle import App, Scope
from holdfast.networks import Network

HOPS_LIMIT = 32
"""Maximum number of proxies in a header; a longer header is ignored."""

Address = IPv4Address | IPv6Address
Header = Literal["x-forwarded-for", "forwarded"]

_NODE = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9.]+))(?::[0-9]{1,5})?|([0-9a-f:.]+)", re.IGNORECASE)
"""Address, with or without a port.  No zone, whose name could be any text."""
_TOKEN = r"[!#$%&'*+.^_`|~0-9a-z-]+"
_PAIR = re.compile(rf'({_TOKEN})=({_TOKEN}|"[^"\\]*")', re.IGNORECASE)
_ELEMENT = re.compile(rf"{_PAIR.pattern}(?:[ \t]*;[ \t]*{_PAIR.pattern})*", re.IGNORECASE)
"""Element of ``Forwarded`` (RFC 7239) with the parameters that one proxy wrote."""


class Origin(NamedTuple):
    """Origin of a request according to its headers."""

    client: str | None
    scheme: str | None


_UNKNOWN = Origin(None, None)


class Forwarded:
    """ASGI application for requests from a trusted proxy.

    It sets ``client`` and ``scheme`` to the values that the trusted proxies report; others stay as the connection has
    them. ``header`` is the header that the proxies write.  The other one is ignored: a proxy that does not know a
    header passes on any value that a client has put into it.
    """

    def __init__(self, app: App, networks: tuple[Network, ...], header: Header) -> None:
        self._app = app
        self._networks = networks
        self._origin = self._x_forwarded if header == "x-forwarded-for" else self._forwarded

    def __call__(self, scope: Scope, receive: Any, send: Any) -> Awaitable[None]:
        client, scheme = self._origin(scope["headers"])
        if client is not None:
            scope["client"] = (client, 0)
        if scheme is not None:
            scope["scheme"] = scheme
        return self._app(scope, receive, send)

    def trusts(self, host: str) -> bool:
        """Return whether a connection from this host comes from a trusted proxy."""
        address = _address(host.partition("%")[0])  # the zone is the interface
        return address is not None and self._is_proxy(address)

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _x_forwarded(self, headers: list[tuple[bytes, bytes]]) -> Origin:
        """Read X-Forwarded-For and X-Forwarded-Proto."""
        nodes = _list_of(headers, b"x-forwarded-for")
        schemes = _list_of(headers, b"x-forwarded-proto")
        found = self._find(nodes)
        if not schemes:
            return Origin(None if found is None else found[1], None)
        if found is None:
            return Origin(None, _scheme(schemes[-1]))
        # Some proxies append to both headers, so the hops correspond; others replace the scheme.
        return Origin(found[1], _scheme(schemes[found[0] if len(schemes) == len(nodes) else -1]))

    def _forwarded(self, headers: list[tuple[bytes, bytes]]) -> Origin:
        """Read Forwarded."""
        elements = [_parameters(element) for element in _list_of(headers, b"forwarded")]
        if not elements:
            return _UNKNOWN
        found = self._find([element.get("for", "") for element in elements])
        index, client = found or (-1, None)
        return Origin(client, _scheme(elements[index].get("proto", "")))

    def _find(self, nodes: list[str]) -> tuple[int, str] | None:
        """Return the client's index among the hops, and its address."""
        client: Address | None = None
        for index in range(len(nodes) - 1, -1, -1):
            client = _node(nodes[index])
            if client is None:
                return None
            if not self._is_proxy(client):
                return index, str(client)
        return None if client is None else (0, str(client))  # the request comes from a proxy itself


def _list_of(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Split a list header, from all its lines.  The left part of a very long one stays in one piece."""
    values = [value for key, value in headers if key == name]
    if not values:
        return []
    return [part.strip(" \t") for part in b",".join(values).decode("latin-1").rsplit(",", HOPS_LIMIT)]


def _node(text: str) -> Address | None:
    found = _NODE.fullmatch(text)
    return None if found is None else _address(found[1] or found[2] or found[3])


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _scheme(text: str) -> str | None:
    scheme = text.lower()
    return scheme if scheme in ("http", "https") else None


def _parameters(element: str) -> dict[str, str]:
    """Parse the parameters of an element of ``Forwarded``; none if it is malformed."""
    if _ELEMENT.fullmatch(element) is None:
        return {}
    pairs = [(pair[1].lower(), pair[2].strip('"')) for pair in _PAIR.finditer(element)]
    parameters = dict(pairs)
    return parameters if len(parameters) == len(pairs) else {}
