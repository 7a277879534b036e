"""A condition of a Node that lasts too long ends as a drain; one that many Nodes have does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.hooks import TERMINATING
from harness.manifests import GROUP_LABEL, ZONE_LABEL
from harness.recorder import HEALTH, REBOOT
from harness.service import Service
from harness.wait import always, eventually
from harness.world import Node, World, cordoned, drained


def service(world: World, *rules: str) -> Service:
    """Starts a service without a queue that acts on these conditions of this world's nodes."""
    return world.service_without_queue(*(f"--on-condition={rule}" for rule in rules))


def held(running: Service) -> dict[str, float]:
    """Returns the numbers of broken nodes that are left alone, by reason."""
    of = [(labels["reason"], value) for labels, value in running.samples("ebbtide_repairs_held")]
    return {reason: value for reason, value in of if value}


def untouched(world: World, nodes: Sequence[Node]) -> bool:
    """Returns whether no node has a mark or a cordon."""
    return not any(world.notices(node) or cordoned(world.see(node)) for node in nodes)


@pytest.mark.versions
def test_a_condition_that_lasts_is_a_drain_and_one_that_goes_back_is_undone(world: World) -> None:
    # Two of six may be broken.
    broken, flapping, other, *_ = world.several_nodes(6)
    for node in (broken, flapping, other):
        world.run(f"web-{node.name[-1]}", on=node)
    running = service(world, "KernelReady=False:10s=drain", "NetworkingReady=False:1h=drain")
    world.say(flapping, "KernelReady", "False")
    world.say(other, "NetworkingReady", "False")
    world.say(flapping, "KernelReady", "True")
    world.say(broken, "KernelReady", "False")
    always("nothing happens within the toleration", lambda: not world.notices(broken), 8)
    eventually("the node is drained", lambda: drained(world, broken))
    eventually("that is noted", lambda: world.handled(broken))
    assert [notice["message"] for notice in world.notices(broken)] == ["node/condition/KernelReady=False"]
    for node in (flapping, other):
        assert not world.notices(node) and not cordoned(world.see(node))
    world.say(broken, "KernelReady", "True")
    eventually("the node is uncordoned", lambda: not cordoned(world.see(broken)) and not world.notices(broken))
    eventually("nothing is left", lambda: not world.handled(broken))
    eventually("the service is at rest", running.at_rest)
    assert world.recorder.calls() == [], "no call to AWS"


def test_what_many_nodes_say_drains_none(world: World) -> None:
    nodes = world.several_nodes(6)
    world.run("web", on=nodes[0])
    running = service(world, "NetworkingReady=False:5s=drain")
    for node in nodes[:3]:
        world.say(node, "NetworkingReady", "False")
    eventually("they are left alone", lambda: held(running) == {"cluster": 3})
    always("no node is touched", lambda: untouched(world, nodes), 8)
    assert not world.audit.evicted(world.name)
    for node in nodes[1:3]:
        world.say(node, "NetworkingReady", "True")
    eventually("the one that is left is drained", lambda: drained(world, nodes[0]))
    eventually("that is noted", lambda: world.handled(nodes[0]))
    assert held(running) == {}
    eventually("the service is at rest", running.at_rest)


def test_what_more_than_a_fifth_of_a_group_says_drains_none_of_it(world: World) -> None:
    # Three of all fifteen may be broken, and of the five of the group one.
    nodes = world.several_nodes(15, lambda n: {GROUP_LABEL: "small" if n < 5 else "large"})
    small, large = nodes[:5], nodes[5:]
    for node in (small[0], large[0]):
        world.run(f"web-{node.name}", on=node)
    running = service(world, "NetworkingReady=False:5s=drain")
    for node in small[:2]:
        world.say(node, "NetworkingReady", "False")
    eventually("they are left alone", lambda: held(running) == {"group": 2})
    world.say(large[0], "NetworkingReady", "False")
    eventually("the node of another group is drained", lambda: drained(world, large[0]))
    always("no node of the group is touched", lambda: untouched(world, small), 8)
    assert held(running) == {"group": 2}
    world.say(small[1], "NetworkingReady", "True")
    eventually("the one that is left is drained", lambda: drained(world, small[0]))
    eventually("both are noted", lambda: world.handled(small[0]) and world.handled(large[0]))
    assert held(running) == {}
    assert untouched(world, small[1:] + large[1:])
    eventually("the service is at rest", running.at_rest)


