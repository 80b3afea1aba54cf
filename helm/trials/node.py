"""A control plane with one real node: kubelet, containerd and runc, kube-proxy, and a DNS server.  Its pods
run.

It has to be started in namespaces of its own (:mod:`helm.trials.namespaces`): it mounts over the machine's
folders, creates interfaces and rules of netfilter, and uses ports.  Everything that :mod:`helm.trials.programs`
does not build is Debian's: ``scripts/need`` knows the packages.

Differences from most nodes: the pods' network is that of CNI's ``ptp``, which enforces no NetworkPolicy, and
volumes are folders of this machine, created beforehand.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from helm.trials.cluster import ControlPlane, KubeClusterFailed, Object
from helm.trials.namespaces import CONTROL_GROUPS, GROUP
from helm.trials.programs import dns, kubernetes, pause

NODE: Final = "node-1"
ADDRESS: Final = "192.168.77.2"
"""Address of the node, used only within its namespace."""
GATEWAY: Final = "192.168.77.1"
"""Unused address that makes a default route, without which the addresses of Services lead nowhere."""
PODS: Final = "10.244.0.0/24"
DOMAIN: Final = "cluster.local"
VOLUMES: Final = 8
PAUSE: Final = "localhost/pause:1"
PLUGINS: Final = Path("/usr/lib/cni")
"""Folder of the CNI programs in Debian."""

_SYSCTLS: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Kernel settings that the kubelet would otherwise change for the whole machine."""


