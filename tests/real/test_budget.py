"""A closed budget holds a pod until shortly before the deadline. The pod gets its grace period, and users see why."""

from __future__ import annotations

import re
from datetime import timedelta
from math import floor

import pytest

from harness import manifests, messages
from harness.audit import Request
from harness.kube import Object
from harness.wait import eventually
from harness.world import Node, World, drained

LEFT = 40
"""Seconds from the warning to the instance's end."""

TRIAL = 10
"""Minimum number of seconds of eviction attempts; or a quarter of the remaining time, if that is shorter."""

SHORT_GRACE = 4
"""Grace period in seconds that fits into the remaining time."""

RESERVE = 2
"""Seconds between the end of a pod's grace period and the deadline."""


def blocked_pods(world: World, node: Node) -> dict[str, Object]:
    """Runs two pods with closed budgets; returns their metadata by app. Only cache's grace period fits."""
    world.run("cache", on=node, stops_after=1, grace=SHORT_GRACE)
    world.run("db", on=node, stops_after=1)
    for app in ("cache", "db"):
        world.close_budget(app)
    return {pod["metadata"]["labels"]["app"]: pod["metadata"] for pod in world.pods(node)}


def reports_the_block(world: World, node: Node, pod: str, app: str) -> bool:
    """Returns whether `kubectl describe node` says which pod and which budget block the drain."""
    seen = world.control_plane.kubectl.output("describe", "node", node.name).splitlines()
    ours = [line for line in seen if "Drain" in line]
    assert any(re.match(r" +EbbtideDraining +True .* Blocked ", line) for line in ours), f"no condition: {ours}"
    events = [line for line in ours if re.match(r" +Warning +DrainBlocked ", line)]
    assert len(events) == 1, f"not one Event: {ours}"
    assert pod in events[0], f"{pod} is not named: {events[0]}"
    assert manifests.budget(app) in events[0], f"its budget is not named: {events[0]}"
    return True


def conditions(world: World, node: Node) -> dict[str, Object]:
    """Returns a Node's conditions by type."""
    return {each["type"]: each for each in world.see(node)["status"]["conditions"]}


def reports_the_end(world: World, node: Node) -> bool:
    """Returns whether the Node's only Event says that its drain has ended, and its condition is False."""
    events = [(event["reason"], event["count"]) for event in world.events("Node", node.name)]
    ours = [event for event in events if event[0].startswith("Drain")]
    assert ours == [("DrainEnded", 2)], f"Events about {node.name}: {events}"
    condition = conditions(world, node)["EbbtideDraining"]
    assert condition["status"] == "False", condition
    return True


@pytest.mark.versions
def test_pods_held_by_budgets_are_deleted_before_the_deadline(world: World) -> None:
    node = world.node()
    pods = blocked_pods(world, node)
    kubelets = conditions(world, node)
    before = world.kube.version(world.pods_path())
    service = world.service()
    warning = messages.spot_warning(node.instance, ago=timedelta(seconds=120 - LEFT))
    deadline = messages.spot_deadline(warning)

    world.send(warning)

    cache = pods["cache"]["name"]
    eventually("kubectl shows which pod blocks the drain", lambda: reports_the_block(world, node, cache, "cache"))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("kubectl shows that the drain has ended", lambda: reports_the_end(world, node))
    eventually("the service is at rest", service.at_rest)

    others = {type: each for type, each in conditions(world, node).items() if type != "EbbtideDraining"}
    assert others == kubelets, "the kubelet's conditions changed"
    deletions = world.audit.deletions(world.name)
    assert sorted(deletion.name for deletion in deletions) == sorted(pod["name"] for pod in pods.values())
    for app, pod in pods.items():
        (deletion,) = (each for each in deletions if each.name == pod["name"])
        assert (deletion.status, deletion.uid) == (200, pod["uid"]), deletion
        check_grace(app, deletion, deadline)
        condition = world.disrupted(pod["name"], before)
        assert (condition["status"], condition["reason"]) == ("True", "DeletionByEbbtide"), condition
        assert manifests.budget(app) in condition["message"], condition
        tried = [each for each in world.audit.evictions(world.name) if each.name == pod["name"]]
        assert {each.status for each in tried} == {429}, tried
        asked, first = deletion.came_at - tried[0].came_at, tried[0].came_at
        assert asked > min(TRIAL, (deadline - first) / 4) - 1.5, f"evictions were attempted for only {asked:.1f} s"
    about_pods = [event for pod in pods.values() for event in world.events("Pod", pod["name"])]
    blocked = [event for event in about_pods if event["reason"] == "EvictionBlocked"]
    assert len(blocked) == 1, f"not one pod has an Event about the block: {blocked}"


def check_grace(app: str, deletion: Request, deadline: float) -> None:
    """Checks that the pod got its own grace period as late as possible, or else the remaining time, but never 0."""
    left = deadline - deletion.came_at
    own = SHORT_GRACE if app == "cache" else manifests.GRACE
    assert deletion.grace, f"deleted without grace: {deletion}"
    # The service computes the whole seconds when it sends the deletion, a little before the API server receives it.
    least = min(own, floor(left - RESERVE + 0.5))
    assert least <= deletion.grace <= min(own, left), f"{app} got {deletion.grace} s of grace with {left:.1f} s left"
    if app == "cache":
        assert left < SHORT_GRACE + RESERVE + 1, f"{app} was deleted {left:.1f} s before the deadline: too early"