def test_what_most_zones_say_drains_none(world: World) -> None:
    # Three of all twelve may be broken; of the four of a zone, one is a fifth or more.
    zones = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
    nodes = world.several_nodes(12, lambda n: {ZONE_LABEL: zones[n % 3]})
    world.run("web", on=nodes[0])
    running = service(world, "NetworkingReady=False:5s=drain")
    for node in nodes[:2]:
        world.say(node, "NetworkingReady", "False")
    eventually("they are left alone", lambda: held(running) == {"zones": 2})
    always("no node is touched", lambda: untouched(world, nodes), 8)
    assert not world.audit.evicted(world.name)
    world.say(nodes[1], "NetworkingReady", "True")
    eventually("the one that is left is drained", lambda: drained(world, nodes[0]))
    eventually("that is noted", lambda: world.handled(nodes[0]))
    assert held(running) == {}
    assert untouched(world, nodes[1:])
    eventually("the service is at rest", running.at_rest)


def test_a_node_is_drained_then_rebooted_and_uncordoned_when_it_is_healthy(world: World) -> None:
    world.parameters |= {"Reboot": "true", "ClusterName": "blue"}
    node, *_ = world.several_nodes(5)
    world.run("web", on=node)
    running = world.service_on("queue,nodes", "--on-condition=KernelReady=False:2s=reboot")
    world.say(node, "KernelReady", "False")
    asked = eventually("the instance is rebooted", lambda: world.recorder.calls(REBOOT))
    assert drained(world, node) and cordoned(world.see(node)), "it is drained before"
    assert asked[0].asked == {"InstanceId.1": node.instance}
    noted = world.see(node)["metadata"]["annotations"]["ebbtide/reboot"]
    world.say(node, "KernelReady", "True")
    eventually("the node is uncordoned", lambda: not cordoned(world.see(node)) and not world.notices(node))

    # It fails again: no instance is rebooted twice in an hour.
    world.say(node, "KernelReady", "False")
    eventually("the node is cordoned", lambda: cordoned(world.see(node)))
    always("it is not rebooted again", lambda: len(world.recorder.calls(REBOOT)) == 1, 4)
    assert world.see(node)["metadata"]["annotations"]["ebbtide/reboot"] == noted
    world.say(node, "KernelReady", "True")
    eventually("the node is uncordoned", lambda: not cordoned(world.see(node)))
    eventually("the service is at rest", running.at_rest)


def test_a_node_is_drained_then_terminated_where_its_group_can_launch_no_other_first(world: World) -> None:
    world.parameters |= {"Replace": "true", "ClusterName": "blue"}
    node, *_ = world.several_nodes(5)
    world.run("web", on=node)
    group = f"{world.name}-group"
    world.aws.hook(group, "drain", 120, TERMINATING)
    world.aws.enlarge(group, node.instance)
    running = world.service_on("queue,nodes", "--on-condition=KernelReady=False:2s=replace", "--terminate-first")
    world.say(node, "KernelReady", "False")
    asked = eventually("the group is asked", lambda: world.recorder.calls(HEALTH))
    assert drained(world, node) and cordoned(world.see(node)), "it is drained before"
    assert (asked[0].asked["InstanceId"], asked[0].asked["HealthStatus"]) == (node.instance, "Unhealthy")
    # The request can't be taken back.
    world.say(node, "KernelReady", "True")
    always("the group is asked once", lambda: len(world.recorder.calls(HEALTH)) == 1 and cordoned(world.see(node)), 4)
    eventually("the service is at rest", running.at_rest)