class KubeNode(ControlPlane):
    """A node whose temporary files are in the given folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, address=ADDRESS, nodes=[NODE])
        self._group = os.environ[GROUP]

    def start(self) -> None:
        nameserver, program, holder = dns(), kubernetes(), pause()
        self._mount()
        self._connect()
        self._make_groups()
        self._start_containerd()
        super().start()
        archive = self.folder / "pause.tar"
        archive.write_bytes(_archive(PAUSE, "pause", holder))
        self.load(archive, PAUSE)
        self._start_kubelet(program)
        self._start_proxy(program)
        self._start_dns(nameserver)
        self.create(*self._storage())
        wait = ("wait", "--for=condition=Ready", "node", NODE, "--timeout=0")
        self.until("the node is ready", lambda: self.run("kubectl", *wait).returncode == 0)

    def load(self, archive: Path, *names: str) -> None:
        """Load the image of a docker archive under these names.  Raises :class:`KubeClusterFailed`."""
        output = _run("ctr", "--namespace", "k8s.io", "images", "import", str(archive))
        found = output.split()[1]  # unpacking NAME (...)...done
        for name in names:
            if name != found:
                _run("ctr", "--namespace", "k8s.io", "images", "tag", found, name)

    # --- the machine within the machine ---

    def _mount(self) -> None:
        """Make writes below /var and /run, and kernel settings, local to this node."""
        _run("mount", "--make-rshared", "/")
        upper, work = self.folder / "var", self.folder / "var-work"
        upper.mkdir()
        work.mkdir()
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/var,upperdir={upper},workdir={work}", "/var")
        _run("mount", "-t", "tmpfs", "tmpfs", "/run")
        settings = self.folder / "sysctl"
        for name, value in _SYSCTLS.items():
            shown = settings / name
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.write_text(f"{value}\n")
            if (real := Path("/proc/sys", name)).exists():
                _run("mount", "--bind", str(shown), str(real))

    def _connect(self) -> None:
        for command in (
            "ip link set lo up",
            "ip link add node0 type veth peer name node0-peer",
            "ip link set node0-peer up",
            f"ip address add {ADDRESS}/24 dev node0",
            "ip link set node0 up",
            f"ip route add default via {GATEWAY}",
        ):
            _run(*command.split())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _make_groups(self) -> None:
        """Create the kubelet's control groups, which will contain those of the pods."""
        if (CONTROL_GROUPS / "cgroup.controllers").exists():
            (CONTROL_GROUPS / self._group).mkdir()
            for controller in (CONTROL_GROUPS / "cgroup.controllers").read_text().split():
                (CONTROL_GROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
            return
        for procs in CONTROL_GROUPS.glob("*/cgroup.procs"):  # version 1: a folder for each controller
            group = procs.parent / self._group
            group.mkdir()
            if procs.parent.name == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):  # empty at first, so that no process can be added
                    (group / name).write_text((procs.parent / name).read_text())

    # --- programs of a node ---

    def _start_containerd(self) -> None:
        network = self.folder / "cni"
        network.mkdir()
        addresses = {"type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [
            {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        _write(network / "10-pods.conflist", {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})
        interface = 'plugins."io.containerd.grpc.v1.cri"'
        # Lowering scores for the OOM killer needs a capability that root may lack.
        (self.folder / "containerd.toml").write_text(f"""version = 2
root = "{self.folder / "containerd"}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]

[plugins."io.containerd.internal.v1.opt"]
path = "{self.folder / "opt"}"

[{interface}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true

[{interface}.cni]
bin_dir = "{PLUGINS}"
conf_dir = "{network}"

[{interface}.containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[{interface}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""")
        self.spawn("containerd", "containerd", "--config", self.folder / "containerd.toml")

        def answers() -> bool:
            return subprocess.run(["ctr", "version"], capture_output=True, check=False).returncode == 0

        self.until("containerd answers", answers)

    def _start_kubelet(self, program: Path) -> None:
        self.write_kubeconfig(self.folder / "kubelet.kubeconfig", NODE)
        resolver = self.folder / "resolv.conf"
        resolver.write_text(f"nameserver {ADDRESS}\n")
        _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
        settings: Object = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group}",
            "clusterDNS": [ADDRESS],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "500Mi", "imagefs.available": "500Mi"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "maxOpenFiles": files_max if files_max != resource.RLIM_INFINITY else 1_000_000,
            "nodeStatusUpdateFrequency": "5s",
            "oomScoreAdj": 0,
            "resolvConf": str(resolver),
        }
        _write(self.folder / "kubelet.json", settings)
        self.spawn(
            "kubelet",
            *(program, "kubelet", f"--config={self.folder / 'kubelet.json'}", f"--hostname-override={NODE}"),
            *(f"--kubeconfig={self.folder / 'kubelet.kubeconfig'}", f"--node-ip={ADDRESS}"),
            f"--cert-dir={self.folder / 'kubelet'}",
        )

    def _start_proxy(self, program: Path) -> None:
        settings: Object = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "clusterCIDR": PODS,
            "conntrack": {"maxPerCore": 0, "min": 0},  # the machine's own limit is not changed
            "hostnameOverride": NODE,
            "mode": "iptables",
            "oomScoreAdj": 0,
        }
        _write(self.folder / "kube-proxy.json", settings)
        self.spawn("kube-proxy", program, "kube-proxy", f"--config={self.folder / 'kube-proxy.json'}")

    def _start_dns(self, program: Path) -> None:
        (self.folder / "Corefile").write_text(f""".:53 {{
    bind {ADDRESS}
    errors
    cache 2
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {self.kubeconfig}
        ttl 2
    }}
}}
""")
        self.spawn("coredns", program, "-conf", self.folder / "Corefile")

    def _storage(self) -> list[Object]:
        """Volumes in folders of this machine, of the kind whose ownership Kubernetes changes to a pod's group."""
        here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
        objects: list[Object] = [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {
                    "name": "standard",
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "kubernetes.io/no-provisioner",
                "reclaimPolicy": "Retain",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        ]
        for number in range(VOLUMES):
            folder = self.folder / "volumes" / str(number)
            folder.mkdir(parents=True)
            objects.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"volume-{number}"},
                    "spec": {
                        "capacity": {"storage": "100Gi"},
                        "accessModes": ["ReadWriteOnce"],
                        "storageClassName": "standard",
                        "persistentVolumeReclaimPolicy": "Retain",
                        "local": {"path": str(folder)},
                        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
                    },
                }
            )
        return objects


def _archive(image: str, name: str, program: Path) -> bytes:
    """An image of one program, as a docker archive."""
    layer = _tar({name: program.read_bytes()}, mode=0o755)
    settings = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(manifest), "config.json": json.dumps(settings)}
    return _tar({name: text.encode() for name, text in files.items()} | {"layer.tar": layer})


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return written.getvalue()


def _write(file: Path, settings: Object) -> None:
    """Write settings as JSON, which is also YAML."""
    file.write_text(json.dumps(settings))


def _run(*command: str) -> str:
    """Run a command; returns its output.  Raises :class:`KubeClusterFailed`."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise KubeClusterFailed(f"{' '.join(command)}: {done.stdout.strip()}")
    return done.stdout
