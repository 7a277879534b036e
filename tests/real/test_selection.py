"""The service evicts exactly the pods that `kubectl drain` evicts with equivalent switches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from harness import manifests, messages
from harness.audit import Audit
from harness.kube import Object
from harness.wait import eventually
from harness.world import Node, World, drained

IGNORE_DAEMONSETS = "--ignore-daemonsets"
FORCE = "--force"
DELETE_EMPTY_DIR = "--delete-emptydir-data"

MIRROR = {"kubernetes.io/config.mirror": "a-hash"}

FINALIZER = "ebbtide.test/keeps"


@dataclass(frozen=True)
class Case:
    """Equivalent switches of kubectl and flags of the service."""

    kubectl: tuple[str, ...]
    ebbtide: tuple[str, ...]


CASES = [
    Case((FORCE, DELETE_EMPTY_DIR), ()),
    Case((FORCE,), ("--keep-empty-dir",)),
    Case((DELETE_EMPTY_DIR,), ("--keep-unmanaged",)),
    Case((), ("--keep-empty-dir", "--keep-unmanaged")),
    Case((FORCE, DELETE_EMPTY_DIR, "--pod-selector=app=web"), ("--pod-selector", "app=web")),
    Case((FORCE, "--pod-selector=app notin (web,db)"), ("--keep-empty-dir", "--pod-selector", "app notin (web,db)")),
]

STAY = {"agent", "agent-scratch", "mirror"}
"""Apps whose pods stay with any switch."""


@contextmanager
def every_kind_of_pod(world: World, node: Node) -> Iterator[None]:
    """Runs pods of every kind on a node."""
    world.run_daemons("agent", 1)
    world.run_daemons("agent-scratch", 1, empty_dir=True)
    world.run("web", 2, on=node)
    world.run("web-scratch", on=node, empty_dir=True)
    world.run_stateful("db", on=node)

    world.run_pod("bare", node)
    world.run_pod("bare-scratch", node, empty_dir=True)
    world.run_pod("bare-succeeded", node, phase="Succeeded")
    world.run_pod("bare-scratch-failed", node, empty_dir=True, phase="Failed")
    world.run_pod("mirror", node, annotations=MIRROR)

    job = made(world, "/apis/batch/v1", "jobs", "Job", manifests.suspended_job("job"))
    world.run_pod("job-runs", node, owner=job)
    world.run_pod("job-succeeded", node, owner=job, phase="Succeeded")
    world.run_pod("job-scratch-failed", node, owner=job, empty_dir=True, phase="Failed")

    # Any object may control pods: the ConfigMap stands for kinds that kubectl does not know.
    rollout = made(world, "/api/v1", "configmaps", "ConfigMap", {"metadata": {"name": "rollout"}})
    world.run_pod("custom", node, owner=rollout)
    world.run_pod("custom-scratch", node, owner=rollout, empty_dir=True)
    world.run_pod("owned-not-controlled", node, owner=rollout, controlled=False)

    with leaving_daemon_set(world) as daemons:
        world.run_pod("agent-finished", node, owner=daemons, phase="Succeeded")
        yield


def made(world: World, group: str, resource: str, kind: str, body: Object) -> Object:
    """Creates an object that can own pods; returns it."""
    created = world.kube.create(f"{group}/namespaces/{world.name}/{resource}", body)
    return {"apiVersion": group.removeprefix("/apis/").removeprefix("/api/"), "kind": kind, **created}


@contextmanager
def leaving_daemon_set(world: World) -> Iterator[Object]:
    """Creates a DaemonSet and deletes it with a finalizer: it still exists, but its controller replaces no pods."""
    body = manifests.daemon_set("agent-before", {manifests.WORLD: "none"})
    body["metadata"]["finalizers"] = [FINALIZER]
    daemons = made(world, "/apis/apps/v1", "daemonsets", "DaemonSet", body)
    path = f"{world.apps_path('daemonsets')}/agent-before"
    world.kube.delete(path)
    try:
        yield daemons
    finally:
        world.kube.patch(path, {"metadata": {"finalizers": None}})


def kubectl_drain(world: World, node: Node, switches: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Runs `kubectl drain`; returns the pods that it would evict, and those because of which it refuses."""
    arguments = ("drain", node.name, "--dry-run=server", IGNORE_DAEMONSETS, *switches)
    done = world.control_plane.kubectl.run(*arguments)
    if done.returncode == 0:
        return set(re.findall(r"^evicting pod \S+/(\S+) \(server dry run\)$", done.stdout, re.MULTILINE)), set()
    (reason,) = re.findall(r"^error: unable to drain node .* due to error: (.*), continuing command", done.stderr, re.M)
    offending = set(re.findall(rf"\b{world.name}/([\w.-]+\w)", reason))
    assert offending, f"kubectl failed for another reason: {done.stderr}"
    return set(), offending


