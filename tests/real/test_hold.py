"""A controller of the user's acts before evictions and before the completion: the example, against a real API server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import messages
from harness.kube import NODES, Object
from harness.process import Process
from harness.wait import always, eventually
from harness.world import Node, World

EXAMPLE = Path(__file__).parents[2] / "examples/hold.sh"


RIGHTS = EXAMPLE.with_name("hold-rbac.yaml")
ACCOUNT = "system:serviceaccount:default:ebbtide-hold"


@contextmanager
def controller(world: World) -> Iterator[Process]:
    """Runs the example with the rights that are written beside it, and no more."""
    kubectl = world.control_plane.kubectl
    kubectl.output("apply", "--filename", str(RIGHTS))
    programs = world.folder / "programs"
    programs.mkdir()
    limited = programs / "kubectl"
    limited.write_text(f'#!/bin/sh\nexec "{kubectl.program}" --as={ACCOUNT} "$@"\n', encoding="utf-8")
    limited.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    environment = {"HOME": str(kubectl.home), "KUBECONFIG": str(kubectl.kubeconfig), "PATH": path}
    process = Process("hold.sh", ["/bin/sh", str(EXAMPLE)], world.folder / "hold.log", environment)
    try:
        yield process
    finally:
        # Its kubectl, too: the session is its own.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


def annotation(node: Object, name: str) -> str | None:
    """Returns the value of an annotation under ebbtide/."""
    return node["metadata"].get("annotations", {}).get(f"ebbtide/{name}")


def held(world: World, node: Node, point: str) -> bool:
    """Returns whether the Node is held at this point."""
    return annotation(world.see(node), "hold") == point


def test_the_example_releases_a_node(world: World) -> None:
    node = world.node()
    world.run("web")
    service = world.service("--hold", "both", "--settle", "0s")
    action = world.hold(node.instance, 120)
    before = world.kube.version(NODES)
    world.send(messages.bare(action))
    eventually("the node is held", lambda: held(world, node, "before-drain"))
    always("nothing is evicted", lambda: not world.audit.evictions(world.name), during=1)
    with controller(world):
        eventually("the node is drained and held again", lambda: held(world, node, "before-completion"))
    assert action.active, "the hook was completed with the node held"
    assert world.pods(node) == []
    for verb in ("get", "create"):
        allowed = world.control_plane.kubectl.output("auth", "can-i", verb, "pods", "--subresource=exec", f"--as={ACCOUNT}")
        assert allowed.strip() == "yes", "the example runs a command in pods"
    released = world.control_plane.kubectl.output(
        "annotate", "node", node.name, "--overwrite", "ebbtide/release=before-drain,before-completion"
    )
    assert "annotated" in released
    eventually("the message is deleted", world.acknowledged)
    assert world.completions(action) == ["CONTINUE"]
    states = [annotation(state, "hold") for state in world.kube.history(NODES, node.name, before)]
    points = [point for point, last in zip(states, [None, *states], strict=False) if point != last]
    assert points == ["before-drain", None, "before-completion", None]
    eventually("the service is at rest", service.at_rest)
