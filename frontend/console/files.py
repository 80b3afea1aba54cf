"""Files of the web console: a page, its scripts and styles, and the libraries that they use.

The page is a client of the REST interface and has no other way to data: these files are the same for everyone and
contain nothing of a tenant.  Libraries are served from the Python packages that ship them.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator, Mapping
from hashlib import sha256
from html import escape
from importlib.metadata import distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from frontend.http.asgi import AsgiReceive, AsgiSend, Scope

PATH = "/console"
_PAGE = "index.html"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_LIBRARIES = {
    "vue.js": ("trame-client", "trame_client/module/vue3-www/vue.global.js"),
    "chart.js": ("chartkick", "chartkick/django/static/chartkick/Chart.bundle.js"),
}
"""Libraries by their names here: the Python package that ships it, and its file in there."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types vue"
)
"""No inline script or style, no evaluation of text, no other host, no frame.  ``vue`` is the name under which the
library declares that it makes HTML of the templates that it is given; the console gives it none."""
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-cache"),  # asks each time, and is answered 304 while the file is the same
    (b"vary", b"accept-encoding"),
]


class ServedFile(NamedTuple):
    """A file as it is sent."""

    media_type: bytes
    content: bytes
    compressed: bytes
    etag: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> ServedFile:
        media_type = _TYPES[name.rpartition(".")[2]].encode()
        etag = b'"%s"' % sha256(content).hexdigest()[:32].encode()
        return cls(media_type, content, gzip.compress(content, mtime=0), etag)


class Console:
    """An ASGI callable for GET and HEAD requests of :attr:`paths`."""

    def __init__(self, region: str, issuer: str = "") -> None:
        """``region`` is the service's, for which the page signs requests; ``issuer``: the OIDC issuer with which it
        offers to sign in."""
        self._values = {b"{region}": region, b"{issuer}": issuer}
        self._files: dict[str, ServedFile] = {}
        self.paths = frozenset((PATH, f"{PATH}/", *(f"{PATH}/{name}" for name in _names())))

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        path: str = scope["path"]
        if path == f"{PATH}/":
            await _answer(send, 308, [(b"location", PATH.encode()), (b"content-length", b"0")], b"")
            return
        served = await self._served(path.removeprefix(PATH).removeprefix("/") or _PAGE)
        asked = dict(scope["headers"])
        headers = [(b"etag", served.etag), *_HEADERS]
        if served.etag in asked.get(b"if-none-match", b""):
            await _answer(send, 304, headers, b"")
            return
        body = served.content
        if b"gzip" in asked.get(b"accept-encoding", b""):
            body = served.compressed
            headers.append((b"content-encoding", b"gzip"))
        headers += [(b"content-type", served.media_type), (b"content-length", b"%d" % len(body))]
        await _answer(send, 200, headers, b"" if scope["method"] == "HEAD" else body)

    async def _served(self, name: str) -> ServedFile:
        served = self._files.get(name)
        if served is None:  # on a thread, because compression of a library takes long
            served = self._files[name] = await asyncio.to_thread(_read, name, self._values)
        return served


async def _answer(send: AsgiSend, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _names() -> Iterator[str]:
    """Names of all files: the console's own, and libraries."""
    yield from _LIBRARIES
    yield from _names_in(files("frontend.console") / "page", "")


def _names_in(folder: Traversable, prefix: str) -> Iterator[str]:
    for one in folder.iterdir():
        name = f"{prefix}{one.name}"
        if one.is_dir():
            yield from _names_in(one, f"{name}/")
        else:
            yield name


def _read(name: str, values: Mapping[bytes, str]) -> ServedFile:
    """Read a file; ``values`` are put in the page at their names."""
    library = _LIBRARIES.get(name)
    if library is None:
        content = (files("frontend.console") / "page" / name).read_bytes()
        if name == _PAGE:
            for place, value in values.items():
                content = content.replace(place, escape(value).encode())
        return ServedFile.of(name, content)
    package, path = library
    # the package's file alone: importing the package would load a server of its own
    with open(str(distribution(package).locate_file(path)), "rb") as file:
        return ServedFile.of(name, file.read())
