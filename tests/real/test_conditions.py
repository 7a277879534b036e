"""A condition of a Node that lasts too long ends as a drain; one that many Nodes have does not."""

from __future__ import annotations

import pytest

from harness.service import Service
from harness.wait import always, eventually
from harness.world import World, cordoned, drained


def service(world: World, *rules: str) -> Service:
    """Starts a service without a queue that acts on these conditions of this world's nodes."""
    return world.service_without_queue(*(f"--on-condition={rule}" for rule in rules))


def held(running: Service) -> float:
    """Returns the number of broken nodes that are left alone."""
    return sum(value for name, _, value in running.metrics() if name == "ebbtide_repairs_held")


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
    eventually("they are left alone", lambda: held(running) == 3)
    always("no node is touched", lambda: not any(world.notices(node) or cordoned(world.see(node)) for node in nodes), 8)
    assert not world.audit.evicted(world.name)
    for node in nodes[1:3]:
        world.say(node, "NetworkingReady", "True")
    eventually("the one that is left is drained", lambda: drained(world, nodes[0]))
    eventually("that is noted", lambda: world.handled(nodes[0]))
    assert held(running) == 0
    eventually("the service is at rest", running.at_rest)
