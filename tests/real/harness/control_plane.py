"""A Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler, and kwok for kubelets."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import certificates, roles
from .kube import Kube
from .kubectl import Kubectl
from .process import Process, free_port
from .wait import eventually

CONFIG = Path(__file__).parent.parent / "config"

ADMIN = "admin"
SERVICE = "ebbtide"
"""Kubernetes user of the service. Its permissions are those of the chart."""

CONTEXT = "real"
"""Name of the context in every kubeconfig."""

STARTS_WITHIN = 300.0
"""Seconds until a program must have started."""

CONTROLLERS = [
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "validatingadmissionpolicy-status-controller",
]
"""Controllers that take part in a drain, or that create the objects to drain."""


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane."""

    kube: Kube
    kubectl: Kubectl
    kubeconfig: Path
    """Kubeconfig of the service, as a user would write it."""
    audit_log: Path
    processes: list[Process]
    another_api_server: Callable[[str], AbstractContextManager[Kube]]
    """Starts another API server on the same etcd, with one more flag; yields an administrator's client of it."""

    def kubeconfig_of(self, user: str, kube: Kube, token: str) -> Path:
        """Writes a user's kubeconfig for one of the API servers; returns its path."""
        return _write_kubeconfig(self.kubeconfig.parent / f"{user}.kubeconfig", user, kube.url, kube.authority, token)

    def stop(self) -> None:
        """Stops the processes, the last started first."""
        for process in reversed(self.processes):
            process.stop()


def start(programs: Path, kubectl: Path, folder: Path, lease: int = 40) -> ControlPlane:
    """Starts a control plane in a new folder, which holds its state and its logs, and waits until it serves.

    `lease` is the duration of a node's Lease in seconds. kwok renews a Lease four times in this duration.
    """
    starting = _Starting(programs, kubectl, folder, lease)
    try:
        return starting.run()
    except BaseException:
        for process in reversed(starting.processes):
            process.stop()
        raise


class _Starting:
    def __init__(self, programs: Path, kubectl: Path, folder: Path, lease: int) -> None:
        self.programs = programs
        self.lease = lease
        self.kubectl = kubectl
        self.folder = folder
        self.processes: list[Process] = []
        self.certificates = certificates.make(folder)
        self.tokens = {user: secrets.token_hex(16) for user in (ADMIN, SERVICE)}
        self.etcd = f"http://127.0.0.1:{free_port()}"
        self.port = free_port()
        self.audit_log = folder / "audit.log"

    def run(self) -> ControlPlane:
        kube = Kube(self._url(), self.certificates.authority, self.tokens[ADMIN])
        self._etcd()
        api_server = self._api_server()
        eventually("the API server is ready", lambda: _ready(api_server, kube), within=STARTS_WITHIN)
        admin = self._kubeconfig(ADMIN)
        controllers = self._controller_manager(admin)
        self._scheduler(admin)
        self._kwok(admin)
        roles.grant(kube, SERVICE)
        eventually("the controllers work", lambda: _controllers_work(controllers, kube), within=STARTS_WITHIN)
        kubectl = Kubectl(self.kubectl, admin, self.folder)
        return ControlPlane(
            kube, kubectl, self._kubeconfig(SERVICE), self.audit_log, self.processes, self._another_api_server
        )

    def _url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def _etcd(self) -> None:
        peer = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self.etcd}",
            f"--advertise-client-urls={self.etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    @contextmanager
    def _another_api_server(self, flag: str) -> Iterator[Kube]:
        port = free_port()
        process = self._api_server(port, flag)
        try:
            kube = Kube(f"https://127.0.0.1:{port}", self.certificates.authority, self.tokens[ADMIN])
            eventually("another API server is ready", lambda: _ready(process, kube), within=STARTS_WITHIN)
            yield kube
        finally:
            process.stop()
            self.processes.remove(process)

    def _api_server(self, port: int | None = None, *more: str) -> Process:
        tokens = self.folder / "tokens.csv"
        tokens.write_text(
            f"{self.tokens[ADMIN]},{ADMIN},{ADMIN},system:masters\n{self.tokens[SERVICE]},{SERVICE},{SERVICE}\n"
        )
        files = self.certificates
        return self._start(
            "kube-apiserver",
            f"--etcd-servers={self.etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port or self.port}",
            f"--tls-cert-file={files.server}",
            f"--tls-private-key-file={files.server_key}",
            f"--service-account-key-file={files.service_accounts_key}",
            f"--service-account-signing-key-file={files.service_accounts_key}",
            f"--service-account-issuer={self._url()}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--token-auth-file={tokens}",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            # As in every cluster with kubelets; kwok is none of them.
            "--enable-admission-plugins=NodeRestriction",
            f"--audit-policy-file={CONFIG / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            *more,
        )

    def _controller_manager(self, kubeconfig: Path) -> Process:
        return self._start(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--controllers={','.join(CONTROLLERS)}",
            # The default of 20 a second would delay the removal of a thousand new nodes' taints.
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            # kwok renews Leases late on busy cores; a node must not look dead then.
            f"--node-monitor-grace-period={5 * self.lease}s",
        )

    def _scheduler(self, kubeconfig: Path) -> None:
        self._start("kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")

    def _kwok(self, kubeconfig: Path) -> None:
        self._start(
            "kwok",
            f"--kubeconfig={kubeconfig}",
            f"--config={CONFIG / 'kwok.yaml'}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--node-lease-duration-seconds={self.lease}",
            f"--server-address=127.0.0.1:{free_port()}",
        )

    def _start(self, program: str, *flags: str) -> Process:
        process = Process(program, [str(self.programs / program), *flags], self.folder / f"{program}.log")
        self.processes.append(process)
        return process

    def _kubeconfig(self, user: str) -> Path:
        file = self.folder / f"{user}.kubeconfig"
        return _write_kubeconfig(file, user, self._url(), self.certificates.authority, self.tokens[user])


def _write_kubeconfig(file: Path, user: str, url: str, authority: Path, token: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "real", "user": user}}],
        "current-context": CONTEXT,
    }
    file.write_text(json.dumps(config))
    return file


def _ready(api_server: Process, kube: Kube) -> bool:
    api_server.must_run()
    return kube.text("/readyz") == "ok"


def _controllers_work(controllers: Process, kube: Kube) -> bool:
    """Returns whether a controller has created the default service account, which pods need."""
    controllers.must_run()
    return kube.find("/api/v1/namespaces/default/serviceaccounts/default") is not None
