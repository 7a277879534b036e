"""Waves over two replicas, and a zonal shift: drains that have time wait for others, one that has none does not."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from harness import manifests, messages
from harness.kills import Replica
from harness.kube import Object
from harness.recorder import RECEIVE, Call
from harness.status import report
from harness.wait import always, eventually
from harness.world import MARK, Node, World, cordoned, drained

ZONE_ID = "topology.k8s.aws/zone-id"


def receives_once(world: World, replica: Replica) -> None:
    """Hangs up on a replica that asks for messages after its first, so that another one gets those that follow."""
    received = []

    def after(call: Call) -> None:
        if call.caller == replica.service.name and call.messages:
            received.append(call)

    def before(caller: str, action: str, asked: dict[str, Any]) -> None:
        if action == RECEIVE and received and caller == replica.service.name:
            raise ConnectionError(f"{caller} has its messages")

    world.recorder.before, world.recorder.after = before, after


def waves(world: World, node: Node) -> list[str]:
    """Returns how far the drains of a node's notices are in their waves."""
    return [notice.get("wave", "") for notice in world.notices(node)]


def test_of_a_zone_one_node_at_a_time_is_drained_by_both_replicas(world: World) -> None:
    *nodes, urgent = world.several_nodes(6)
    for node in nodes:
        world.run(f"db-{node.name}", on=node, stops_after=2)
        world.close_budget(f"db-{node.name}")
    for node in (*nodes, urgent):
        world.run_pod(f"web-{node.name}", node, annotations={manifests.STOPS_AFTER: "2"})
    of_node = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in world.kube.items(world.pods_path())}
    flags = ("--wave=topology.kubernetes.io/zone=1", "--on=rebalance=drain", "--max-draining=none")
    replicas = [Replica(world, name, flags) for name in ("a", "b")]
    for replica, share in zip(replicas, (nodes[:3], nodes[3:]), strict=True):
        replica.start()
        replica.service.wait_ready()
        if replica is replicas[0]:
            receives_once(world, replica)
        world.queues.send_together(world.queue, [messages.rebalance(node.instance) for node in share])
        for node in share:
            eventually("the node is cordoned", lambda node=node: world.cordoned_with_notice(node))

    def asked() -> list[str]:
        """Returns the nodes in whose pods' evictions the replicas asked for, once for each turn."""
        evictions = sorted(world.audit.evictions(world.name), key=lambda each: each.came_at)
        names = (of_node[each.name] for each in evictions)
        return [name for name, _ in groupby(name for name in names if name != urgent.name)]

    eventually("a budget holds the first", lambda: world.audit.refused(world.name))
    waiting = [node for node in nodes if node.name not in asked()]
    assert len(waiting) == len(nodes) - 1
    eventually("the others wait", lambda: all(waves(world, node) == ["waits"] for node in waiting))
    world.send(messages.spot_warning(urgent.instance))
    eventually("the one without time does not", lambda: drained(world, urgent))
    always("the others wait on", lambda: len(asked()) == 1, 6)

    together: set[tuple[str, ...]] = set()

    def all_drained() -> bool:
        pods = world.kube.items(world.pods_path())
        going = {pod["spec"]["nodeName"] for pod in pods if "deletionTimestamp" in pod["metadata"]}
        together.add(tuple(sorted(going)))
        return all(drained(world, node) for node in nodes)

    for node in nodes:
        world.open_budget(f"db-{node.name}")
    eventually("all are drained", all_drained)
    assert max(map(len, together)) == 1, f"drained at the same time: {together}"
    assert sorted(asked()) == sorted(node.name for node in nodes), f"not one after the other: {asked()}"
    assert {each.user for each in world.audit.evictions(world.name)} == {replica.user for replica in replicas}
    assert set(world.audit.evicted(world.name).values()) == {1}
    eventually("every message is handled", world.acknowledged)
    assert all(waves(world, node) == ["over"] for node in nodes)
    for replica in replicas:
        eventually("the replica is at rest", replica.service.at_rest)


def test_while_traffic_is_shifted_away_from_a_zone_drains_in_others_wait(world: World) -> None:
    shifted, other, urgent = nodes = world.several_nodes(3)
    for node, zone in zip(nodes, ("euw1-az1", "euw1-az2", "euw1-az3"), strict=True):
        world.label(node, ZONE_ID, zone)
        world.run(f"web-{node.name}", on=node)
    service = world.service("--zonal-shift=any", "--on=rebalance=drain")
    world.send(messages.zonal_shift("Manual Shift Started", "euw1-az1"))
    eventually("the shift is noted", lambda: all(noted(world.see(node)) for node in nodes))
    world.send(messages.rebalance(other.instance), messages.rebalance(shifted.instance))
    world.send(messages.spot_warning(urgent.instance))

    def waits() -> list[Object]:
        rows = report(service.status)["interruptions"]
        return [wait for row in rows if row["node"] == other.name for wait in row["waits"]]

    for node in (shifted, urgent):
        eventually("the node is drained", lambda node=node: drained(world, node))
    (wait,) = eventually("the page says that the other waits", waits)
    assert wait["wait"] == "zonal-shift"
    assert "euw1-az1" in wait["reason"]
    always("the other waits", lambda: cordoned(world.see(other)) and world.apps(other), 6)

    world.send(messages.zonal_shift("Manual Shift Canceled", "euw1-az1"))
    eventually("the other is drained", lambda: drained(world, other))
    assert not waits()
    assert set(world.audit.evicted(world.name).values()) == {1}
    eventually("every message is handled", world.acknowledged)
    eventually("the service is at rest", service.at_rest)


def noted(node: Object) -> bool:
    """Returns whether a Node notes a zonal shift."""
    return any(key.startswith(f"{MARK}shift.") for key in node["metadata"].get("annotations", {}))
