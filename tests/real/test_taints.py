"""The service and other controllers write to a Node at the same time, and no write is lost."""

from __future__ import annotations

import threading

import pytest

from harness import messages
from harness.kube import NODES, Kube
from harness.wait import WITHIN, eventually
from harness.world import Node, World

NODE_COUNT = 30

RIVALS = 3
"""Number of other writers: they write each node several times a second."""

OURS = "ebbtide.test/leaving"


class Rival:
    """A controller that adds a taint to each of its nodes in each turn: it reads, adds, and replaces."""

    def __init__(self, kube: Kube, nodes: list[Node]) -> None:
        self._kube = kube
        self._nodes = nodes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written: dict[str, set[str]] = {node.name: set() for node in nodes}
        """Keys of the taints that the API server accepted, by node."""
        self.conflicts = 0
        self.failed: Exception | None = None

    def start(self) -> None:
        """Starts the controller."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the controller after its current write, and raises the error that ended it earlier."""
        self._over.set()
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()
        if self.failed:
            raise self.failed

    def _run(self) -> None:
        turn = 0
        try:
            while not self._over.is_set():
                for node in self._nodes:
                    self._taint(node.name, f"rival.test/turn-{turn}")
                turn += 1
        except Exception as error:
            self.failed = error

    def _taint(self, node: str, key: str) -> None:
        path = f"{NODES}/{node}"
        while True:
            seen = self._kube.get(path)
            seen["spec"].setdefault("taints", []).append({"key": key, "effect": "PreferNoSchedule"})
            if self._kube.replace(path, seen):
                self.written[node].add(key)
                return
            self.conflicts += 1


@pytest.mark.versions
def test_concurrent_writers_lose_no_taints(world: World) -> None:
    nodes = world.several_nodes(NODE_COUNT)
    service = world.service("--taint", f"{OURS}=soon:NoSchedule")
    rivals = [Rival(world.kube.another(), nodes[first::RIVALS]) for first in range(RIVALS)]
    for rival in rivals:
        rival.start()
    eventually("the rivals have written to all nodes", lambda: all(all(rival.written.values()) for rival in rivals))

    world.send(*[messages.spot_warning(node.instance) for node in nodes])

    try:
        eventually("every node is cordoned", lambda: all(map(world.cordoned_with_notice, nodes)))
        eventually("the messages are deleted", world.acknowledged)
    finally:
        for rival in rivals:
            rival.stop()
    eventually("the service is at rest", service.at_rest)
    ours = [request for request in world.audit.requests() if (request.verb, request.resource) == ("patch", "nodes")]
    refused = sum(request.status == 409 for request in ours)
    print(f"conflicts: {sum(rival.conflicts for rival in rivals)} of the rivals, {refused} of the service")
    written = {node: taints for rival in rivals for node, taints in rival.written.items()}
    for node in nodes:
        taints = world.see(node)["spec"]["taints"]
        keys = [taint["key"] for taint in taints]
        assert len(keys) == len(set(keys)), f"taints of {node.name}: {keys}"
        lost = written[node.name] - set(keys)
        assert not lost, f"{node.name} lost taints of a rival: {lost}"
        assert {"key": OURS, "value": "soon", "effect": "NoSchedule"} in taints, f"{node.name} lost our taint: {keys}"
        assert world.cordoned_with_notice(node), f"{node.name} lost its cordon"
