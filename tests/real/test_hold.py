"""A controller of the user's acts before evictions and before the completion: the example, against a real API server."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from harness import messages, roles
from harness.kube import NODES, Object
from harness.process import Process, free_port
from harness.wait import always, eventually
from harness.world import Node, World

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCOUNT = "ebbtide-hold"
USER = f"system:serviceaccount:{ACCOUNT}:{ACCOUNT}"


@contextmanager
def account(world: World) -> Iterator[tuple[Path, list[Object]]]:
    """Creates the example's service account, with jobs in the world's namespace; yields its kubeconfig and its rules."""
    kubectl = world.control_plane.kubectl
    cluster, jobs = EXAMPLES / "hold-rbac.yaml", EXAMPLES / "hold-rbac-jobs.yaml"
    kubectl.output("apply", "--filename", str(cluster))
    kubectl.output("apply", "--namespace", world.name, "--filename", str(jobs))
    try:
        everywhere, commands = rules_of(cluster, "ClusterRole"), rules_of(jobs, "Role")
        roles.wait_held(world.kube, USER, "", everywhere)
        roles.wait_held(world.kube, USER, world.name, commands)
        token = kubectl.output("create", "token", ACCOUNT, "--namespace", ACCOUNT).strip()
        yield world.control_plane.kubeconfig_of(ACCOUNT, world.kube, token), everywhere + commands
    finally:
        kubectl.output("delete", "--namespace", world.name, "--filename", str(jobs), "--wait=false")
        kubectl.output("delete", "--filename", str(cluster), "--wait=false")


def rules_of(file: Path, kind: str) -> list[Object]:
    """Returns the rules of the only role of this kind in a file."""
    (found,) = [each["rules"] for each in yaml.safe_load_all(file.read_text()) if each["kind"] == kind]
    return list(found)


@contextmanager
def controller(world: World, kubeconfig: Path) -> Iterator[Process]:
    """Runs the example with the rights of this kubeconfig."""
    kubectl = world.control_plane.kubectl
    path = f"{kubectl.program.parent}:{os.environ['PATH']}"
    environment = {"HOME": str(world.folder), "KUBECONFIG": str(kubeconfig), "PATH": path}
    process = Process("hold.sh", ["/bin/sh", str(EXAMPLES / "hold.sh")], world.folder / "hold.log", environment)
    try:
        yield process
    finally:
        # Its kubectl, too: the session is its own.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


def run_job(world: World, node: Node) -> None:
    """Runs a job's pod on a node whose kubelet refuses connections: kwok has no containers to exec into."""
    kubelet: Object = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    kubelet["daemonEndpoints"] = {"kubeletEndpoint": {"Port": free_port()}}
    world.kube.patch(f"{NODES}/{node.name}/status", {"status": kubelet})
    world.run_pod("job", node)
    world.kube.patch(world.pods_path("job"), {"metadata": {"labels": {"job-name": "job"}}})


def annotation(node: Object, name: str) -> str | None:
    """Returns the value of an annotation under ebbtide/."""
    return node["metadata"].get("annotations", {}).get(f"ebbtide/{name}")


def held(world: World, node: Node, point: str) -> bool:
    """Returns whether the Node is held at this point."""
    return annotation(world.see(node), "hold") == point


def test_the_example_releases_a_node(world: World) -> None:
    node = world.node()
    world.run("web")
    run_job(world, node)
    service = world.service("--hold", "both")
    action = world.hold(node.instance, 120)
    before = world.kube.version(NODES)
    world.send(messages.bare(action))
    eventually("the node is held", lambda: held(world, node, "before-drain"))
    always("nothing is evicted", lambda: not world.audit.evictions(world.name), during=1)
    with account(world) as (kubeconfig, rules), controller(world, kubeconfig) as process:
        # A command in a pod of the system would be a way to all rights; a pod in `default` has none of these.
        for namespace in ("kube-system", "default", ACCOUNT, ""):
            assert not roles.may(world.kube, USER, namespace, "create", "pods/exec"), namespace
        assert not roles.may(world.kube, f"system:serviceaccount:default:{ACCOUNT}", world.name, "create", "pods/exec")
        eventually("the node is drained and held again", lambda: held(world, node, "before-completion"))
        assert "job can't save" in process.log.read_text(), "the job was not asked to save"
    granted = {pair for rule in rules for pair in itertools.product(rule["verbs"], rule["resources"])}
    used = {(request.verb, request.resource) for request in world.audit.requests() if ACCOUNT in request.user}
    used = {(verb, resource) for verb, resource in used if not resource.startswith("/")}
    # kubectl before 1.31 creates an exec, and API servers from 1.35 on ask for that right, too.
    assert granted == used | {("create", "pods/exec")}
    assert action.active, "the hook was completed with the node held"
    assert world.pods(node) == []
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
