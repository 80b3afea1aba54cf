"""Holdfast and ElasticMQ as separate processes on loopback, each with a folder that is deleted when it stops."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.servers import proc
from tests.servers.signing import RequestSigner, SigningCredentials

HERE = Path(__file__).parents[1]
WORK = HERE / ".work"
CACHE = HERE / ".cache"
HOST = "127.0.0.1"
START_SECONDS_MAX = 300.0
CREDENTIALS = SigningCredentials("AKIAHOLDFASTBENCH000", "bench/secret/that/guards/nothing/0000000")


class ServerError(Exception):
    """A server did not start, ended, or refused a call that the bench needs."""


class ServerMissing(Exception):
    """A server is not available on this machine; the text has the reason."""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One server process.  Used as a context: started on entry, killed and removed on exit."""

    name = ""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.folder = WORK / f"{self.name}-{self.port}"
        self.signer = RequestSigner(f"{HOST}:{self.port}", CREDENTIALS)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def command(self) -> list[str]:
        """Return the command that starts it."""
        raise NotImplementedError

    @classmethod
    def version(cls) -> str:
        """Return the measured version."""
        raise NotImplementedError

    @classmethod
    def fetch(cls) -> None:
        """Fetch it, unless present.  Raises :class:`ServerMissing`."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process.pid

    @property
    def checkout(self) -> Path:
        """Folder in which the command runs: the checkout whose code it is."""
        return HERE.parent

    @property
    def pids(self) -> list[int]:
        """Ids of its processes, whose descendants count with them."""
        return [self.pid]

    @property
    def ports(self) -> Sequence[int]:
        """Ports for clients, used in turn."""
        return (self.port,)

    def rss_mib(self) -> float:
        return sum(proc.rss_mib(pid) for pid in self.pids)

    def parts(self) -> dict[str, float]:
        """Return the CPU seconds of its processes by role."""
        found: dict[str, float] = {}
        for pid in proc.tree(self.pid):
            part = proc.child_name(pid).partition("-")[0] or "supervisor"
            found[part] = found.get(part, 0.0) + proc.cpu_seconds_of(pid)
        return found

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(self.log()[-2000:], file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> float:
        """Start it and wait for its first successful answer to a signed call; return the seconds that took."""
        self._log = (self.folder / "log").open("ab")
        started_at = time.perf_counter()
        self._process = subprocess.Popen(
            self.command(),
            cwd=self.checkout,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | self._environment,
        )
        while time.perf_counter() - started_at < START_SECONDS_MAX:
            if self._process.poll() is not None:
                raise ServerError(f"{self.name} ended with {self._process.returncode}: {self.log()[-2000:]}")
            try:
                self.ready()
            except (OSError, http.client.HTTPException, ServerError):
                time.sleep(0.02)
            else:
                return time.perf_counter() - started_at
        raise ServerError(f"{self.name} did not answer within {START_SECONDS_MAX:.0f} s: {self.log()[-2000:]}")

    def ready(self) -> None:
        """Raise an error if it cannot be used yet."""
        self.call("ListQueues", {})

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        if self._process is not None:
            for pid in reversed(proc.tree(self._process.pid)):
                os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def log(self) -> str:
        """Return its output."""
        return (self.folder / "log").read_text(errors="replace")

    def call(self, action: str, members: dict[str, Any], timeout_s: float = 60) -> dict[str, Any]:
        """Make one signed call outside the measurements, on a connection of its own."""
        body = self.exchange(action, self.signer.request(action, json.dumps(members).encode()), timeout_s)
        result: dict[str, Any] = json.loads(body) if body else {}
        return result

    def exchange(self, action: str, request: bytes, timeout_s: float = 60) -> bytes:
        """Send one request on a connection of its own, and return the body of the answer."""
        with socket.create_connection((HOST, self.port), timeout=timeout_s) as stream:
            stream.sendall(request)
            answer = http.client.HTTPResponse(stream)
            answer.begin()
            body = answer.read()
        if answer.status != 200:
            raise ServerError(f"{self.name} answered {action} with {answer.status}: {body[:500]!r}")
        return body

    def create_queue(self, name: str, **attributes: str) -> str:
        """Create a queue and return its URL.  A name that ends in .fifo makes a FIFO queue."""
        if name.endswith(".fifo"):
            attributes = {"FifoQueue": "true", **attributes}
        members: dict[str, Any] = {"QueueName": name, "Attributes": attributes} if attributes else {"QueueName": name}
        url: str = self.call("CreateQueue", members)["QueueUrl"]
        return url

    def delete_queue(self, url: str) -> None:
        self.call("DeleteQueue", {"QueueUrl": url})


class Holdfast(ServerProcess):
    """``holdfast serve`` of this checkout: one process, default durability, signatures checked."""

    name = "holdfast"

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        keys = {
            "HOLDFAST_ROOT_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
            "HOLDFAST_ROOT_SECRET_ACCESS_KEY": CREDENTIALS.secret,
        }
        super().__init__(keys | dict(environment or {}))

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def command(self) -> list[str]:
        serve = ["serve", "--host", HOST, "--port", str(self.port), "--data", str(self.data)]
        return [sys.executable, "-m", "holdfast", *serve]

    @classmethod
    def version(cls) -> str:
        with (HERE.parent / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])


class ElasticMq(ServerProcess):
    """ElasticMQ's own server with its default settings: messages in memory, signatures not checked."""

    name = "elasticmq"
    jars = CACHE / "elasticmq"

    def command(self) -> list[str]:
        settings = {
            "rest-sqs.bind-hostname": HOST,
            "rest-sqs.bind-port": self.port,
            "node-address.host": HOST,
            "node-address.port": self.port,
        }
        options = [f"-D{key}={value}" for key, value in settings.items()]
        return ["java", *options, "-cp", f"{self.jars}/*", "org.elasticmq.server.Main"]

    @classmethod
    def version(cls) -> str:
        for jar in cls.jars.glob("elasticmq-server_*.jar"):
            return jar.stem.partition("-server_")[2]
        return ""

    @classmethod
    def fetch(cls) -> None:
        """Copy the server's jars from the Maven repository to the cache, unless present.

        Raises :class:`ServerMissing`.
        """
        if not shutil.which("java"):
            raise ServerMissing("ElasticMQ is left out: there is no java on this machine")
        if any(cls.jars.glob("elasticmq-server_*.jar")):
            return
        if not shutil.which("mvn"):
            raise ServerMissing("ElasticMQ is left out: there is no mvn on this machine to fetch it with")
        print("fetching ElasticMQ with Maven ...", file=sys.stderr)
        partial = cls.jars.with_suffix(".partial")
        done = subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", str(HERE / "elasticmq" / "pom.xml"), "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={partial}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServerMissing(f"ElasticMQ is left out: Maven could not fetch it: {done.stdout[-1000:]}")
        partial.rename(cls.jars)


