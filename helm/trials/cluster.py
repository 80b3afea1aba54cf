"""A real Kubernetes control plane without nodes: etcd, the API server, the controllers and the scheduler.

It needs no privileges, and leaves nothing behind: it writes only to the given folder, and its processes end
with it, or when the process that started it is gone.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from helm.trials.programs import ROOT, kubernetes
from holdfast.process.parent_death import die_with_parent
from tests.servers.server import free_port
from tests.servers.started import ServerContext
from tests.servers.waiting import wait_until

TOOLS: Final = ROOT / ".cache" / "helm"
LOOPBACK: Final = "127.0.0.1"
SERVICES: Final = "10.96.0.0/16"
"""Addresses of Services."""
SERVER_NAME: Final = "kubernetes.default.svc"
START_SECONDS_MAX: Final = 180.0
COMMAND_SECONDS_MAX: Final = 300.0
POLL_SECONDS: Final = 0.2

Object = dict[str, Any]
"""A Kubernetes object, as JSON."""


class KubeClusterFailed(Exception):
    """The cluster did not start, or ended, or a command failed; the text has the output."""


class ControlPlane(ServerContext):
    """Control plane, started on entry, ended on exit.  ``helm`` and ``kubectl`` use it by :meth:`run`.

    ``address`` is its address for nodes: with any but the loopback it listens everywhere, so it needs a network
    namespace of its own.  Each name in ``nodes`` has a user, ``system:node:NAME``, for its kubelet.
    """

    def __init__(
        self, folder: Path, *, address: str = LOOPBACK, port: int | None = None, nodes: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.address = address
        self.port = free_port() if port is None else port
        self.kubeconfig = folder / "kubeconfig"
        self.certificates = folder / "certificates"
        self._tokens = {name: secrets.token_hex(16) for name in ("admin", *nodes)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        """End all spawned processes, the last one first."""
        for process in reversed(self._processes.values()):
            process.kill()  # nothing needs to be saved
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    # --- usage ---

    def run(self, tool: str, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``helm`` or ``kubectl`` with this cluster."""
        return subprocess.run(
            [str(TOOLS / tool), *arguments],
            input=given,
            env=self._environment(),
            capture_output=True,  # separately: kubectl's warnings are not part of its result
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )

    def create(self, *objects: Object) -> None:
        """Create objects.  Raises :class:`KubeClusterFailed`."""
        done = self.run("kubectl", "create", "-f", "-", given=listed(*objects))
        if done.returncode != 0:
            raise KubeClusterFailed(done.stderr)

    def get(self, *arguments: str) -> str:
        """Output of ``kubectl get``; empty if it fails."""
        return self.run("kubectl", "get", *arguments).stdout

    def found(self, *arguments: str) -> list[Object]:
        """Objects found by ``kubectl get``.  Raises :class:`KubeClusterFailed`."""
        done = self.run("kubectl", "get", *arguments, "--output", "json")
        if done.returncode != 0:
            raise KubeClusterFailed(done.stderr)
        answer: Object = json.loads(done.stdout)
        return answer["items"] if answer["kind"] == "List" else [answer]

    def spawn(self, name: str, *command: str | Path) -> None:
        """Start a process of the cluster; its log is ``NAME.log`` in the folder."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(argument) for argument in command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that a terminal's interrupt reaches only the parent
                preexec_fn=die_with_parent,
            )

    def until(self, what: str, condition: Callable[[], object], seconds: float = START_SECONDS_MAX) -> None:
        """Wait for a condition.  Raises :class:`KubeClusterFailed` on timeout, or when a process has ended."""

        def so() -> bool:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise KubeClusterFailed(f"{name} has ended with {process.returncode}: {self.log(name)}")
            return bool(condition())

        try:
            wait_until(so, what, seconds, POLL_SECONDS)
        except TimeoutError as error:
            raise KubeClusterFailed(str(error)) from None

    def log(self, name: str) -> str:
        """End of a process's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def write_kubeconfig(self, path: Path, user: str = "admin", port: int | None = None) -> None:
        """Write the configuration of a user; ``port``: another port of the loopback at which the server is reached."""
        cluster = {
            "server": f"https://{LOOPBACK}:{port or self.port}",
            "tls-server-name": SERVER_NAME,
            "certificate-authority": str(self.certificates / "apiserver.crt"),
        }
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": self._tokens[user]}}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
                }
            )
        )

    # --- start ---

    def start(self) -> None:
        """Start, and return when the API is ready and namespaces can be used.

        Raises :class:`KubeClusterFailed`, CannotBuild.
        """
        program = kubernetes()
        etcd = self._start_etcd(program)
        self._start_server(program, etcd)
        self.write_kubeconfig(self.kubeconfig)
        self.until("the API server is ready", lambda: self.get("--raw", "/readyz").strip() == "ok")
        client = (
            *(f"--kubeconfig={self.kubeconfig}", f"--authentication-kubeconfig={self.kubeconfig}"),
            *(f"--authorization-kubeconfig={self.kubeconfig}", f"--bind-address={LOOPBACK}", "--leader-elect=false"),
            f"--cert-dir={self.certificates}",
        )
        self.spawn(
            "kube-controller-manager",
            *(program, "kube-controller-manager", *client, f"--secure-port={free_port()}"),
            f"--service-account-private-key-file={self.certificates / 'accounts.key'}",
            f"--root-ca-file={self.certificates / 'apiserver.crt'}",
            *(f"--service-cluster-ip-range={SERVICES}", "--allocate-node-cidrs=false"),
        )
        self.spawn("kube-scheduler", program, "kube-scheduler", *client, f"--secure-port={free_port()}")
        self.until(
            "the namespace default has its service account",
            lambda: "serviceaccount/default" in self.get("serviceaccount", "default", "--output", "name"),
        )

    def _start_etcd(self, program: Path) -> str:
        here = f"http://{LOOPBACK}:{free_port()}"
        peers = f"http://{LOOPBACK}:{free_port()}"
        self.spawn(
            "etcd",
            *(program, "etcd", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={here}", f"--advertise-client-urls={here}", f"--listen-peer-urls={peers}"),
            *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
        )
        return here

    def _start_server(self, program: Path, etcd: str) -> None:
        self.certificates.mkdir()
        private, public = self.certificates / "accounts.key", self.certificates / "accounts.pub"
        _openssl("genrsa", "-out", str(private), "2048")
        _openssl("rsa", "-in", str(private), "-pubout", "-out", str(public))
        tokens = self.certificates / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(
            "".join(
                f'{token},admin,1,"system:masters"\n'
                if name == "admin"
                else f'{token},system:node:{name},{name},"system:nodes"\n'
                for name, token in self._tokens.items()
            )
        )
        alone = self.address == LOOPBACK
        self.spawn(
            "kube-apiserver",
            *(program, "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={self.certificates}"),
            *(f"--bind-address={LOOPBACK if alone else '0.0.0.0'}", f"--secure-port={self.port}"),
            *(f"--advertise-address={self.address}", f"--service-cluster-ip-range={SERVICES}"),
            *(["--endpoint-reconciler-type=none"] if alone else []),  # the Service kubernetes may not lead to it
            *("--authorization-mode=Node,RBAC", f"--token-auth-file={tokens}"),
            *(f"--service-account-key-file={public}", f"--service-account-signing-key-file={private}"),
            f"--service-account-issuer=https://{SERVER_NAME}",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _environment(self) -> dict[str, str]:
        """Environment of the tools, which store their files in the folder."""
        foreign = ("HELM_", "KUBE", "XDG_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**own, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}


def listed(*objects: Object) -> str:
    """Encode objects as one document for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
