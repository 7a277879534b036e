"""A hook is kept until no target group lists its instance: on moto's Elastic Load Balancing, without the controllers."""

from __future__ import annotations

import pytest

from harness import messages, roles
from harness.control_plane import SERVICE
from harness.wait import always, eventually
from harness.world import World, drained

DEREGISTER = "DeregisterTargets"


@pytest.mark.parametrize("mode", ["wait", "deregister"])
def test_a_hook_waits_for_a_target_group(world: World, mode: str) -> None:
    roles.grant_target_groups(world.kube, SERVICE)
    world.parameters |= {"LoadBalancers": mode, "ClusterName": "blue"}
    node = world.node()
    world.run("web")
    service = world.service("--wait-for-load-balancers", mode)
    action = world.hold(node.instance, 120)
    target_group = world.aws.target_group(f"web-{mode}", action.hook.group, node.instance, 30080)
    world.send(messages.bare(action))
    eventually("the node is drained", lambda: drained(world, node))
    if mode == "wait":
        always("the hook is kept", lambda: not world.completions(action), during=3)
        assert world.aws.targets(target_group) == [node.instance]
        world.aws.deregister(target_group, node.instance)
    eventually("the message is deleted", world.acknowledged)
    assert world.completions(action) == ["CONTINUE"]
    assert world.aws.targets(target_group) == []
    deregistered = [call.asked for call in world.recorder.calls(DEREGISTER)]
    expected = {
        "TargetGroupArn": target_group,
        "Targets.member.1.Id": node.instance,
        "Targets.member.1.Port": "30080",
    }
    assert deregistered == ([expected] if mode == "deregister" else [])
    assert all(call.status == 200 for call in world.recorder.calls("DescribeTargetHealth"))
    eventually("the service is at rest", service.at_rest)


def test_a_hook_waits_for_the_target_group_of_a_service(world: World) -> None:
    """The tags lead to it: no binding and no Auto Scaling group names it. The group of another cluster is left alone."""
    roles.grant_target_groups(world.kube, SERVICE)
    world.parameters |= {"LoadBalancers": "deregister", "ClusterName": "blue"}
    node = world.node()
    world.run("web")
    service = world.service("--wait-for-load-balancers", "deregister", "--cluster-name", "blue")
    action = world.hold(node.instance, 120)
    own, foreign = (world.aws.service_target_group(name, "shop/web", node.instance, 30080) for name in ("blue", "green"))
    world.send(messages.bare(action))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    assert world.completions(action) == ["CONTINUE"]
    assert world.aws.targets(own) == []
    assert world.aws.targets(foreign) == [node.instance]
    assert [call.asked["TargetGroupArn"] for call in world.recorder.calls(DEREGISTER)] == [own]
    searched = [*world.recorder.calls("DescribeTargetGroups"), *world.recorder.calls("DescribeTags")]
    # The account has the target groups of other tests, too, whose tags are read in calls of 20.
    assert all(call.status == 200 for call in searched)
    assert len(world.recorder.calls("DescribeTargetGroups")) == 1
    eventually("the service is at rest", service.at_rest)
