"""The port of Kafka's clients, and the address that they are given.  Loads nothing of the frontend."""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address

from backend.rpc.address import Address
from holdfast.http.listener import bind
from holdfast.logs import facts
from holdfast.settings import Settings

log = logging.getLogger("holdfast.kafka")


def bind_kafka(settings: Settings) -> list[socket.socket]:
    """Bind the sockets of Kafka's clients; none without ``kafka_port``.

    Raises :class:`~holdfast.http.listener.CannotListen`.
    """
    if not settings.kafka_port:
        return []
    bound = bind(settings.host, settings.kafka_port, "kafka_port")
    address = advertised(settings)
    if _is_wildcard(address.host):
        log.warning(
            "Kafka's clients are given an address that other machines cannot use: set kafka_address %s",
            facts(address=address),
        )
    return bound


def advertised(settings: Settings) -> Address:
    """Return the address that clients connect to for everything (Kafka's ``advertised.listeners``)."""
    if settings.kafka_address:
        return Address.parse(settings.kafka_address)
    return Address(host=settings.host, port=settings.kafka_port)


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False
