"""Calls to webhooks named by tenants.

A tenant's URL makes the service send a request from inside its network.  Therefore a webhook is called only at
a public address, unless the operator has allowed its network; at exactly the address that was checked, so that
a second DNS answer does not matter; with TLS, except in the allowed networks; and the answer's body is not
read, and redirects are not followed.  Tenants learn of failures without details.

A call is signed::

    Holdfast-Signature: t=1767225600,v1=<hexadecimal HMAC-SHA-256 of "1767225600." and the body, by the alarm's secret>
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import ssl
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import httpx

SECONDS: Final = 10.0
"""Timeout of a call, including name resolution."""
URL_LENGTH_MAX: Final = 2048
CONNECTIONS_MAX: Final = 64

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_NAT64 = IPv6Network("64:ff9b::/96")


class WebhookFailed(Exception):
    """A webhook could not be called; the text says why, without the secret parts of its URL."""


def host_of(url: str) -> str:
    """Host of the URL of a webhook or another endpoint.  Raises ``ValueError``, whose text says what is wrong."""
    import httpx

    if len(url) > URL_LENGTH_MAX:
        raise ValueError(f"the URL has at most {URL_LENGTH_MAX} characters")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"the URL is not valid: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("the URL begins with https:// and has a host")
    if parsed.userinfo:
        raise ValueError("the URL cannot have a user name or a password in it")
    host = parsed.raw_host.decode("ascii")
    if not _HOST.fullmatch(host):
        raise ValueError(f"the URL is not valid: {host[:100]!r} cannot be a host")
    return host


def is_public(address: Address) -> bool:
    """True for a public internet address, also when it is embedded in a transition address between IPv4 and IPv6."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:  # fec0::/10, deprecated by RFC 3879 but still routed within networks
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def permitted_address(host: str, found: Sequence[Address], networks: Sequence[Network], *, secure: bool) -> Address:
    """Choose the address at which a host may be called, of those that were ``found`` for it.

    ``networks``: non-public networks that are allowed, also without TLS.  Raises :class:`WebhookFailed`.
    """
    named = [one for one in found if any(one in network for network in networks)]
    if named:
        return named[0]
    public = [one for one in found if is_public(one)]
    if not public:
        raise WebhookFailed(f"the host {host} is not at a public address, and its network is not allowed")
    if not secure:
        raise WebhookFailed(f"the host {host} has to be called by https, for its address is public")
    return public[0]


class Webhooks:
    """Calls webhooks; creates its HTTP client at the first call."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        """``networks``: non-public networks where webhooks are allowed, also without TLS."""
        self._networks = tuple(networks)
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def post(self, url: str, secret: bytes, id_: str, body: bytes, now_s: int) -> None:
        """POST ``body``, signed; success is an answer of 2xx.  Raises :class:`WebhookFailed`."""
        host = host_of(url)
        try:
            async with asyncio.timeout(SECONDS):
                status = await self._post(url, host, secret, id_, body, now_s)
        except TimeoutError:
            raise WebhookFailed(f"the webhook at {host} has not answered within {SECONDS:g} s") from None
        if not 200 <= status < 300:
            redirected = ", and redirects are not followed" if 300 <= status < 400 else ""
            raise WebhookFailed(f"the webhook at {host} has answered {status}{redirected}")

    async def _post(self, url: str, host: str, secret: bytes, id_: str, body: bytes, now_s: int) -> int:
        import httpx

        client = self._client()
        target = httpx.URL(url)
        port = target.port or (443 if target.scheme == "https" else 80)
        address = await self._address(host, port, secure=target.scheme == "https")
        headers = {
            "Host": target.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "Idempotency-Key": id_,
            "Holdfast-Signature": signature(secret, body, now_s),
            "User-Agent": "Holdfast",
        }
        request = client.build_request(
            "POST", target.copy_with(host=str(address)), headers=headers, content=body, timeout=SECONDS
        )
        request.extensions["sni_hostname"] = host  # the certificate must match it, too
        try:
            answer = await client.send(request, stream=True)
        # anyio raises AttributeError for a connection that is cut at once
        except (httpx.HTTPError, AttributeError) as error:
            raise WebhookFailed(f"the webhook at {host} cannot be reached: {type(error).__name__}") from None
        await answer.aclose()
        return answer.status_code

    async def _address(self, host: str, port: int, *, secure: bool) -> Address:
        """Resolve the host to a permitted address.  Raises :class:`WebhookFailed`."""
        found: list[Address] = []
        try:
            found.append(ip_address(host.strip("[]")))
        except ValueError:
            try:
                known = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # SOCK_STREAM
            except (OSError, UnicodeError):
                raise WebhookFailed(f"the host {host} of the webhook is not known") from None
            found += [ip_address(str(entry[4][0]).partition("%")[0]) for entry in known]
        return permitted_address(host, found, self._networks, secure=secure)

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            import httpx

            self._http = httpx.AsyncClient(
                verify=ssl.create_default_context(),
                limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=0),
                trust_env=False,  # a proxy would resolve the name again
                follow_redirects=False,
            )
        return self._http


def signature(secret: bytes, body: bytes, now_s: int) -> str:
    """Value of the header ``Holdfast-Signature``."""
    digest = hmac.new(secret, b"%d." % now_s + body, hashlib.sha256).hexdigest()
    return f"t={now_s},v1={digest}"
