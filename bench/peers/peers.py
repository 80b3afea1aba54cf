"""Other brokers that write each message to the disk before they confirm it: RabbitMQ's quorum queues, NATS' JetStream.

Neither is installed: RabbitMQ and its Erlang are unpacked from Debian's packages, NATS is built by Go, both into the
bench's cache.  Each runs as one node on loopback, as Holdfast does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.load import LoadError
from bench.peers.amqp import greet
from bench.peers.nats import Nats
from bench.servers.servers import CACHE, HOST, ServerError, ServerMissing, ServerProcess, free_port

NATS_VERSION = "v2.10.22"


class RabbitMq(ServerProcess):
    """RabbitMQ of Debian, one node with its default settings and no plugins."""

    name = "rabbitmq"
    root = CACHE / "rabbitmq"

    def command(self) -> list[str]:
        """Return the command.  It also starts Erlang's port mapper as a child, which would otherwise stay as a
        daemon.
        """
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.default = {HOST}:{self.port}\n")
        names, ports = self._environment, (free_port(), free_port())
        erlang = self.root / "usr/lib/erlang"
        library = "lib/x86_64-linux-gnu" if (self.root / "lib/x86_64-linux-gnu").exists() else "lib"
        names |= {
            "HOME": str(self.folder),
            "PATH": f"{erlang}/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{self.root / library}:{self.root / 'usr' / library}",
            "ERL_EPMD_PORT": str(ports[0]),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_DIST_PORT": str(ports[1]),
            "RABBITMQ_NODENAME": f"bench-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }
        (mapper,) = erlang.glob("erts-*/bin/epmd")
        (broker,) = self.root.glob("usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server")
        return ["sh", "-c", f"{mapper} -port {ports[0]} & exec sh {broker}"]

    def ready(self) -> None:
        try:
            greet(HOST, self.port)[0].close()
        except LoadError as error:
            raise ServerError(str(error)) from error

    @classmethod
    def version(cls) -> str:
        for folder in cls.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"):
            return folder.name.partition("-")[2]
        return ""

    @classmethod
    def fetch(cls) -> None:
        """Unpack it and its dependencies from Debian's packages, unless present.  Raises :class:`ServerMissing`."""
        if cls.root.exists():
            return
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise ServerMissing("RabbitMQ is left out: this machine has no packages of Debian's")
        print("fetching RabbitMQ with apt-get ...", file=sys.stderr)
        planned = _run("RabbitMQ", "apt-get", "-s", "install", "--no-install-recommends", "rabbitmq-server")
        wanted = re.findall(r"^Inst (\S+)", planned, re.MULTILINE)
        partial = cls.root.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        packages = partial / "packages"
        packages.mkdir(parents=True)
        _run("RabbitMQ", "apt-get", "download", *(wanted or ["rabbitmq-server"]), cwd=packages)
        for package in packages.glob("*.deb"):
            _run("RabbitMQ", "dpkg-deb", "-x", str(package), str(partial))
        shutil.rmtree(packages)
        if not (partial / "usr/lib/erlang").exists():
            raise ServerMissing("RabbitMQ is left out: its Erlang is installed on this machine, and it is not")
        for script in (partial / "usr/lib/erlang").rglob("bin/erl"):
            text = script.read_text()
            script.write_text(text.replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={cls.root / 'usr/lib/erlang'}"))
        partial.rename(cls.root)


class JetStream(ServerProcess):
    """NATS with JetStream on files, each write synced before it is confirmed."""

    name = "nats"
    binary = CACHE / "nats" / "nats-server"

    def command(self) -> list[str]:
        settings = self.folder / "nats.conf"
        settings.write_text(
            f'listen: {HOST}:{self.port}\njetstream {{ store_dir: "{self.folder / "data"}", sync_interval: always }}\n'
        )
        return [str(self.binary), "-c", str(settings)]

    def ready(self) -> None:
        try:
            Nats(HOST, self.port, f"ready{free_port()}")
        except LoadError as error:
            raise ServerError(str(error)) from error

    @classmethod
    def version(cls) -> str:
        return NATS_VERSION if cls.binary.exists() else ""

    @classmethod
    def fetch(cls) -> None:
        """Build it, unless it is there.  Raises :class:`ServerMissing`."""
        if cls.binary.exists():
            return
        if not shutil.which("go"):
            raise ServerMissing("NATS is left out: there is no go on this machine to build it with")
        print("building NATS with Go ...", file=sys.stderr)
        module = f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"
        partial = cls.binary.parent.with_suffix(".partial")
        _run("NATS", "go", "install", module, environment={"GOBIN": str(partial)})
        partial.rename(cls.binary.parent)


def _run(what: str, *command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ServerMissing(f"{what} is left out: {' '.join(command[:3])} failed: {done.stdout[-1000:]}")
    return done.stdout
