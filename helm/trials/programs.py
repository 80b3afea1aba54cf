"""Kubernetes and kwok, which simulates nodes, built by Go from their modules into ``.cache/kube``.

All of Kubernetes is one program: its parts are importable, and linked together they take half as long to build
as separately.  It takes some minutes the first time, on two cores, and none later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "kube"
SOURCES: Final = Path(__file__).parent / "go"
"""Main programs, each of which links parts of others."""

KUBERNETES: Final = "1.35.4"
ETCD: Final = "3.6.5"
"""Version in Kubernetes' own go.mod: one that lacks RequestWatchProgress makes pods Ready a minute late."""
KWOK: Final = "0.8.0"
COREDNS: Final = "1.15.0"

_STAGING: Final = """api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider
cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client
csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager
kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin
sample-controller"""
"""Kubernetes' own modules, which it requires as v0.0.0: each is replaced by its own version."""


class CannotBuild(Exception):
    """A program cannot be built; the text says why."""


def kubernetes() -> Path:
    """etcd and all of Kubernetes; the first argument selects the part.  Raises :class:`CannotBuild`."""
    return built(f"kubernetes-{KUBERNETES}-etcd-{ETCD}", _build_kubernetes)


def kwok() -> Path:
    """Build kwok.  Raises :class:`CannotBuild`."""
    return built(f"kwok-{KWOK}", _build_kwok)


def dns() -> Path:
    """Build CoreDNS with its plugins for Services.  Raises :class:`CannotBuild`."""
    return built(f"coredns-{COREDNS}", _build_dns)


def pause() -> Path:
    """Build the first process of each pod.  Raises :class:`CannotBuild`."""
    return built("pause-1", _build_pause)


def built(name: str, build: Callable[[Path], None]) -> Path:
    """The program of this name, which includes its version.  ``build`` creates ``program`` in the folder it is
    given.

    Raises :class:`CannotBuild`.
    """
    program = CACHE / name
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise CannotBuild(f"{name} is built with Go, which is not here: install Go 1.25 or later, and try again")
    print(f"building {name}, which may take some minutes", file=sys.stderr)
    started_at = time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as folder:
        build(Path(folder))
        (Path(folder) / "program").rename(program)
    size_megabytes = program.stat().st_size / 1e6
    print(f"built {name} in {time.monotonic() - started_at:.0f} s, {size_megabytes:.0f} MB", file=sys.stderr)
    return program


def go(folder: Path, *arguments: str, modules: bool = True) -> None:
    """Run ``go`` in a folder, to which it also installs.  Raises :class:`CannotBuild`."""
    variables = {"CGO_ENABLED": "0", "GOBIN": str(folder), "GOFLAGS": "-mod=mod -buildvcs=false" if modules else ""}
    done = subprocess.run(
        ["nice", "-n", "10", "go", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CannotBuild(f"go {' '.join(arguments)}: {done.stdout[-2000:]}")


def _build_kubernetes(folder: Path) -> None:
    minor = KUBERNETES.split(".", 1)[1]
    replaced = "".join(f"\tk8s.io/{module} => k8s.io/{module} v0.{minor}\n" for module in _STAGING.split())
    (folder / "go.mod").write_text(
        f"module kubernetes\n\ngo 1.25.0\n\nrequire k8s.io/kubernetes v{KUBERNETES}\n\nreplace (\n{replaced})\n"
    )
    shutil.copy(SOURCES / "kubernetes.go", folder / "main.go")
    go(folder, "get", f"go.etcd.io/etcd/server/v3@v{ETCD}")
    go(folder, "mod", "tidy", "-e")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": minor.split(".")[0], "gitTreeState": "clean"}
    version = "k8s.io/component-base/version."
    # Without it, the server reports v0.0.0.
    stamped = " ".join(f"-X {version}{name}={value}" for name, value in values.items())
    go(folder, "build", "-trimpath", "-ldflags", f"-s -w {stamped}", "-o", "program", ".")


def _build_kwok(folder: Path) -> None:
    go(folder, "install", "-trimpath", "-ldflags", "-s -w", f"sigs.k8s.io/kwok/cmd/kwok@v{KWOK}", modules=False)
    (folder / "kwok").rename(folder / "program")


def _build_dns(folder: Path) -> None:
    (folder / "go.mod").write_text("module dns\n\ngo 1.25.0\n")
    shutil.copy(SOURCES / "dns.go", folder / "main.go")
    go(folder, "get", f"github.com/coredns/coredns@v{COREDNS}")
    go(folder, "mod", "tidy", "-e")
    go(folder, "build", "-trimpath", "-ldflags", "-s -w", "-o", "program", ".")


def _build_pause(folder: Path) -> None:
    (folder / "go.mod").write_text("module pause\n\ngo 1.25.0\n")
    shutil.copy(SOURCES / "pause.go", folder / "main.go")
    go(folder, "build", "-trimpath", "-ldflags", "-s -w", "-o", "program", ".")
