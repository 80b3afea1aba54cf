"""Networks in settings: of trusted proxies, and of the webhooks that alarms may call."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

Network = IPv4Network | IPv6Network


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks, separated by commas.

    Raises :class:`ValueError`, whose text names the wrong one.
    """
    return tuple(ip_network(part) for piece in text.split(",") if (part := piece.strip()))