def kubectl_evicts(world: World, node: Node, switches: tuple[str, ...]) -> set[str]:
    """Returns the pods that kubectl would evict, without those because of which it refuses."""
    evicts, offending = kubectl_drain(world, node, switches)
    if offending:
        willing = tuple(dict.fromkeys([*switches, FORCE, DELETE_EMPTY_DIR]))
        all_of_them, none = kubectl_drain(world, node, willing)
        assert not none, f"kubectl still refuses: {none}"
        assert offending <= all_of_them
        evicts = all_of_them - offending
    return evicts


def test_the_selection_matches_kubectl_drain(world: World) -> None:
    node = world.node()
    with every_kind_of_pod(world, node):
        everything = {pod["metadata"]["name"] for pod in world.pods(node)}
        chosen = []
        for case in CASES:
            expected = kubectl_evicts(world, node, case.kubectl)
            assert expected, f"kubectl evicts no pod with {case.kubectl}"
            assert expected < everything, f"no pod stays with {case.kubectl}"
            audit = Audit(world.control_plane.audit_log)
            service = world.service("--dry-run", *case.ebbtide)
            world.send(messages.spot_warning(node.instance))
            eventually(f"with {case.ebbtide} the message is deleted", world.acknowledged)
            service.terminate()

            evicted = audit.evicted(world.name)
            assert set(evicted) == expected, (
                f"{case}: only kubectl: {expected - set(evicted)}, only Ebbtide: {set(evicted) - expected}"
            )
            assert set(evicted.values()) == {1}, f"{case}: {evicted}"
            assert all(request.dry_run for request in audit.evictions(world.name))
            assert not audit.deletions(world.name)
            chosen.append(frozenset(expected))
        assert len(set(chosen)) == len(CASES), "two cases choose the same pods"
        assert {pod["metadata"]["name"] for pod in world.pods(node)} == everything, "a dry run removed pods"


@pytest.mark.slow
def test_a_drain_evicts_the_same_pods_as_kubectl(world: World) -> None:
    node = world.node()
    with every_kind_of_pod(world, node):
        world.run_pod("leaving", node, annotations={manifests.STOPS_AFTER: "10"})
        world.kube.delete(world.pods_path("leaving"))
        expected = kubectl_evicts(world, node, (FORCE, DELETE_EMPTY_DIR))
        assert "leaving" in expected, "kubectl does not evict the terminating pod"
        service = world.service()

        world.send(messages.spot_warning(node.instance))

        eventually("the service waits only for the terminating pod", lambda: drained(world, node, [*STAY, "leaving"]))
        assert world.backlog().in_flight == 1, "the message was not kept until the pod is gone"
        eventually("the node is drained", lambda: drained(world, node, [*STAY]))
        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
        evicted = world.audit.evicted(world.name)
        assert set(evicted) == expected - {"leaving"}
        assert set(evicted.values()) == {1}, evicted


def test_a_replacement_with_the_same_name_stays(world: World) -> None:
    node = world.node()
    world.run_stateful("db")
    world.close_budget("db")
    (first,) = world.pods(node)
    service = world.service("--at-deadline", "leave")
    world.send(messages.spot_warning(node.instance))
    eventually("the budget refuses the eviction", lambda: world.audit.refused(world.name))
    other = world.node()

    world.kube.delete(world.pods_path("db-0"))

    eventually("a replacement has the pod's name", lambda: world.apps(other) == ["db"])
    world.open_budget("db")
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    (second,) = world.pods(other)
    assert second["metadata"]["name"] == first["metadata"]["name"]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert "deletionTimestamp" not in second["metadata"]
    assert not world.audit.evicted(world.name)
    assert not world.audit.deletions(world.name)
