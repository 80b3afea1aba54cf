"""An OIDC issuer whose users sign in: an authorization endpoint and a token endpoint for a public client with PKCE."""

import hashlib
import itertools
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from tests.auth.outside import AUDIENCE, ISSUER, NOW, OidcIssuer

CLIENT = "holdfast-console"
PAGE = "<!doctype html><title>Issuer</title><h1>Who are you?</h1><a href='{}'>Be the first user</a>"

Issuer = TypeVar("Issuer", bound=OidcIssuer)


class CodeIssuer(OidcIssuer):
    """The issuer.  Everyone is signed in, unless it asks."""

    def __init__(self, url: str = ISSUER, now: Callable[[], float] = lambda: NOW) -> None:
        super().__init__(url)
        self.now = now
        self.asks = False
        """True: the authorization endpoint answers a page with a link, instead of a redirect."""
        self.requests: list[dict[str, str]] = []
        """Parameters of authorization requests."""
        self.request_headers: list[dict[str, str]] = []
        self.forms: list[dict[str, str]] = []
        """Parameters of token requests."""
        self.claims: dict[str, Any] = {}
        """Claims of the next tokens; None leaves one out."""
        self.id_claims: dict[str, Any] = {}
        """Claims of the next ID tokens."""
        self.added: dict[str, Any] = {}
        """Members of the next answers of the token endpoint; None leaves one out."""
        self.redirect: dict[str, str | None] = {}
        """Parameters of the next redirects; None leaves one out."""
        self.metadata: dict[str, Any] = {}
        """Members of the discovery document; None leaves one out."""
        self.issued: list[str] = []
        """All codes and tokens."""
        self._codes: dict[str, dict[str, str]] = {}
        self._numbers = itertools.count(1)

    def document(self, path: str) -> dict[str, Any] | None:
        document = super().document(path)
        if document is None or "keys" in document:
            return document
        endpoints = {
            "authorization_endpoint": f"{self.url}/authorize?realm=tests",
            "token_endpoint": f"{self.url}/token",
            "end_session_endpoint": f"{self.url}/goodbye",
            "authorization_response_iss_parameter_supported": True,
        }
        return _without_none({**document, **endpoints, **self.metadata})

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method != "POST" or self.answer is not None:
            return super()._answer(request)
        self.asked.append(request.url.path)
        self.request_headers.append(dict(request.headers))
        status, document = self.redeem(dict(parse_qsl(request.content.decode())))
        return httpx.Response(status, json=document)

    def authorize(self, request: dict[str, str]) -> str:
        """URL to which the browser is sent back."""
        self.requests.append(request)
        code = f"code-{next(self._numbers)}-{self.sign(sub='code').decode()[-20:]}"
        self._codes[code] = request
        self.issued.append(code)
        answer = {"code": code, "state": request["state"], "iss": self.url, **self.redirect}
        return f"{request['redirect_uri']}?{urlencode(_without_none(answer))}"

    def redeem(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer of the token endpoint."""
        self.forms.append(form)
        request = self._codes.pop(form["code"], None)
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        if form["client_id"] != CLIENT or "client_secret" in form:
            return 401, {"error": "invalid_client"}
        if (
            form["grant_type"] != "authorization_code"
            or request is None
            or request["client_id"] != CLIENT
            or request["redirect_uri"] != form["redirect_uri"]
            or request["code_challenge_method"] != "S256"
            or request["code_challenge"] != urlsafe_b64encode(challenge).rstrip(b"=").decode()
        ):
            return 400, {"error": "invalid_grant", "error_description": f"The code {form['code']} is not valid"}
        id_token = self.sign(aud=CLIENT, nonce=request["nonce"], **self.id_claims).decode()
        answer = {
            "access_token": self.sign(aud=request.get("audience", AUDIENCE)).decode(),
            "id_token": id_token,
            "refresh_token": "refreshes",
            "token_type": "Bearer",
            "expires_in": 300,
            **self.added,
        }
        answer = _without_none(answer)
        self.issued += [value for name, value in answer.items() if name.endswith("token")]
        return 200, answer

    def sign(self, **claims: Any) -> bytes:
        """A token of this time."""
        now = int(self.now())
        return self.token(**{"iat": now, "exp": now + 300, "jti": str(next(self._numbers)), **self.claims, **claims})


def _without_none(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


@contextmanager
def served(make: Callable[[str], Issuer]) -> Iterator[Issuer]:
    """Serve an issuer on a loopback port; ``make`` makes it from its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/authorize" and isinstance(made, CodeIssuer):
                made.request_headers.append(dict(self.headers))
                back = made.authorize(dict(parse_qsl(url.query)))
                if made.asks:
                    self.reply(200, PAGE.format(back.replace("&", "&amp;")).encode(), "text/html")
                else:
                    self.reply(302, b"", "text/plain", back)
                return
            if url.path == "/goodbye":
                self.reply(200, b"<!doctype html><title>Issuer</title><h1>Goodbye</h1>", "text/html")
                return
            document = made.document(url.path)
            self.reply(404 if document is None else 200, json.dumps(document).encode())

        def do_POST(self) -> None:
            assert isinstance(made, CodeIssuer)
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, document = made.redeem(dict(parse_qsl(form)))
            self.reply(status, json.dumps(document).encode())

        def reply(
            self, status: int, content: bytes, media_type: str = "application/json", location: str | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            if location is not None:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        made = make(f"http://127.0.0.1:{listening.server_port}")
        thread = Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            listening.shutdown()
            thread.join()
