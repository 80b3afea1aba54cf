"""``python -m tests.image REF``: test an image of the service, as Kubernetes runs it, with docker or podman.

It runs as nobody, without capabilities, on a read-only file system, with SIGTERM for the first process.  This needs a
container engine, so it is not part of ``make test``: ``make image`` builds and tests.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from tests.holdfast.queues import drained
from tests.image.engine import NoEngine, engine
from tests.servers.server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, free_port
from tests.servers.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 60.0
SENT_MIN = 100


class Container:
    """``holdfast serve`` in a container, on a port of this machine."""

    def __init__(self, engine: str, image: str, volume: str, port: int) -> None:
        self.engine = engine
        self.port = port
        keys = (f"HOLDFAST_ROOT_ACCESS_KEY_ID={ACCESS_KEY_ID}", f"HOLDFAST_ROOT_SECRET_ACCESS_KEY={SECRET_ACCESS_KEY}")
        serve = ("serve", "--host", "127.0.0.1", "--port", str(port), "--data", "/var/lib/holdfast/data")
        self.name = self._run(
            *("run", "--detach", "--pull", "never", "--read-only", "--tmpfs", "/tmp", "--network", "host"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--volume", f"{volume}:/var/lib/holdfast"),
            *(argument for key in keys for argument in ("--env", key)),
            *(image, *serve),
        )

    def _run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run([self.engine, *arguments], capture_output=True, text=True, timeout=120, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{self.engine} {' '.join(arguments)}: {done.stderr}")
        return (done.stdout if check else done.stdout + done.stderr).strip()

    def until_ready(self) -> None:
        def ready() -> bool:
            assert self.state()["Running"], f"it has ended: {self.log()}"
            try:
                return httpx.get(f"http://127.0.0.1:{self.port}/health/ready").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, "the container serves", START_SECONDS_MAX)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._run("inspect", self.name))[0]["State"]
        return found

    def inside(self, *command: str) -> str:
        """Run a command in it; returns both of its outputs, whether it succeeds or not."""
        return self._run("exec", self.name, *command, check=False)

    def client(self, **options: Any) -> Any:
        return boto3.session.Session().client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            config=Config(retries={"mode": "standard", "total_max_attempts": 1}, **options),
        )

    def log(self) -> str:
        return self._run("logs", self.name, check=False)

    def terminate(self) -> tuple[int, float]:
        """Send its first process a SIGTERM; returns the exit code, and the time it took."""
        started_at = time.monotonic()
        self._run("kill", "--signal", "TERM", self.name)
        code = int(self._run("wait", self.name))
        return code, time.monotonic() - started_at

    def remove(self) -> None:
        self._run("rm", "--force", self.name, check=False)


class _Trial:
    """Checks in order: a method's docstring is the property that it checks."""

    def __init__(self, engine: str, image: str, compiled: bool) -> None:
        self.engine, self.image, self.compiled = engine, image, compiled
        self.volume = f"holdfast-try-{secrets.token_hex(4)}"
        self.port = free_port()
        self.container = Container(engine, image, self.volume, self.port)
        self.kept = ""
        """URL of a queue that outlives the first container."""
        self.acknowledged: list[str] = []
        """Ids of the messages in that queue."""
        self.outcome = ""

    def checks(self) -> list[Callable[[], None]]:
        return [self.answers, self.build, self.bad_signature, self.sealed, self.bill, self.drains, self.keeps]

    def answers(self) -> None:
        """a signed client sends, receives and deletes"""
        self.container.until_ready()
        client = self.container.client()
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        sent = client.send_message(QueueUrl=url, MessageBody="two coffees")["MessageId"]
        (message,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
        assert (message["MessageId"], message["Body"]) == (sent, "two coffees")
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def build(self) -> None:
        """`holdfast --version` and `/health/live` name the build that was asked for"""
        expected = "(compiled)" if self.compiled else "(not compiled)"
        assert self.container.inside("holdfast", "--version").endswith(f" {expected}")
        live = httpx.get(f"http://127.0.0.1:{self.container.port}/health/live").json()
        assert live == {"status": "live", "compiled": self.compiled}

    def bad_signature(self) -> None:
        """its processes run as an unprivileged user, below an init"""
        status = self.container.inside("cat", "/proc/1/status")
        assert re.search(r"^Name:\s+tini$", status, re.MULTILINE), status
        assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.MULTILINE), status
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE), status
        assert "uid=10001(holdfast)" in self.container.inside("id")

    def sealed(self) -> None:
        """it can write to its volume alone, has no compiler, and its environment cannot grow"""
        for folder in ("/", "/venv", "/etc"):
            assert "Read-only file system" in self.container.inside("touch", f"{folder}/file")
        assert self.container.inside("stat", "-c", "%a %u", "/var/lib/holdfast/data") == "700 10001"
        tools = "for tool in gcc cc g++ clang make ld as go rustc; do command -v $tool; done; true"
        assert not self.container.inside("sh", "-c", tools)
        assert "No module named pip" in self.container.inside("/venv/bin/python", "-m", "pip")

    def bill(self) -> None:
        """its bill of materials names the packages of the lock file, and no others"""
        bill = json.loads(self.container.inside("cat", "/usr/share/doc/holdfast/sbom.json"))
        assert bill["bomFormat"] == "CycloneDX"
        named = {(normal(one["name"]), one["version"]) for one in bill["components"]}
        locked = set(
            re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements" / "base.txt").read_text(), re.MULTILINE)
        )
        assert not {one for one in named if one[0] != "holdfast"} - {
            (normal(name), version) for name, version in locked
        }
        assert {"pyarrow", "cassandra-driver", "cryptography", "uvloop"} <= {name for name, _ in named}

    def drains(self) -> None:
        """SIGTERM ends long polls and answers what is under way, and nothing that was acknowledged is lost"""
        client = self.container.client(max_pool_connections=4)
        polled = client.create_queue(QueueName="empty")["QueueUrl"]
        self.kept = client.create_queue(QueueName="kept")["QueueUrl"]
        failed: list[Exception] = []
        polls: list[Any] = []
        stopping = threading.Event()

        def poll() -> None:
            polls.append(client.receive_message(QueueUrl=polled, WaitTimeSeconds=20))

        def send() -> None:
            while True:
                try:
                    self.acknowledged.append(client.send_message(QueueUrl=self.kept, MessageBody="kept")["MessageId"])
                except Exception as error:  # calls refused at the end were not acknowledged
                    if not stopping.is_set():
                        failed.append(error)
                    return

        threads = [threading.Thread(target=work, daemon=True) for work in (poll, send, send)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(self.acknowledged) >= SENT_MIN, "messages are sent")
        stopping.set()
        code, seconds = self.container.terminate()
        for thread in threads:
            thread.join(30)
        assert code == 0, self.container.log()
        assert seconds < 15, f"{seconds:.1f} s, and a poll had 18 s left"
        assert not failed, failed
        assert len(polls) == 1, "the poll got no answer"
        assert "Messages" not in polls[0]
        self.outcome = f"{len(self.acknowledged)} messages acknowledged, drained in {seconds:.1f} s"

    def keeps(self) -> None:
        """another container on the same volume has them all"""
        self.container.remove()
        self.container = Container(self.engine, self.image, self.volume, self.port)
        self.container.until_ready()
        client = self.container.client()
        found = {message["MessageId"] for message in drained(client, self.kept)}
        assert set(self.acknowledged) <= found, f"{len(set(self.acknowledged) - found)} are lost"
        assert self.container.terminate()[0] == 0


def normal(name: str) -> str:
    """Return the normalized form of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def trial(program: str, image: str, compiled: bool) -> Iterator[_Trial]:
    made = _Trial(program, image, compiled)
    try:
        yield made
    finally:
        made.container.remove()
        subprocess.run([program, "volume", "rm", "--force", made.volume], capture_output=True, timeout=60, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.image", description="Try an image of the service.")
    parser.add_argument("image", metavar="REF")
    parser.add_argument("--not-compiled", action="store_true", help="it was built with COMPILED=no")
    options = parser.parse_args()
    try:
        program = engine()
    except NoEngine as error:
        print(error, file=sys.stderr)
        return 1
    with trial(program, options.image, not options.not_compiled) as made:
        for check in made.checks():
            try:
                check()
            except (AssertionError, TimeoutError) as error:
                print(f"FAILED  {check.__doc__}: {error}")
                return 1
            print(f"passed  {check.__doc__}", flush=True)
        print(made.outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
