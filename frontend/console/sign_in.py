"""Sign-in of the console with the OIDC issuer, at ``/console/sign-in``: calls without a credential.

``GET`` answers the parts of an authorization request that all have in common; ``POST`` exchanges the code with which
the issuer has sent the browser back for a token (:mod:`auth.tokens.code_flow`).  The page cannot do either by itself:
its policy allows connections to this service alone.

Anyone may call this, so each call is bounded: its body, exchanges of one address, and exchanges at the same time.  An
exchange names the redirect URI that the code was issued for; only the console of this service is accepted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import msgspec
import orjson

from auth.errors import IssuerUnreachable, SignInRefused
from auth.guessing import network_of
from auth.tokens.code_flow import CodeFlow, PresentedCode
from frontend.console.files import PATH
from frontend.http.asgi import AsgiReceive, AsgiSend, ClientGone, Scope, check_header_count
from frontend.request.error_log import ErrorLog
from frontend.request.instruments import THROTTLED
from frontend.request.pipeline import LINES_OF_CLIENTS, Pipeline
from frontend.request.request import ClientRequest, Format
from frontend.rest.problems import MEDIA_TYPE, Problem, invalid, of_sqs
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError
from ratelimit.keyed import KeyedBuckets

SIGN_IN_PATH = f"{PATH}/sign-in"
BODY_BYTES_MAX = 8 * 1024
ADDRESS_PER_SECOND, ADDRESS_BURST = 1.0, 30.0
"""Rate of exchanges of one address; for IPv6 of one network (/64).  The people of an office share an address."""
EXCHANGES_MAX = 16
"""Maximum number of exchanges at the same time."""
RETRY_SECONDS = 5.0


class ConsoleSignIn:
    """An ASGI callable for :data:`SIGN_IN_PATH`."""

    def __init__(self, pipeline: Pipeline, flow: CodeFlow, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic."""
        self._pipeline = pipeline
        self._flow = flow
        self._addresses = KeyedBuckets(ADDRESS_PER_SECOND, ADDRESS_BURST, clock)
        self._exchanges = 0
        self._refusals = ErrorLog(pipeline.context.log, level=logging.INFO, lines=LINES_OF_CLIENTS)

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        pipeline = self._pipeline
        request = pipeline.start(scope, receive, Format.REST)
        try:
            try:
                check_header_count(scope)
                status, headers = 200, {"content-type": "application/json"}
                body = orjson.dumps(await self._answer(request))
            except ClientGone:
                pipeline.gone(request)
                return
            except Exception as error:
                problem = await self._problem(request, error)
                status, headers = problem.status, {"content-type": MEDIA_TYPE, **problem.headers()}
                body = problem.document(request.request_id)
            pipeline.answered(request, status, len(body))
            headers |= {
                "content-length": str(len(body)),
                "cache-control": "no-store",
                "x-content-type-options": "nosniff",
                "x-request-id": request.request_id,
            }
            if not request.body_read and request.method != "GET":
                headers["connection"] = "close"
            sent = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": sent})
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
        finally:
            pipeline.end(request)

    async def _answer(self, request: ClientRequest) -> dict[str, Any]:
        if request.method == "GET":
            return await self._authorization_request(request)
        if request.method == "POST":
            return await self._exchange(request)
        raise Problem(405, "MethodNotAllowed", "A sign-in begins with GET, and ends with POST.")

    async def _authorization_request(self, request: ClientRequest) -> dict[str, Any]:
        """The issuer's address, and the parameters that are the same for all sign-ins."""
        endpoints = await self._flow.endpoints()
        return {
            "authorization_endpoint": endpoints.authorization,
            "parameters": self._flow.request_parameters(self._redirect_uri(request)),
            "issuer_names_itself": endpoints.names_itself,
        }

    async def _exchange(self, request: ClientRequest) -> dict[str, Any]:
        """A token for the code in the body."""
        _, wait = self._addresses.take(network_of(request.address))
        if wait:
            THROTTLED.add("sign_ins")
            text = "Too many sign-ins at the issuer come from your address. Try again later."
            raise SqsError(REQUEST_THROTTLED, text, retry_after_s=wait)
        body = await self._pipeline.read_body(request, BODY_BYTES_MAX)
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            # other pages can send JSON only after asking this service, which does not answer them
            raise invalid("The body has to be JSON, with the content-type application/json.")
        try:
            presented = msgspec.json.decode(body, type=PresentedCode)
        except msgspec.DecodeError as error:
            raise invalid(f"The body is not a code of the issuer: {error}") from None
        redirect_uri = self._redirect_uri(request)
        if presented.redirect_uri != redirect_uri:
            raise invalid(
                f"The redirect_uri has to be {redirect_uri}. Open the console there; if its address is another one, "
                "set external_url, or have the proxy pass on the Host that it was asked for."
            )
        if self._exchanges >= EXCHANGES_MAX:
            text = "Too many people sign in at the same time. Try again."
            raise Problem(503, "ServiceUnavailable", text, retry_after_s=RETRY_SECONDS)
        self._exchanges += 1
        try:
            token = await self._flow.exchange(presented, self._pipeline.services.clock())
        finally:
            self._exchanges -= 1
        return {"token": token, "sign_out": await self._sign_out()}

    async def _sign_out(self) -> str | None:
        """Address of the page where the issuer's session is ended; None: there is none."""
        end_session = (await self._flow.endpoints()).end_session
        if end_session is None:
            return None
        return f"{end_session}{'&' if '?' in end_session else '?'}{urlencode({'client_id': self._flow.client_id})}"

    def _redirect_uri(self, request: ClientRequest) -> str:
        """Address of this service's console, as the browser knows it."""
        return f"{self._pipeline.base_url(request)}{PATH}"

    async def _problem(self, request: ClientRequest, error: Exception) -> Problem:
        match error:
            case Problem():
                problem = error
            case SignInRefused():
                self._pipeline.audit.sign_in_refused(request, error.code)
                problem = Problem(401, error.code, error.message)
            case IssuerUnreachable():
                text = (
                    f"The issuer {self._flow.issuer} cannot be reached by the service, or answers wrongly; the "
                    "service's log has the reason. Try again later, or sign in with a key."
                )
                problem = Problem(503, "IssuerUnreachable", text, retry_after_s=RETRY_SECONDS)
            case _:
                return of_sqs(await self._pipeline.failed(request, error), error)
        request.fail(problem.code)
        about = (request.request_id, problem.status, problem.code, problem.detail)
        self._refusals.say(problem.code, "%s sign-in at the OIDC issuer: %d %s: %r", *about)
        return problem
