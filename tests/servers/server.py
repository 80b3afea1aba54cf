"""A real ``holdfast serve`` process for tests: on a free loopback port, with its own data and known root keys.

The process ends with the ``with`` block.  Within it, it can be killed, drained, and restarted on the same port and
data, as clients see a restart.
"""

import http.client
import itertools
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pytest

import holdfast
from tests.servers.started import ServerContext, is_free, is_ready
from tests.servers.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = Path(holdfast.__file__).resolve().parents[1]
"""Folder of the Holdfast under test: the repository, or the compiled wheel's (``make test-compiled``)."""
REGION = "us-east-1"
ACCOUNT = "000000000000"
ACCESS_KEY_ID = "AKIAHOLDFASTTESTS001"
SECRET_ACCESS_KEY = "tests/only/secret+of/the+root/tenant/0001"
LOG_TAIL_BYTES = 20_000
PORTS = range(10_000, 20_000)
PORTS_OF_WORKER = 1_000

_ports = itertools.count(random.randrange(PORTS_OF_WORKER))
_session_lock = threading.Lock()


def free_port() -> int:
    """Return a loopback TCP port that is not in use, and is reserved for the caller.

    It is below the ephemeral ports, and below those of :func:`tests.servers.cassandra_server.free_ports`.  Each pytest
    worker has a range of a thousand that it uses in turn, so the port of a killed server is still free when it
    restarts.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = PORTS[0] + PORTS_OF_WORKER * worker % len(PORTS)
    candidates = (first + number % PORTS_OF_WORKER for number in _ports)
    return next(port for port in candidates if is_free("127.0.0.1", port))


def clean_environment() -> dict[str, str]:
    """Return this process's environment without variables that configure Holdfast or AWS clients."""
    ours = ("HOLDFAST_", "AWS_", "BOTO_")
    proxies = ("http_proxy", "https_proxy", "all_proxy")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours) and k.lower() not in proxies}


def aws_client(service: str, **arguments: Any) -> Any:
    """Make a client with ``boto3.client``'s arguments.

    All are of one session: another one would parse the descriptions of the services again, which takes 30 times as
    long as the client.
    """
    with _session_lock:  # a session is not thread-safe, its clients are
        return _session().client(service, **arguments)


@cache
def _session() -> Any:
    import boto3

    return boto3.session.Session()


