"""Single replicas without a gap: a Deployment is restarted before its last ready pods leave."""

from __future__ import annotations

import json

import pytest

from harness import messages, roles
from harness.control_plane import SERVICE
from harness.kube import Kube, Object
from harness.wait import eventually
from harness.world import World, drained
from test_service_policy import BOUNDS, bound, objects, refused

RESTARTED = "kubectl.kubernetes.io/restartedAt"
VALUES = "settings: {surge: 5m}\n"


def deployment(world: World) -> Object:
    """Returns the Deployment `web`."""
    return world.kube.get(f"{world.apps_path('deployments')}/web")


def restarts(world: World) -> int:
    """Returns the number of ReplicaSets that the Deployment has had, besides its first."""
    return len(world.kube.items(world.apps_path("replicasets"))) - 1


@pytest.mark.versions
@pytest.mark.parametrize("pods", [1, 2])
def test_a_deployment_leaves_no_gap(world: World, pods: int) -> None:
    """Its budget needs all of its pods: without a new one it would hold the drain until the deadline."""
    roles.grant_surges(world.kube, SERVICE)
    nodes = world.several_nodes(pods)
    world.run("web", pods, stops_after=1)
    eventually("each node has a pod", lambda: all(world.apps(node) for node in nodes))
    world.node()
    world.close_budget("web")
    since = world.kube.version(world.apps_path("deployments"))
    with bound(world, nodes[0], objects(world, VALUES)):
        service = world.service("--surge", "5m")
        world.send(*(messages.spot_warning(node.instance) for node in nodes))
        eventually("the nodes are drained", lambda: all(drained(world, node) for node in nodes))
        eventually("the messages are deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
    states = world.kube.history(world.apps_path("deployments"), "web", since)
    available = [state["status"].get("availableReplicas", 0) for state in states]
    assert min(available) == pods, available
    assert RESTARTED in deployment(world)["spec"]["template"]["metadata"]["annotations"]
    assert restarts(world) == 1
    assert ({"outcome": "ready"}, 1.0) in service.samples("ebbtide_surges_total")
    assert not world.audit.deletions(world.name), "the rollout, or an eviction, ends the old pods"


def test_two_replicas_restart_a_deployment_once(world: World) -> None:
    roles.grant_surges(world.kube, SERVICE)
    nodes = world.several_nodes(2)
    world.run("web", 2, stops_after=1)
    eventually("each node has a pod", lambda: all(world.apps(node) for node in nodes))
    world.node()
    replicas = [world.service("--surge", "5m") for _ in range(2)]
    world.send(*(messages.spot_warning(node.instance) for node in nodes))
    eventually("the nodes are drained", lambda: all(drained(world, node) for node in nodes))
    eventually("the messages are deleted", world.acknowledged)
    for service in replicas:
        eventually("the service is at rest", service.at_rest)
    assert restarts(world) == 1


@pytest.mark.versions
def test_a_stolen_token_only_restarts_deployments(world: World) -> None:
    roles.grant_surges(world.kube, SERVICE)
    node = world.node()
    world.run("web")
    path = f"{world.apps_path('deployments')}/web"
    template = deployment(world)["spec"]["template"]
    container = template["spec"]["containers"][0]

    def change(**template: Object) -> Object:
        return {"spec": {"template": template}}

    def reason(kube: Kube, body: Object) -> str:
        return refused(kube, path, body)

    with bound(world, node, objects(world, VALUES)) as stolen:
        eventually("the policy holds", lambda: BOUNDS in refused(stolen, f"{path}?dryRun=All", {"spec": {"replicas": 2}}))
        for body in (
            {"spec": {"replicas": 0}},
            {"spec": {"paused": True}},
            {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}},
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"metadata": {"finalizers": ["example.com/x"]}},
            change(spec={"containers": [container | {"image": "evil"}]}),
            change(spec={"containers": [container, {"name": "more", "image": "evil"}]}),
            change(spec={"serviceAccountName": "admin"}),
            change(spec={"nodeName": "mine"}),
            change(metadata={"labels": {"a": "b"}}),
            change(metadata={"annotations": {"a": "b"}}),
            change(metadata={"annotations": {RESTARTED: "now", "a": "b"}}),
            change(metadata={"annotations": {RESTARTED: "now"}}, spec={"hostNetwork": True}),
        ):
            assert BOUNDS in reason(stolen, body), json.dumps(body)
        assert reason(stolen, change(metadata={"annotations": {RESTARTED: "2026-11-30T02:00:00Z"}})) == ""
        assert reason(stolen, change(metadata={"annotations": {RESTARTED: "2026-11-30T03:00:00Z"}})) == ""
    assert restarts(world) <= 2 and deployment(world)["spec"]["template"]["spec"] == template["spec"]
