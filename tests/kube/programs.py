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

_MAIN: Final = """package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	parts := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy":              proxy.NewProxyCommand,
	}
	if len(os.Args) > 1 && os.Args[1] == "etcd" {
		etcdmain.Main(os.Args[1:])
		return
	}
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "the first argument has to be etcd, or the name of one of Kubernetes' programs")
		os.Exit(2)
	}
	part := parts[os.Args[1]]
	os.Args = os.Args[1:]
	os.Exit(cli.Run(part()))
}
"""

_DNS: Final = """package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func init() { dnsserver.Directives = []string{"bind", "errors", "cache", "kubernetes"} }

func main() { coremain.Run() }
"""

_PAUSE: Final = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for one := range signals {
		if one != syscall.SIGCHLD {
			return
		}
		for {
			if ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); ended <= 0 || err != nil {
				break
			}
		}
	}
}
"""
"""Program that holds a pod's namespaces: it waits for its end, and reaps orphans."""


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
    (folder / "main.go").write_text(_MAIN)
    go(folder, "get", f"go.etcd.io/etcd/server/v3@v{ETCD}")
    go(folder, "mod", "tidy", "-e")
    told = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": minor.split(".")[0], "gitTreeState": "clean"}
    version = "k8s.io/component-base/version."
    stamped = " ".join(f"-X {version}{name}={value}" for name, value in told.items())  # else the server reports v0.0.0
    go(folder, "build", "-trimpath", "-ldflags", f"-s -w {stamped}", "-o", "program", ".")


def _build_kwok(folder: Path) -> None:
    go(folder, "install", "-trimpath", "-ldflags", "-s -w", f"sigs.k8s.io/kwok/cmd/kwok@v{KWOK}", modules=False)
    (folder / "kwok").rename(folder / "program")


def _build_dns(folder: Path) -> None:
    (folder / "go.mod").write_text("module dns\n\ngo 1.25.0\n")
    (folder / "main.go").write_text(_DNS)
    go(folder, "get", f"github.com/coredns/coredns@v{COREDNS}")
    go(folder, "mod", "tidy", "-e")
    go(folder, "build", "-trimpath", "-ldflags", "-s -w", "-o", "program", ".")


def _build_pause(folder: Path) -> None:
    (folder / "go.mod").write_text("module pause\n\ngo 1.25.0\n")
    (folder / "main.go").write_text(_PAUSE)
    go(folder, "build", "-trimpath", "-ldflags", "-s -w", "-o", "program", ".")
