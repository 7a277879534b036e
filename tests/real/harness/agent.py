"""`ebbtide agent` as the chart's DaemonSet runs it, on AWS's own mock of the instance metadata service."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import requests

from . import helm, manifests
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
_VALUES = "settings: {source: [nodes]}\nagent: {enabled: true}\n"


class Agents:
    """The agents of a world: the chart's ServiceAccount, rights and admission policy."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._processes: list[Process] = []
        self._made: list[str] = []
        values = world.folder / "agents.yaml"
        values.write_text(_VALUES)
        for each in helm.rendered(values, world.name, world.name):
            if each["kind"] in _PATHS and each["metadata"]["name"].endswith("-agent"):
                world.kube.create(_PATHS[each["kind"]], each)
                self._made.append(f"{_PATHS[each['kind']]}/{each['metadata']['name']}")
            elif each["kind"] == "ServiceAccount" and each["metadata"]["name"].endswith("-agent"):
                self.account = each["metadata"]["name"]
                world.kube.create(f"{NAMESPACES}/{world.name}/serviceaccounts", each)

        daemons = manifests.daemon_set("agent", {manifests.WORLD: world.name}, False)
        daemons["spec"]["template"]["spec"]["serviceAccountName"] = self.account
        world.kube.create(world.apps_path("daemonsets"), daemons)

    def close(self) -> None:
        """Stops the processes, and deletes what is in no namespace."""
        for process in self._processes:
            process.kill()
        for path in self._made:
            self._world.kube.delete(path)

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

    def start(self, node: Node, *mock: str) -> Process:
        """Starts a metadata service that answers as the mock is told, and the node's agent; returns the first."""
        world = self._world
        port, metrics = free_port(), free_port()
        service = self._mock(node, port, mock)
        kubeconfig = world.control_plane.kubeconfig_of(f"agent-{node.name}", world.kube, self.token(node))
        command = [str(world.binary), "agent", "--node-name", node.name, "--kubeconfig", str(kubeconfig)]
        command += ["--metadata-endpoint", f"http://127.0.0.1:{port}", "--agent-address", f"127.0.0.1:{metrics}"]
        # No access to AWS.
        given = environment("", kubeconfig, world.folder)
        agent = Process(f"agent {node.name}", command, world.folder / f"agent-{node.name}.log", given)
        self._processes.append(agent)
        url = f"http://127.0.0.1:{metrics}/metrics"
        eventually("the agent serves its metrics", lambda: requests.get(url, timeout=30).ok)
        return service

    def _mock(self, node: Node, port: int, mock: Sequence[str]) -> Process:
        command = [os.environ["EBBTIDE_METADATA_MOCK"], "-n", "127.0.0.1", "-p", str(port), "--imdsv2", *mock]
        home = {"HOME": str(self._world.folder), "PATH": os.environ["PATH"]}
        made = Process(f"metadata {node.name}", command, self._world.folder / f"metadata-{node.name}.log", home)
        self._processes.append(made)
        return made
