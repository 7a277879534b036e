"""The service drains the node that it runs on: it goes last of all, in order, and another replica finishes its work."""

from __future__ import annotations

from harness import messages
from harness.recorder import COMPLETE
from harness.wait import eventually
from harness.world import World, drained

OURS = "ebbtide-0"

STOPS_AFTER = 3
"""Seconds that the other pods take."""


def test_own_pod_goes_last(world: World) -> None:
    node = world.node()
    world.run("web", 2, STOPS_AFTER)
    world.run_pod(OURS, node)
    world.node()
    first = world.service("--pod-namespace", world.name, "--pod-name", OURS)
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(messages.terminate_action(action))

    first.wait_end()
    *others, own = world.audit.evictions(world.name)
    assert len(others) == 2, others
    assert own.name == OURS, "its own pod goes last"
    apart = own.came_at - max(each.came_at for each in others)
    assert apart > STOPS_AFTER - 0.5, "its own pod stays while others go, and goes when they are gone"
    assert not world.audit.deletions(world.name)
    assert world.recorder.released(), "it gives its message back"
    eventually("its message is visible", lambda: world.backlog().visible == 1)
    assert not world.recorder.of_token(COMPLETE, action.token), "it leaves the hook to another"

    second = world.service("--pod-namespace", world.name, "--pod-name", "ebbtide-1")
    eventually("the hook is completed", lambda: world.completions(action))
    assert drained(world, node)
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", second.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    assert set(world.audit.evicted(world.name).values()) == {1}, world.audit.evicted(world.name)
    world.wait_running("web", 2)
