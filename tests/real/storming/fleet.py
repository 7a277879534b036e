"""Nodes and pods by the thousand, created anew for each run, so that runs are independent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from harness import manifests
from harness.control_plane import ControlPlane
from harness.kube import NAMESPACES, NODES, Kube, Object
from harness.wait import eventually

T = TypeVar("T")

NAMESPACE = "storm"

_MOVING = "moving"
"""Name of the Deployment whose pods move."""

_WRITERS = 8
_WITHIN = 900.0
_PAUSE = 2.0
"""Interval in seconds between reads of all Nodes. Each read is some megabytes."""
_IMAGES = 30
"""Number of images on a node: typical of a kubelet on a node in use."""


@dataclass(frozen=True)
class Member:
    """A node, its instance, and the names of its pods."""

    node: str
    instance: str
    pods: tuple[str, ...]


class Fleet:
    """The n-th fleet of a control plane: nodes with the same number of pods each, or with pods that a controller moves.

    Each fleet has its own node names: kwok loses the pods of a node whose name was in use before.
    """

    def __init__(
        self, control_plane: ControlPlane, number: int, nodes: int, pods: int, stops_after: float, moving: bool = False
    ) -> None:
        self.kube = control_plane.kube
        self._wanted = nodes * pods if moving else 0
        names = [(f"storm-{number}-{n:05}", f"i-{number:04x}{n:013x}") for n in range(nodes)]
        self.members = [
            Member(node, instance, tuple(f"{node}-{pod}" for pod in range(pods))) for node, instance in names
        ]
        self._stops_after = stops_after
        self._clients = threading.local()

    def __enter__(self) -> Fleet:
        self.fill()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.empty()

    def fill(self) -> None:
        """Creates the nodes and the pods, and waits until all pods run."""
        if self.kube.find(f"{NAMESPACES}/{NAMESPACE}") is None:
            self.kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        account = f"{NAMESPACES}/{NAMESPACE}/serviceaccounts/default"
        eventually("the namespace can have pods", lambda: self.kube.find(account))
        self._each(self.members, lambda kube, member: kube.create(NODES, _node(member)))
        eventually("every node is Ready", lambda: self._ready() == len(self.members), _WITHIN, _PAUSE)
        if self._wanted:
            where = {manifests.WORLD: NAMESPACE}
            body = manifests.deployment(_MOVING, self._wanted, where, self._stops_after, manifests.GRACE, False)
            self.kube.create(_deployments(), body)
            eventually("every pod runs", self.is_whole, _WITHIN)
            self.members = [replace(member, pods=tuple(self._on(member.node))) for member in self.members]
            return
        pods = [(member.node, pod) for member in self.members for pod in member.pods]
        self._each(pods, lambda kube, pod: kube.create(_pods(), self._pod(*pod)))
        eventually("every pod runs", lambda: not self.kube.some(_pods(), "status.phase!=Running"), _WITHIN)

    def empty(self) -> None:
        """Removes the nodes and their remaining pods."""
        if self._wanted:
            self.kube.delete(f"{_deployments()}/{_MOVING}")
            eventually("the controller is gone", lambda: not self.kube.items(_replica_sets()), _WITHIN)
        self._each(self.members, lambda kube, member: kube.delete(f"{NODES}/{member.node}"))
        left = [pod["metadata"]["name"] for pod in self.kube.items(_pods())]
        self._each(left, lambda kube, pod: kube.remove(f"{_pods()}/{pod}"))
        eventually("no pod is left", lambda: self.pods() == 0, _WITHIN)

    def pods(self) -> int:
        """Returns the number of pods, including terminating ones."""
        return self.kube.count(_pods())

    def is_whole(self) -> bool:
        """Returns whether the controller's pods all run, and no other is left."""
        return self.pods() == self._wanted and not self.kube.some(_pods(), "status.phase!=Running")

    def _on(self, node: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.kube.items(_pods(), fields=f"spec.nodeName={node}")]

    def _ready(self) -> int:
        """Returns the number of nodes that accept pods: controllers remove a new node's taint after seeing it Ready."""
        return sum(not node["spec"].get("taints") for node in self.kube.items(NODES))

    def _pod(self, node: str, name: str) -> Object:
        annotations = {manifests.STOPS_AFTER: str(self._stops_after)}
        return manifests.pod(name, node, None, False, False, annotations)

    def _each(self, items: Iterable[T], work: Callable[[Kube, T], object]) -> None:
        def one(item: T) -> None:
            if not hasattr(self._clients, "kube"):
                self._clients.kube = self.kube.another()
            work(self._clients.kube, item)

        with ThreadPoolExecutor(_WRITERS) as writers:
            for _ in writers.map(one, items):
                pass


def _pods() -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods"


def _deployments() -> str:
    return f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


def _replica_sets() -> str:
    return f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"


def _node(member: Member) -> Object:
    """Returns a Node as large as a kubelet on EC2 writes it. A drain does not use most of it."""
    node = manifests.node(NAMESPACE, member.node, member.instance)
    images = [
        {
            "names": [
                f"registry.invalid/team-{n}/service-{n}@sha256:{n:064x}",
                f"registry.invalid/team-{n}/service-{n}:v1.{n}.0",
            ],
            "sizeBytes": 50_000_000 + n,
        }
        for n in range(_IMAGES)
    ]
    node["status"] = {"images": images}
    return node