class Nothing(ServerProcess):
    """A server that answers without any work: its cost is the generator's and the kernel's share."""

    name = "nothing"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.servers.null_server", str(self.port)]

    @classmethod
    def version(cls) -> str:
        return "bench.servers.null_server"


class Asgi(ServerProcess):
    """The minimum cost of a call to a Python server over HTTP: the difference is Holdfast's own."""

    name = "uvicorn"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.servers.asgi_server", str(self.port)]

    @classmethod
    def version(cls) -> str:
        return f"bench.servers.asgi_server, uvicorn {version('uvicorn')}"


def missing(kind: type[ServerProcess]) -> str:
    """Return the reason that servers of this kind are unavailable, after an attempt to fetch them; empty: available."""
    try:
        kind.fetch()
    except ServerMissing as error:
        return str(error)
    return ""


class CpuMeter:
    """Reads a server's CPU time at both ends of a window; give its :meth:`mark` to the load."""

    def __init__(self, server: ServerProcess) -> None:
        self._pids = server.pids
        self._at: list[float] = []

    def mark(self) -> None:
        self._at.append(sum(map(proc.cpu_seconds, self._pids)))

    @property
    def cpu_s(self) -> float:
        """CPU seconds between the last two marks."""
        return self._at[-1] - self._at[-2]
