"""A whole Holdfast on this machine, and a terminal that starts and ends its parts (``make cluster``).

::

    python -m bench.terminal                 # 3 Cassandra nodes, 2 metadata nodes, 3 backends, 2 frontends, 1 manager
    python -m bench.terminal --cassandra 1   # starts faster, and is smaller
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

from holdfast.runtime.root_tenant import shell_lines
from tests.servers.cassandra_server import CassandraFailed, CassandraMissing, CassandraNode
from tests.servers.local_cluster import ClusterFailed, LocalCluster, Process
from tests.servers.redis_server import RedisServer
from tests.servers.server import REGION

COMMANDS = "start, stop, kill, pause, resume NAME; add (a backend); status; usage; quit"
_ACTS = ("start", "stop", "kill", "pause", "resume")


def main() -> int:
    """Run a cluster until a signal, or until ``quit``."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        cluster = LocalCluster(
            cassandra=options.cassandra,
            metadata=options.metadata,
            backends=options.backends,
            frontends=options.frontends,
            redis=not options.no_redis,
            managers=1,
            ports=range(options.port, options.port + options.frontends),
        )
    except CassandraMissing as error:
        print(error, file=sys.stderr)
        return 1
    try:
        cluster.start(lambda text: print(text, flush=True))
        print(usage(cluster), flush=True)
        if sys.stdin.isatty():
            print(f"\nCommands here: {COMMANDS}.  Ctrl-C stops everything.", flush=True)
            _obey(cluster)
        else:
            signal.pause()
    except (ClusterFailed, CassandraFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("\nstopping: draining the processes, then removing what they stored", flush=True)
        cluster.stop()
        cluster.close()
    return 0


def usage(cluster: LocalCluster) -> str:
    """Return instructions for a person at a terminal."""
    one = cluster.endpoints[0]
    program = Path(sys.executable).parent / "holdfast"
    lines = [
        *("", status(cluster), ""),
        *("Holdfast is at " + " and ".join(cluster.endpoints) + ".  To use it from another shell, this block:", ""),
        *exports(cluster),
        *("", "Then, for example:", ""),
        "  aws sqs create-queue --queue-name hello"
        + ("" if shutil.which("aws") else "   # aws is not on this machine"),
        "  holdfast cluster status",
        "  holdfast doctor",
        "  holdfast backup /tmp/holdfast-backups",
        *("", f"`holdfast` is {program}; the block puts it on the PATH.", "", "From boto3:", ""),
        f'  boto3.client("sqs", endpoint_url="{one}", region_name="{REGION}",',
        f'               aws_access_key_id="{cluster.key.access_key_id}",',
        f'               aws_secret_access_key="{cluster.key.secret}")',
        *("", f"Logs of Holdfast: {cluster.folder}/NAME.log; of Cassandra: {cluster.cassandra.folder}/nodeN/log"),
        "Stopping it drains the processes, and then removes everything: all messages and queues, the keyring, the",
        f"logs, what Cassandra and Redis have stored ({cluster.folder}, {cluster.cassandra.folder}).  Backups stay.",
    ]
    return "\n".join(lines)


def exports(cluster: LocalCluster) -> list[str]:
    """Return lines of shell that set the variables for aws and all commands of Holdfast."""
    settings = {name: value for name, value in cluster.environment.items() if not name.startswith("HOLDFAST_ROOT_")}
    return [
        *shell_lines(cluster.key, cluster.endpoints[0], REGION),
        f"export HOLDFAST_ENDPOINT={cluster.endpoints[0]}",
        *(f"export {name}={shlex.quote(value)}" for name, value in settings.items()),
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
    ]


class _Redis:
    """Redis, with methods named after the commands."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis

    @property
    def running(self) -> bool:
        return self._redis.running

    @property
    def pid(self) -> int:
        return self._redis.pid

    def start(self) -> None:
        assert not self.running, "redis is running"
        self._redis.start()

    def kill(self) -> None:
        assert self.running, "redis is not running"
        self._redis.kill()

    stop = kill
    """Stop it like kill: it has no persistent data."""

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def _part(cluster: LocalCluster, name: str) -> Process | CassandraNode | _Redis:
    """Return a process by its name: one of Holdfast, ``c1`` to ``c3`` or ``redis``.  Raises ``KeyError``."""
    if name == "redis" and cluster.redis is not None:
        return _Redis(cluster.redis)
    nodes = {f"c{number}": node for number, node in enumerate(cluster.cassandra.nodes, 1)}
    return nodes[name] if name in nodes else cluster[name]


def status(cluster: LocalCluster) -> str:
    """Return a line for each process."""
    rows = [(process.name, process.role, process.address) for process in cluster]
    nodes = enumerate(cluster.cassandra.nodes, 1)
    rows += [(f"c{number}", "cassandra", f"{node.host}:{node.port}") for number, node in nodes]
    if cluster.redis is not None:
        rows.append(("redis", "redis", cluster.redis.url))
    width = max(len(address) for _, _, address in rows)
    lines = []
    for name, role, address in rows:
        part = _part(cluster, name)
        lines.append(f"{name:<5} {role:<9} {address:<{width}}  {part.pid if part.running else 'not running'}")
    return "\n".join(lines)


def obey(cluster: LocalCluster, line: str) -> str | None:
    """Execute a line of standard input; return the text to print, or None to stop."""
    verb, _, name = line.strip().partition(" ")
    try:
        if verb == "quit":
            return None
        if verb == "status":
            return status(cluster)
        if verb == "usage":
            return usage(cluster)
        if verb == "add":
            return f"{cluster.add_backend().start().name} is ready"
        if verb in _ACTS:
            getattr(_part(cluster, name), verb)()
            return status(cluster)
    except KeyError:
        return f"there is no process {name!r}"
    except (ClusterFailed, CassandraFailed, AssertionError, ProcessLookupError) as error:
        return str(error)
    return f"there is no command {verb!r}; there are: {COMMANDS}" if verb else ""


def _obey(cluster: LocalCluster) -> None:
    """Execute commands from standard input, until its end."""
    for line in sys.stdin:
        answer = obey(cluster, line)
        if answer is None:
            return
        if answer:
            print(answer, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.terminal", description="Runs a whole Holdfast on loopback.")
    parser.add_argument("--cassandra", type=int, choices=(1, 3), default=3, help="nodes of Cassandra (3)")
    parser.add_argument("--metadata", type=int, default=2, help="metadata nodes (2)")
    parser.add_argument("--backends", type=int, default=3, help="backends (3)")
    parser.add_argument("--frontends", type=int, default=2, help="frontends (2)")
    parser.add_argument("--port", type=int, default=9324, help="of the first frontend; the others follow (9324)")
    parser.add_argument("--no-redis", action="store_true", help="without Redis")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
