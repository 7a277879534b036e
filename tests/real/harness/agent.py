"""`ebbtide agent` as the chart's DaemonSet runs it, on AWS's own mock of the instance metadata service."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from . import chart, manifests
from .kube import NAMESPACES, Kube, Object
from .process import Process, free_port
from .service import environment
from .wait import eventually

if TYPE_CHECKING:
    from .world import Node, World

_PATHS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
_IPV4 = "127.0.0.1"
_VALUES = "settings: {source: [nodes]}\nagent: {enabled: true}\n"


class Agents:
    """The agents of a world: the chart's ServiceAccount, rights and admission policy."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._closing = ExitStack()
        values = world.folder / "agents.yaml"
        values.write_text(_VALUES)
        for each in chart.rendered(values, world.name, world.name):
            if each["kind"] in _PATHS and each["metadata"]["name"].endswith("-agent"):
                world.kube.create(_PATHS[each["kind"]], each)
                self._closing.callback(world.kube.delete, f"{_PATHS[each['kind']]}/{each['metadata']['name']}")
            elif each["kind"] == "ServiceAccount" and each["metadata"]["name"].endswith("-agent"):
                self.account = each["metadata"]["name"]
                world.kube.create(f"{NAMESPACES}/{world.name}/serviceaccounts", each)

        daemons = manifests.daemon_set("agent", {manifests.WORLD: world.name}, False)
        daemons["spec"]["template"]["spec"]["serviceAccountName"] = self.account
        world.kube.create(world.apps_path("daemonsets"), daemons)

    def close(self) -> None:
        """Stops the processes, and deletes what is in no namespace."""
        self._closing.close()

    def token(self, node: Node) -> str:
        """Returns the token that the kubelet gives the agent's pod on this node."""
        world = self._world

        def running() -> list[Object]:
            return [pod for pod in world.pods_of("agent") if pod["spec"].get("nodeName") == node.name]

        meta = eventually(f"{node.name} has its agent's pod", running)[0]["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        path = f"{NAMESPACES}/{world.name}/serviceaccounts/{self.account}/token"
        made = world.kube.create(path, {"spec": {"boundObjectRef": bound}})
        return str(made["status"]["token"])

    def client(self, node: Node) -> Kube:
        """Returns a client with the token of the node's agent."""
        return Kube(self._world.kube.url, self._world.kube.authority, self.token(node))

    def start(self, node: Node, *mock: str, host: str = _IPV4) -> None:
        """Starts the node's agent on a metadata service of its own, which answers as the mock is told."""
        agent = self.run(node, self.metadata(*mock, host=host))
        eventually("the agent serves its metrics", lambda: requests.get(f"{agent.url}/metrics", timeout=30).ok)

    def metadata(self, *mock: str, host: str = _IPV4) -> Metadata:
        """Starts a metadata service, for one instance or for several that are told the same."""
        made = Metadata(self._world, host)
        self._closing.callback(made.stop)
        made.tell(*mock)
        return made

    def run(self, node: Node, metadata: Metadata) -> Agent:
        """Starts the node's agent on a metadata service."""
        world = self._world
        address = f"127.0.0.1:{free_port()}"
        kubeconfig = world.control_plane.kubeconfig_of(f"agent-{node.name}", world.kube, self.token(node))
        command = [str(world.binary), "agent", "--node-name", node.name, "--kubeconfig", str(kubeconfig)]
        command += ["--metadata-endpoint", metadata.url, "--agent-address", address]
        # No access to AWS.
        given = environment("", kubeconfig, world.folder)
        process = Process(f"agent {node.name}", command, world.folder / f"agent-{node.name}.log", given)
        self._closing.callback(process.kill)
        return Agent(process, f"http://{address}")


@dataclass(frozen=True)
class Agent:
    """A running agent."""

    process: Process
    url: str
    """URL of its pages."""

    def private_memory(self) -> int:
        """Returns the memory in KiB that the process shares with no other."""
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


class Metadata:
    """AWS's mock of the metadata service, at a port of its own."""

    def __init__(self, world: World, host: str) -> None:
        self._folder = world.folder
        self._host = host
        self._port = free_port()
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Returns the service's URL."""
        return f"http://{self._host}:{self._port}"

    def tell(self, *mock: str) -> None:
        """Answers as the mock is told from now on: the mock starts anew."""
        self.stop()
        command = [os.environ["EBBTIDE_METADATA_MOCK"], "-n", self._host, "-p", str(self._port), "--imdsv2", *mock]
        home = {"HOME": str(self._folder), "PATH": os.environ["PATH"]}
        self._process = Process("metadata", command, self._folder / f"metadata-{self._port}.log", home)

    def stop(self) -> None:
        """Stops the service, if it runs."""
        if self._process:
            self._process.kill()
