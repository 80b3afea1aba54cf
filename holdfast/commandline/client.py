"""REST client of a running Holdfast, for the command line."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx

from auth.signatures.signer import sign
from holdfast.commandline.call_thread import CallThread

REFUSED = 1
USAGE = 2
NOT_FOUND = 3
NOT_PERMITTED = 4
UNREACHABLE = 5
"""Exit codes of commands; 0 is done."""

ENDPOINT_VARIABLE = "HOLDFAST_ENDPOINT"
API_KEY_VARIABLE = "HOLDFAST_API_KEY"
DEFAULT_ENDPOINT = "http://127.0.0.1:9324"
TIMEOUT_SECONDS = 60
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
RETRY_SECONDS = 45.0
"""Time for which a call is retried: less than the 60 s for which the service recognizes a repeated send."""
_PAUSE_FIRST_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 5.0
_EXIT_CODES = {401: NOT_PERMITTED, 403: NOT_PERMITTED, 404: NOT_FOUND, 429: UNREACHABLE}

_T = TypeVar("_T")


class CommandFailed(Exception):
    """The command was not carried out.  Contains a sentence for people, and the exit code."""

    def __init__(self, message: str, code: int = REFUSED) -> None:
        super().__init__(message)
        self.code = code


def persistently(
    call: Callable[[], _T],
    *,
    retry_seconds: float = RETRY_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """Return the result of a call, which is retried while the service cannot be reached or asks for a retry.

    Raises :class:`CommandFailed` for other errors, or after ``retry_seconds``.
    """
    end, pause = clock() + retry_seconds, _PAUSE_FIRST_SECONDS
    while True:
        try:
            return call()
        except CommandFailed as error:
            if error.code != UNREACHABLE or clock() + pause > end:
                raise
        sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Credentials that sign requests."""

    access_key_id: str
    secret: str
    region: str

    def __repr__(self) -> str:
        return f"SigningKey({self.access_key_id!r})"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Endpoint and credentials given by the command line and the environment."""

    endpoint: str | None
    api_key_file: Path | None
    data: Path | None
    ca_file: Path | None
    config: Path | None


class RestClient:
    """REST client of one command."""

    def __init__(self, asked: ClientOptions, environment: Mapping[str, str]) -> None:
        """Find the endpoint and credentials.  Raises :class:`CommandFailed`."""
        endpoint = asked.endpoint or environment.get(ENDPOINT_VARIABLE) or None
        self.remark: str | None = None
        """Name of the called service, if the command line does not make it obvious."""
        self._bearer: str | None = None
        self._signing: SigningKey | None = None
        if asked.api_key_file is not None:
            self._bearer = _key_in(asked.api_key_file)
        elif asked.data is not None:
            self._signing, running, settings_endpoint = _of_folder(asked.data, asked.config, environment)
            if endpoint is None and not running:
                self.remark = f"no running service was found on {asked.data}; calling {settings_endpoint}"
            elif running and asked.endpoint is None and endpoint is not None and endpoint.rstrip("/") not in running:
                self.remark = f"calling {endpoint} from {ENDPOINT_VARIABLE}; {asked.data} is served at {running[0]}"
            endpoint = endpoint or next(iter(running), settings_endpoint)
        elif API_KEY_VARIABLE in environment:
            self._bearer = _checked_key(environment[API_KEY_VARIABLE], f"the variable {API_KEY_VARIABLE}")
        elif environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
            region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
            self._signing = SigningKey(environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"], region)
            endpoint = endpoint or environment.get("AWS_ENDPOINT_URL_SQS")
        else:
            raise CommandFailed(
                f"no credentials: set {API_KEY_VARIABLE}, or name a file with --api-key-file, "
                "or on the machine of the service its data folder with --data",
                USAGE,
            )
        self._endpoint = _checked(endpoint or DEFAULT_ENDPOINT)
        local = urlsplit(self._endpoint).hostname in _LOOPBACK
        try:
            verify = ssl.create_default_context(cafile=None if asked.ca_file is None else str(asked.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise CommandFailed(f"the certificates in {asked.ca_file} cannot be read: {error}", USAGE) from None
        self._http = httpx.Client(verify=verify, timeout=TIMEOUT_SECONDS, trust_env=not local)
        self._thread = CallThread()

    def call(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str | int | None] | None = None,
        body: Any = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Any:
        """Call the service; returns the answer's JSON, None if it has none.

        ``path``: parts after ``/v1``; ``seconds``: timeout.  Raises :class:`CommandFailed`.
        """
        content = self._call(method, path, query, body, seconds)
        return json.loads(content) if content else None

    def fetch(self, *path: str, query: Mapping[str, str | int | None] | None = None) -> bytes:
        """Get the raw content at a path.  Raises :class:`CommandFailed`."""
        return self._call("GET", path, query, None)

    def _call(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, str | int | None] | None,
        body: Any,
        seconds: float = TIMEOUT_SECONDS,
    ) -> bytes:
        url = self._endpoint + "/v1/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        if given:
            url += "?" + urlencode(given, quote_via=quote)
        response = self._send(self._http.build_request(method, url, json=body, timeout=seconds))
        if response.is_success:
            return response.content
        raise _failure(response, self._endpoint)

    def sqs(self, action: str, *, token: str | None = None, **parameters: Any) -> Any:
        """Call an SQS action in AWS JSON 1.0; returns its answer.  Raises :class:`CommandFailed`.

        ``token``: of a send, by which a repetition is recognized (``x-holdfast-client-token``).
        """
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
        if token is not None:
            headers["x-holdfast-client-token"] = token
        request = self._http.build_request(
            "POST", self._endpoint + "/", content=json.dumps(parameters, ensure_ascii=False).encode(), headers=headers
        )
        response = self._send(request)
        if response.is_success:
            return response.json() if response.content else None
        try:
            answer = response.json()
            reason, kind = str(answer["message"]), str(answer["__type"])
        except (ValueError, KeyError, TypeError):
            reason, kind = "with an unexpected answer", ""
        code = UNREACHABLE if kind.endswith("RequestThrottled") else _code(response)
        raise CommandFailed(f"{action} is answered {response.status_code}: {reason}", code)

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def close(self) -> None:
        self._thread.close(self._http.close)

    def _send(self, request: httpx.Request) -> httpx.Response:
        request.headers["user-agent"] = "holdfast-cli"
        self._sign_in(request)
        try:
            return self._thread.run(lambda: self._http.send(request))
        except httpx.TimeoutException:
            seconds = request.extensions["timeout"]["read"]
            done = "" if request.method == "GET" else "; it is not known whether the call took effect"
            raise CommandFailed(f"{self._endpoint} did not answer within {seconds:g} s{done}", UNREACHABLE) from None
        except httpx.HTTPError as error:
            raise CommandFailed(f"{self._endpoint} cannot be reached: {error}", UNREACHABLE) from None

    def _sign_in(self, request: httpx.Request) -> None:
        if self._bearer is not None:
            request.headers["authorization"] = f"Bearer {self._bearer}"
            return
        key = self._signing
        assert key is not None
        path, _, query = request.url.raw_path.partition(b"?")
        signed = {name: value for name, value in request.headers.items() if name == "host" or name.startswith("x-amz-")}
        request.headers.update(
            sign(
                request.method,
                path,
                query,
                signed,
                request.content,
                access_key_id=key.access_key_id,
                secret=key.secret,
                region=key.region,
                now=time.time(),
            )
        )


def _code(response: httpx.Response) -> int:
    return _EXIT_CODES.get(response.status_code, REFUSED if response.status_code < 502 else UNREACHABLE)


def _failure(response: httpx.Response, endpoint: str) -> CommandFailed:
    code = _code(response)
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return CommandFailed(f"{endpoint} answered {response.status_code}, unlike a Holdfast of this version", code)
    problem = response.json()
    detail = str(problem["detail"])
    if response.status_code >= 500:
        detail = f"{detail.rstrip('.')} (request {problem['request_id']})"
    return CommandFailed(detail, code)


def _checked(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise CommandFailed(f"an endpoint is like https://queue.example.com, not {endpoint!r}", USAGE)
    return endpoint.rstrip("/")


def _key_in(file: Path) -> str:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CommandFailed(f"the file {file} cannot be read: {reason}", USAGE) from None
    return _checked_key(text, f"the file {file}")


def _checked_key(text: str, holder: str) -> str:
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise CommandFailed(f"{holder} holds no API key", USAGE)
    return key


def _of_folder(data: Path, config: Path | None, environment: Mapping[str, str]) -> tuple[SigningKey, list[str], str]:
    """Return the operator's key in a data folder, the endpoints of its running services, and the one in its settings.

    Raises :class:`CommandFailed`.
    """
    from holdfast.runtime.endpoint_file import running_endpoints
    from holdfast.runtime.root_tenant import KeyUnknown, endpoint, operator_key
    from holdfast.settings import SettingsError, load

    try:
        settings = load({"data": str(data)}, environment, config)
        key = asyncio.run(operator_key(settings))
    except (SettingsError, KeyUnknown) as error:
        raise CommandFailed(str(error), USAGE) from None
    signing = SigningKey(key.access_key_id, key.secret, settings.region)
    return signing, running_endpoints(settings.data), endpoint(settings, settings.port)


def from_arguments(
    endpoint: str | None,
    api_key_file: Path | None,
    data: Path | None,
    ca_file: Path | None,
    config: Path | None,
    *,
    without_aws: bool = False,
) -> RestClient:
    """Make the client for a command's options.  Raises :class:`CommandFailed`.

    ``without_aws``: ignore the environment variables of AWS, which are those of another service.
    """
    environment = {name: value for name, value in os.environ.items() if not (without_aws and name.startswith("AWS_"))}
    return RestClient(ClientOptions(endpoint, api_key_file, data, ca_file, config), environment)