class Server(ServerContext):
    """One Holdfast, which may be started and stopped many times; its port, data and keys stay.

    ``settings`` are names of ``HOLDFAST_*`` variables without that prefix.  With ``known_keys=False`` the service
    creates its root key itself, as on a user's first start.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        known_keys: bool = True,
        code: Path = CODE,
    ) -> None:
        """Set up the server.  ``code``: folder of another Holdfast than this one."""
        self.folder = folder
        self.code = code
        self.data = folder / "data"
        self.log = folder / "holdfast.log"
        self.port = free_port()
        self.region = REGION
        self.account = ACCOUNT
        self.access_key_id = ACCESS_KEY_ID
        self.secret_access_key = SECRET_ACCESS_KEY
        self.arguments = list(arguments)
        self.settings = {f"HOLDFAST_{name}": value for name, value in (settings or {}).items()}
        if known_keys:
            self.settings.setdefault("HOLDFAST_ROOT_ACCESS_KEY_ID", ACCESS_KEY_ID)
            self.settings.setdefault("HOLDFAST_ROOT_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
        self.process: subprocess.Popen[bytes] | None = None
        self._trust: ssl.SSLContext | None = None

    def secure(self, cert: Path, key: Path) -> None:
        """Serve with TLS from the next start on."""
        self._trust = ssl.create_default_context(cafile=cert)
        self.settings |= {"HOLDFAST_TLS_CERT": str(cert), "HOLDFAST_TLS_KEY": str(key)}

    # --- the process --------------------------------------------------------------------------------

    def command(self) -> list[str]:
        """The command line of the process."""
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--data", str(self.data)]
        return [sys.executable, "-m", "holdfast", "serve", *where, *self.arguments]

    def start(self, timeout_seconds: float = 120.0) -> Self:
        """Start the process and wait until it says that it is ready; its output is appended to ``self.log``."""
        self.begin()
        try:
            wait_until(self.ready, f"holdfast serve on port {self.port} is ready", timeout_seconds)
        except BaseException:
            self.kill()
            raise
        return self

    def begin(self) -> None:
        """Start the process."""
        assert self.process is None, "the server is running"
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**clean_environment(), "PYTHONUNBUFFERED": "1", **self.settings}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.code), environment.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ready(self) -> bool:
        """Return whether ``/health/ready`` answers 200 now.

        Raises with the end of its log if the process has ended.
        """
        process = self.running()
        if process.poll() is not None:
            raise RuntimeError(f"holdfast serve ended with {process.returncode}:\n{self.log_tail()}")
        return is_ready(self.port, self._trust)

    def running(self) -> subprocess.Popen[bytes]:
        """Process that was started last and not stopped."""
        assert self.process is not None, "the server was not started"
        return self.process

    @property
    def pid(self) -> int:
        """The process id."""
        return self.running().pid

    def kill(self) -> None:
        """End the process like a power switch: SIGKILL.  No error if it has already ended."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self, timeout_seconds: float = 120.0) -> int:
        """Ask the process to drain (SIGTERM), wait for its end and return its exit code."""
        process = self.running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout_seconds)
        finally:
            self.kill()

    def restart(self, timeout_seconds: float = 120.0) -> None:
        """Drain and start again, on the same port and data."""
        self.stop(timeout_seconds)
        self.start(timeout_seconds)

    def close(self) -> None:
        self.kill()

    # --- what clients need --------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """URL for clients."""
        return f"{'http' if self._trust is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def ports(self) -> list[int]:
        """Ports on the loopback; each serves all queues."""
        return [self.port]

    def client_environment(self) -> dict[str, str]:
        """Return an environment with which any AWS client finds only this server and its keys."""
        return {
            **clean_environment(),
            "AWS_ENDPOINT_URL_SNS": self.endpoint,
            "AWS_ENDPOINT_URL_SQS": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, **overrides: Any) -> Any:
        """Make a boto3 SQS client of this server that never retries; ``overrides`` are ``boto3.client``'s arguments."""
        from botocore.config import Config

        settings: dict[str, Any] = {
            "endpoint_url": self.endpoint,
            "region_name": self.region,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "config": Config(retries={"total_max_attempts": 1}, read_timeout=40),
        }
        return aws_client("sqs", **{**settings, **overrides})

    def signed_headers(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the headers of a signed request."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        request = AWSRequest(method, self.endpoint + path, headers=headers or {}, data=body)
        SigV4Auth(Credentials(self.access_key_id, self.secret_access_key), "sqs", self.region).add_auth(request)
        return dict(request.headers.items())

    def http(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Make a signed request on a connection of its own; returns status and body of the answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, self.signed_headers(method, path, body, headers))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def query(self, action: str, **parameters: str) -> str:
        """Make a call in the Query protocol, which current boto3 no longer supports."""
        body = urlencode({"Action": action, "Version": "2012-11-05", **parameters}).encode()
        status, answer = self.http("POST", "/", body, {"Content-Type": "application/x-www-form-urlencoded"})
        assert status == http.client.OK, answer
        return answer.decode()

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Make a REST call; returns its answer."""
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = self.http(method, path, data, {"Content-Type": "application/json"})
        assert status < http.client.MULTIPLE_CHOICES, answer
        return json.loads(answer or b"{}")

    # --- what people need -----------------------------------------------------------------------------

    def log_text(self) -> str:
        """Return all output of the process, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """The last part of the log."""
        return self.log_text()[-LOG_TAIL_BYTES:]


def show_log_on_failure(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the logs of the servers that a failed test used to its report; call it from ``pytest_runtest_makereport``."""
    if not report.failed:
        return
    for name, value in getattr(item, "funcargs", {}).items():
        if isinstance(value, Server):
            report.sections.append((f"log of the {name} fixture's server", value.log_tail()))
