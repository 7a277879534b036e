"""The service completes a launching hook when the instance's Node is Ready, not earlier."""

from __future__ import annotations

import pytest

from harness import messages
from harness.hooks import Action
from harness.recorder import COMPLETE
from harness.wait import always, eventually
from harness.world import World, marks

HEARTBEAT_TIMEOUT = 30
"""Heartbeat timeout in seconds, Auto Scaling's minimum."""

MAX_RECEIVES = 3
"""Number of receives after which a message goes to the dead-letter queue."""

STARTUP_TAINT = "ebbtide.test/agent-not-ready"


def continued(world: World, action: Action) -> None:
    """Checks that the hook is completed once. tests/service/pipeline/interruption/hooks/launch.rs tests how fast."""
    eventually("the hook is completed", lambda: world.completions(action))
    assert len(world.recorder.of_token(COMPLETE, action.token)) == 1
    assert world.completions(action) == ["CONTINUE"]
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", world.services[-1].at_rest)


def test_the_hook_waits_until_a_late_node_is_ready(world: World) -> None:
    dead = world.dead_letters(MAX_RECEIVES)
    instance = world.aws.instance()
    world.service("--on", "asg-launch=ready", "--heartbeat", "5s")
    action = world.hold(instance, HEARTBEAT_TIMEOUT, launching=True)

    world.send(messages.launch_action(action))

    eventually("the message is held", lambda: world.deliveries() == 1)
    always("the hook is held while there is no Node", lambda: not world.completions(action), during=2)
    node = world.register(instance, kubelet=False)
    world.say_ready(node, False)
    eventually("a heartbeat while the Node is not Ready", lambda: world.heartbeats(action))
    always("the hook is held", lambda: not world.completions(action), during=1)
    world.say_ready(node, True)
    continued(world, action)
    assert world.deliveries() == 1, "the message was released and received again"
    assert world.queues.backlog(dead).empty
    assert not marks(world.see(node)), "the service marked a launched Node"


@pytest.mark.parametrize("pattern", [STARTUP_TAINT, "ebbtide.test/*"])
def test_a_startup_taint_holds_the_hook(world: World, pattern: str) -> None:
    instance = world.aws.instance()
    world.service("--on", "asg-launch=ready", "--startup-taint", pattern)
    action = world.hold(instance, HEARTBEAT_TIMEOUT, launching=True)
    world.send(messages.launch_action(action))
    eventually("the message is held", lambda: world.deliveries() == 1)

    node = world.register(instance, taint=STARTUP_TAINT)
    eventually("the Node is Ready except for the startup taint", lambda: world.taints(node) == {STARTUP_TAINT})
    always("the hook is held", lambda: not world.completions(action), during=2)
    world.untaint(node)
    continued(world, action)
