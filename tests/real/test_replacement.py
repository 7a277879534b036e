"""A replacement before the drain: moto's group is told that the instance is unhealthy, and the test launches another node."""

from __future__ import annotations

from harness import messages
from harness.hooks import TERMINATING
from harness.recorder import HEALTH
from harness.wait import always, eventually
from harness.world import Node, World


def annotation(world: World, node: Node, name: str) -> str | None:
    """Returns the value of an annotation under ebbtide/."""
    value: str | None = world.see(node)["metadata"].get("annotations", {}).get(f"ebbtide/{name}")
    return value


def test_evictions_begin_when_the_new_node_is_ready(world: World) -> None:
    world.parameters |= {"Replace": "true", "ClusterName": "blue"}
    world.recorder.launches_first = True
    node = world.node()
    world.run("web")
    group = f"{world.name}-group"
    hook = world.aws.hook(group, "drain", 120, TERMINATING)
    world.aws.enlarge(group, node.instance)
    service = world.service("--on", "rebalance=replace")
    world.send(messages.rebalance(node.instance))

    asked = eventually("the group is asked", lambda: world.recorder.calls(HEALTH))
    assert asked[0].asked["InstanceId"] == node.instance
    assert (asked[0].asked["HealthStatus"], asked[0].asked["ShouldRespectGracePeriod"]) == ("Unhealthy", "false")
    assert group in (annotation(world, node, "replacement") or "")
    always("nothing is evicted", lambda: not world.audit.evictions(world.name), during=2)

    instance = world.aws.instance()
    world.aws.enlarge(group, instance)
    new = world.register(instance, kubelet=False)
    world.say_ready(new, False)
    always("nothing is evicted", lambda: not world.audit.evictions(world.name), during=1)
    world.say_ready(new, True)
    eventually("the old node is drained", lambda: not world.pods(node))
    assert annotation(world, new, "replaces") == node.instance

    # The group terminates the instance, whose hook joins or ends at once.
    action = world.recorder.actions.begin(hook, node.instance)
    world.send(messages.bare(action))
    eventually("the hook is completed", lambda: world.completions(action))
    eventually("the messages are deleted", world.acknowledged)
    assert len(world.recorder.calls(HEALTH)) == 1, "it was asked twice"
    eventually("the service is at rest", service.at_rest)
